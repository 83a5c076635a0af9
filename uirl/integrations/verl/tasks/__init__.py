"""Tasks and rewards of an environment of ours as verl's dataset and reward function."""
