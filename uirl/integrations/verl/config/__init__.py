"""Configs of runs under verl: read, mapped to verl's keys, checked, and their memory planned."""
