"""Whether an episode solved its task: rules, a judge that looks at screenshots, both together, and how good they are.

`outcome.py` three answers; `evidence.py`, `checks.py`, `rules.py` what is declared in task files; `judge.py` the judge
with its `prompts.py`, `screens.py`, `answers.py`, `votes.py`, its server (`client.py`) and its `memory.py`.
"""
