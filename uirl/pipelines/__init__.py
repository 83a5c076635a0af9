"""Data that makes itself: rounds of playing, judging, keeping what was right, and learning from it.

`evolve.py` the rounds; `round_folder.py` what of a round is finished; `collection.py` its episodes; `beginnings.py` how
far the failed ones were right; `corrections.py` what they should have done then; `selection.py` what is kept;
`fine_tuning.py`; `variations.py` new tasks from failures; `data_card.py` what the data is.
"""

from uirl.pipelines.evolve import Evolution
from uirl.pipelines.selection import Example, Limits, Selection, select
from uirl.pipelines.variations import Failed, ModelProposer, Validation, validate_variations

__all__ = [
    "Evolution",
    "Example",
    "Failed",
    "Limits",
    "ModelProposer",
    "Selection",
    "Validation",
    "select",
    "validate_variations",
]
