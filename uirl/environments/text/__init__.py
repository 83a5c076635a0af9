"""Environments of words alone."""
