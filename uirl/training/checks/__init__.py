"""`uirl check`: what silently ruins runs, proved in seconds on the real model and environment."""
