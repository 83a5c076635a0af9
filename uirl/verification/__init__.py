"""Whether an episode solved its task: rules, a judge that looks at screenshots, both together, and how good they are.

`outcome.py` three answers; `evidence.py`, `checks.py`, `rules.py` what is declared in task files; `judge.py` the judge
with its `prompts.py`, `screens.py`, `answers.py`, `votes.py`, its server (`client.py`) and its `memory.py`; `hybrid.py`
both together, and `quality.py` what is known of the judge; `prefixes.py` how far a failed episode was right, by the
judge or by `fork.py`, which compares screens (`similarity.py`).
"""

from uirl.verification.hybrid import HybridOptions, HybridVerifier, Verification
from uirl.verification.judge import Judge, JudgeOptions, JudgeVerdict
from uirl.verification.outcome import Finding, Outcome
from uirl.verification.prefixes import FineGrainedTrajectoryAnalyzer, PrefixFinding
from uirl.verification.quality import Channel, Confusion, JudgeQuality
from uirl.verification.rules import RuleBook, read_rule

__all__ = [
    "Channel",
    "Confusion",
    "Finding",
    "FineGrainedTrajectoryAnalyzer",
    "HybridOptions",
    "HybridVerifier",
    "Judge",
    "JudgeOptions",
    "JudgeQuality",
    "JudgeVerdict",
    "Outcome",
    "PrefixFinding",
    "RuleBook",
    "Verification",
    "read_rule",
]
