"""`uirl serve`: one registered environment as many sessions, over three protocols."""
