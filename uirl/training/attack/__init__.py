"""`uirl attack`: scripted attackers against an environment and whoever judges it, and a bound on what gets through."""

from uirl.training.attack.play import attack
from uirl.training.attack.report import AttackReport

__all__ = ["AttackReport", "attack"]
