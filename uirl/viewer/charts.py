"""Which charts a run has, by the names of its metrics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from uirl.metrics import PHASES


@dataclass(frozen=True, slots=True)
class _Chart:
    title: str
    unit: str
    names: str
    """Regular expression of the whole name."""
    band: tuple[str, str] | None = None
    kind: str = "line"
    along: str | None = None
    """The metric that counts its steps; None: those of the run."""


_CHARTS = (
    _Chart("Success", "share", r"success|eval/success", ("success_low", "success_high")),
    _Chart("Reward", "", r"reward|reward_max|reward_min|eval/reward"),
    _Chart("Losses", "", r"(?:policy|value|entropy|kl|total)_loss|loss(?:/.*)?"),
    _Chart("Numbers that are none (NaN, infinite)", "in a row", r"metrics/nonfinite"),
    _Chart("KL", "nats", r"approx_kl|kl(?:/.*|_(?!loss_coef).*)?|reference_kl|mismatch_kl"),
    _Chart("Entropy", "nats", r"(?:bonus_|target_)?entropy(?:/.*)?"),
    _Chart("Clipped share", "share", r"clip_fraction(?:_.*)?"),
    _Chart("Ratio", "", r"ratio_(?:mean|max|min)|mismatch_weight_.*"),
    _Chart("Log-prob gap, learner to engine", "nats", r"log_prob_gap_.*"),
    _Chart("Staleness", "versions", r"staleness|actors/staleness|staleness_.*|stale/.*"),
    _Chart("Ledger", "episodes", r"ledger/(?:trained|dropped|failed|in_flight)", kind="stack"),
    _Chart("Ledger, why not trained", "episodes", r"ledger/(?:dropped|failed)/.*"),
    _Chart("Time of an update", "s", r"time/(?:collect|update|publish|record|save|evaluate)", kind="stack"),
    _Chart("Time inside of it", "s", r"time/(?!elapsed).*"),
    _Chart("Tokens per second", "tokens/s", r".*tokens_per_second"),
    _Chart("Failures", "episodes", r"failures?/.*|count/failed_.*|count/failures?/.*|eval/failed.*"),
    _Chart("Stop reasons", "share", r"stop/.*", kind="stack"),
    _Chart("Curriculum levels", "tasks", r"curriculum/[^/]+/tasks", kind="stack"),
    _Chart("Curriculum, success by level", "share", r"curriculum/[^/]+/success|curriculum/mean_success"),
    _Chart("Judge", "share", r"judge/(?:precision|false_accept_rate|kappa|agreement)",
           ("judge/precision_low", "judge/precision_high")),
    _Chart("Episodes", "", r"turns|response_tokens|eval/turns|parse_error_rate"),
    *(
        _Chart(f"{phase.replace('_', ' ').capitalize()}, {name}", f"by step of the {phase.replace('_', ' ')}",
               f"{phase}/{name}", along=f"{phase}/step")
        for phase in PHASES for name in ("loss", "success")
    ),
    _Chart("Learning", "", r"learning_rate|grad_norm|kl_loss_coef"),
)  # fmt: skip


_AXES = {f"{phase}/step" for phase in PHASES}


def charts_of(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the charts of these metrics, {"title", "unit", "kind", "series", "band", "along"}, the important ones
    first; what belongs to none stands under the title "more", one series each."""
    left = dict.fromkeys(name for name in names if name not in _AXES)
    charts = []
    for chart in _CHARTS:
        series = [name for name in left if re.fullmatch(chart.names, name)]
        if not series:
            continue
        band = list(chart.band) if chart.band and all(name in left for name in chart.band) else None
        for name in [*series, *(band or [])]:
            left.pop(name, None)
        charts.append(
            {"title": chart.title, "unit": chart.unit, "kind": chart.kind, "series": series, "band": band}
            | {"along": chart.along}
        )
    if left:
        charts.append({"title": "more", "unit": "", "kind": "line", "series": list(left), "band": None, "along": None})
    return charts
