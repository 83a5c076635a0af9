"""What a run says of itself when it has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from uirl.config import TrainingConfig
from uirl.learner import Policy
from uirl.runtime.terminal import short
from uirl.training.evaluation.evaluation import EvaluationReport
from uirl.training.groups_with_signal import NO_SIGNAL
from uirl.training.record.ledger import Ledger
from uirl.training.record.meter import meter_words
from uirl.training.record.progress import leave_board, percent, report_table, say
from uirl.training.record.record import RunRecord
from uirl.training.record.run_state import RunState
from uirl.training.record.tally import NOTEWORTHY, Tally, kinds
from uirl.training.resume import checkpoint_of
from uirl.training.saving import BEST


def summary_of(
    state: RunState,
    after: EvaluationReport,
    controls: Mapping[str, float | None],
    *,
    reason: str,
    training: TrainingConfig,
    policy: Policy,
) -> dict[str, Any]:
    """Return the content of summary.json: `state` is that of the run, `after` its last evaluation."""
    before = state.before or Tally()
    return {
        "success_before": before.success,
        "success_before_interval": list(state.interval_before) if state.interval_before else None,
        "success_after": after.success,
        "success_after_interval": list(after.interval) if after.interval else None,
        "judged_before": before.judged,
        "judged_after": after.judged,
        "evaluated": {"episodes": after.episodes, "instances": after.instances},
        "held_out": None if after.held_out is None else after.held_out.to_dict(),
        "success_after_corrected": after.corrected,
        "reward_before": state.reward_before,
        "reward_after": after.reward,
        "controls": controls,
        "controls_metric": after.measured_by,
        "episodes": state.episodes,
        "steps": state.step,
        "best": None if state.best is None else state.best | {"evaluations": state.evaluations},
        "train_seconds": state.seconds + (state.warm or {}).get("seconds", 0.0),
        "warm_start": state.warm,
        **({"members": members_of(state.members_before, after)} if after.members else {}),
        "excluded": {"training": state.tally.report(), "before": before.report(), "after": after.tally.report()},
        "ledger": state.ledger.report(),
        "stopped_because": reason,
        "seed": training.seed,
        "algorithm": training.adv_estimator,
        "model": policy.loaded.name,
        "parameters": sum(p.numel() for p in policy.loaded.model.parameters()),
    }


def summary_of_finished(state: RunState, record: RunRecord, reason: str | None) -> dict[str, Any] | None:
    """Return the stored summary of a run that has nothing left to do, for `reason`; None: it has."""
    summary = record.summary()
    if state.pending is not None or reason is None or summary is None or summary.get("steps") != state.step:
        return None
    say(
        f"this run is finished: {reason}. It is left as it is. To train it on, raise training.num_epochs, which counts "
        "from the start of the run (or training.max_seconds, training.stop_at_success: whichever ended it); "
        "--from-step N goes back"
    )
    return summary


def tell(summary: Mapping[str, Any], state: RunState, after: EvaluationReport, record: RunRecord) -> None:
    """Print the summary, and last that many episodes are no evidence, where that is so."""
    leave_board()
    training, metric = state.tally, after.measured_by
    checkpoint, best = checkpoint_of(record.checkpoints, summary["steps"]), summary["best"]
    success_before = percent(summary["success_before"], state.interval_before)
    rows = {
        "success before": f"{success_before}, {(state.before or Tally()).judged_words()}",
        "success after": after.words(),
        **after.unseen_rows(),
        **member_rows(summary.get("members", {})),
        **{f"control: {name}": measured(metric, value) for name, value in summary["controls"].items()},
        "reward": f"{_short(summary['reward_before'])} -> {_short(summary['reward_after'])}",
        "episodes": f"{summary['episodes']} in {summary['steps']} steps, {summary['train_seconds']:.0f} s",
        "time": meter_words(summary["meter"]),
        **excluded_rows({"training": training, "last evaluation": after.tally}),
        "ledger": state.ledger.words(),
        **curriculum_rows(summary.get("curriculum")),
        "stopped because": summary["stopped_because"],
        "learning curve": short(record.curve_path),
        "trajectories": short(record.directory.trajectories_path),
        "metrics": short(record.directory.metrics_path),
        "summary": short(record.directory.summary_path),
        "checkpoint": short(checkpoint),
        **({} if best is None else {"best checkpoint": f"{short(record.checkpoints / BEST)}, {best_words(best)}"}),
    }
    report_table(f"run {record.path.name}", rows)
    warn_of_nothing_learned(state.ledger)
    warn_of_a_fall(state.interval_before, after.interval)
    before = {} if state.before is None else {"the first evaluation": state.before}
    warn_of_excluded({"training": training, **before, "the last evaluation": after.tally})


def members_of(before: Mapping[str, Mapping[str, Any]], after: EvaluationReport) -> dict[str, dict[str, Any]]:
    """Return environment of a mixture -> its success before and after, and how often it was judged after."""
    return {
        name: {
            "success_before": before.get(name, {}).get("success"),
            "success_after": row["success"],
            "judged_after": row["judged"],
        }
        for name, row in after.members.items()
    }


def member_rows(members: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return lines of a table: the success of each environment of a mixture."""
    return {
        f"success: {name}": f"{percent(row['success_before'])} -> {percent(row['success_after'])}, "
        f"{row['judged_after']} judged"
        for name, row in members.items()
    }


