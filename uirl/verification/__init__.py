"""Whether an episode solved its task: rules, a judge that looks at screenshots, both together, and how good they are.

`outcome.py` three answers and votes; `evidence.py` and `rules.py` what is declared in task files; `judge.py` the judge
with its `prompts.py`, its server (`client.py`) and its `memory.py`; `hybrid.py` both together, and `quality.py` what is
known of the judge; `prefixes.py` how far a failed episode was right, by the judge or by `fork.py`, which compares
screens (`similarity.py`).
"""

from typing import TYPE_CHECKING

from uirl.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from uirl.verification.hybrid import HybridOptions, HybridVerifier, Verification
    from uirl.verification.judge import Judge, JudgeOptions, JudgeVerdict
    from uirl.verification.outcome import Finding, Outcome
    from uirl.verification.prefixes import FineGrainedTrajectoryAnalyzer, PrefixFinding
    from uirl.verification.quality import Channel, Confusion, JudgeQuality
    from uirl.verification.rules import RuleBook, read_rule

# comparing screens needs neither a judge nor torch, which the judge's client loads
__getattr__, __all__ = lazy_exports(
    __name__,
    {
        "uirl.verification.hybrid": "HybridOptions HybridVerifier Verification",
        "uirl.verification.judge": "Judge JudgeOptions JudgeVerdict",
        "uirl.verification.outcome": "Finding Outcome",
        "uirl.verification.prefixes": "FineGrainedTrajectoryAnalyzer PrefixFinding",
        "uirl.verification.quality": "Channel Confusion JudgeQuality",
        "uirl.verification.rules": "RuleBook read_rule",
    },
)
