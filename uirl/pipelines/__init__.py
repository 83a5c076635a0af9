"""Data that makes itself: rounds of playing, judging, keeping what was right, and learning from it.

`evolve.py` the rounds and their steps; `selection.py` what of a round is kept and finished, and the card of its data.
"""

from uirl.pipelines.evolve import Evolution
from uirl.pipelines.selection import Example, Selection, select

__all__ = ["Evolution", "Example", "Selection", "select"]
