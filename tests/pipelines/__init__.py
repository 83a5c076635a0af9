"""Rounds of `uirl evolve`, on small real models."""
