"""What happened since the server started, in the text format of Prometheus."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Upper ends, in seconds, of the histogram of call times."""

_HELP = {
    "uirl_sessions_opened_total": "Sessions opened, by protocol.",
    "uirl_sessions_closed_total": "Sessions closed, by reason.",
    "uirl_sessions_refused_total": "Sessions refused because all were taken.",
    "uirl_sessions_replaced_total": "Environment instances replaced after they broke.",
    "uirl_calls_total": "Calls of the environment, by method.",
    "uirl_failures_total": "Calls that failed, by kind.",
    "uirl_requests_denied_total": "Requests without the right token, too large, or from another web site.",
}

Labels = tuple[tuple[str, str], ...]


class Counters:
    """Numbers that only grow, and a histogram of the seconds that calls of the environment take."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[Labels, float]] = {name: defaultdict(float) for name in _HELP}
        self._seconds: dict[str, list[int]] = {}
        self._sums: dict[str, float] = defaultdict(float)

    def add(self, name: str, **labels: str) -> None:
        """One more of `name`."""
        self._counts[name][tuple(sorted(labels.items()))] += 1

    def count(self, name: str, **labels: str) -> int:
        """Return how many there were, over all labels that are not given."""
        wanted = set(labels.items())
        return int(sum(value for key, value in self._counts[name].items() if wanted <= set(key)))

    def took(self, method: str, seconds: float) -> None:
        """Count a call of `method` that came back after `seconds`."""
        row = self._seconds.setdefault(method, [0] * (len(BUCKETS) + 1))
        row[next((i for i, end in enumerate(BUCKETS) if seconds <= end), len(BUCKETS))] += 1
        self._sums[method] += seconds

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Return the whole as Prometheus reads it; `gauges`: name -> (help, value)."""
        lines = []
        for name, (words, value) in gauges.items():
            lines += [f"# HELP {name} {words}", f"# TYPE {name} gauge", f"{name} {value:g}"]
        for name, words in _HELP.items():
            lines += [f"# HELP {name} {words}", f"# TYPE {name} counter"]
            rows = self._counts[name] or {(): 0.0}
            lines += [f"{name}{_braces(labels)} {value:g}" for labels, value in sorted(rows.items())]
        return "\n".join([*lines, *self._histogram()]) + "\n"

    def _histogram(self) -> list[str]:
        name = "uirl_call_seconds"
        lines = [f"# HELP {name} Seconds of calls of the environment.", f"# TYPE {name} histogram"]
        for method, row in sorted(self._seconds.items()):
            total = 0
            for end, number in zip([*map(str, BUCKETS), "+Inf"], row, strict=True):
                total += number
                lines.append(f"{name}_bucket{_braces((('method', method), ('le', end)))} {total}")
            labels = _braces((("method", method),))
            lines += [f"{name}_sum{labels} {self._sums[method]:.6f}", f"{name}_count{labels} {total}"]
        return lines


def _braces(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""
