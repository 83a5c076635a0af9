"""Data that makes itself: rounds of playing, judging, keeping what was right, and learning from it.

`evolve.py` the rounds; `round_folder.py` what of a round is finished; `collection.py` its episodes; `beginnings.py` how
far the failed ones were right; `selection.py` what is kept;
`fine_tuning.py`; `data_card.py` what the data is.
"""

from uirl.pipelines.evolve import Evolution
from uirl.pipelines.selection import Example, Limits, Selection, select

__all__ = [
    "Evolution",
    "Example",
    "Limits",
    "Selection",
    "select",
]