def best_words(best: Mapping[str, Any]) -> str:
    """Return 'step 40, success 93.8 %, the best of 6 evaluations', which is more than its policy is worth: it was
    chosen for it."""
    value, worst = measured(best["metric"], best["value"]), best.get("at_worst")
    told = value if worst is None else f"{value} (at worst {percent(worst)})"
    chosen = f"the best of {best['evaluations']} evaluations"
    return f"step {best['step']}, {told}, {chosen}; `uirl eval` says what it is worth"


def measured(metric: str, value: float | None) -> str:
    """Return 'success 93.8 %', 'reward -3.2'."""
    return f"{metric} {percent(value) if metric == 'success' else _short(value)}"


def excluded_rows(tallies: Mapping[str, Tally]) -> dict[str, str]:
    """Return lines of a table: how many episodes are no evidence and why, and how many attempts were repeated."""
    rows = {}
    for name, tally in tallies.items():
        of = f", {name}" if name else ""
        rows[f"excluded{of}"] = tally.words()
        if tally.failed_attempts:
            rows[f"failed and repeated{of}"] = kinds(tally.failed_attempts)
    return rows


def curriculum_rows(curriculum: Mapping[str, Any] | None) -> dict[str, str]:
    """Return lines of a table: of each level the tasks at the end and, over the run, share of the draws and success."""
    if curriculum is None:
        return {}
    return {
        f"curriculum: {level}": (
            f"{numbers['tasks']} tasks now; {percent(numbers['drawn'])} of the draws, success "
            f"{percent(numbers['success'])}, groups to learn from {percent(numbers['live_groups'])}"
        )
        for level, numbers in curriculum["levels"].items()
    }


def warn_of_excluded(tallies: Mapping[str, Tally]) -> None:
    """Say, as the last line, where more than `NOTEWORTHY` of the episodes are excluded; nothing otherwise."""
    excluded = "; ".join(
        f"{name}: {tally.words()}".removeprefix(": ") for name, tally in tallies.items() if tally.noteworthy
    )
    if excluded:
        say(
            f"MORE THAN {100 * NOTEWORTHY:.0f} % OF THE EPISODES ARE EXCLUDED or were repeated, the numbers above "
            f"leave them out. {excluded}"
        )


def warn_of_nothing_learned(ledger: Ledger) -> None:
    """Say where no update took a step; nothing otherwise."""
    if ledger.settled and not ledger.trained:
        say(f"NOTHING WAS LEARNED, no update took a step: {ledger.words()}. {NO_SIGNAL}")


def warn_of_a_fall(before: Sequence[float] | None, after: Sequence[float] | None) -> None:
    """Say where success fell by more than chance allows; nothing otherwise. `before`, `after`: its intervals."""
    if before is not None and after is not None and after[1] < before[0]:
        say(
            f"SUCCESS FELL: {percent(before[0])} at least before, {percent(after[1])} at most after. "
            "checkpoint.keep_best=success keeps the best policy; docs/not_learning.md says what to look at"
        )


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
