"""The commands of `uirl`, one file each."""
