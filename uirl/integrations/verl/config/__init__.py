"""What a run under verl takes of its GPUs and hosts: the sum that `uirl verl --plan` prints."""
