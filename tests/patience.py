"""How long a test waits for what should take none."""

PATIENCE = 300.0
"""Seconds after which a test gives up. They pass where something is broken, and in no other case: a machine on which
other programs run may take thirty times as long as a quiet one."""
