"""Processes that work on one run: the messages between them, and the pictures that they share."""
