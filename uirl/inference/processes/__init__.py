"""Engines in processes of their own on this machine: what runs there (`host.py`), and what asks and restarts it."""
