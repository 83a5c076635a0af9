"""Whether an episode solved its task: rules, a judge that looks at screenshots, both together, and how good they are.

`outcome.py` three answers; `evidence.py`, `checks.py`, `rules.py` what is declared in task files.
"""
