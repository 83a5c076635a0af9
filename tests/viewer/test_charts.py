"""Which charts a run has, by the names that a run really writes."""

from __future__ import annotations

from uirl.training.record.ledger import Ledger
from uirl.training.record.record import row_of
from uirl.types import Failure, Trajectory
from uirl.viewer.charts import charts_of


def series(names: list[str]) -> dict[str, list[str]]:
    return {chart["title"]: chart["series"] for chart in charts_of(names)}


def test_failures_are_drawn_by_kind_of_this_update_and_of_the_whole_run() -> None:
    ledger = Ledger()
    ledger.order(["a", "b", "c"])
    ledger.drop(["a"], "no signal")
    ledger.fail("b", "environment")
    row = row_of([Trajectory(failure=Failure("environment", "gone"))], ledger.row(), {})
    charts = series(list(row))
    assert "count/failures/environment" in charts["Failures"]
    assert charts["Ledger, why not trained"] == ["ledger/dropped/no_signal", "ledger/failed/environment"]
    assert charts["Ledger"] == ["ledger/trained", "ledger/dropped", "ledger/failed", "ledger/in_flight"]


def test_a_coefficient_is_no_divergence() -> None:
    charts = series(
        ["kl_loss_coef", "approx_kl", "mismatch_kl", "kl/reward", "kl_to_reference", "grad_norm", "kl_loss"]
    )
    assert charts["KL"] == ["approx_kl", "mismatch_kl", "kl/reward", "kl_to_reference"]
    assert charts["Learning"] == ["kl_loss_coef", "grad_norm"]
    assert charts["Losses"] == ["kl_loss"]


def test_every_metric_stands_in_one_chart() -> None:
    names = ["success", "success_low", "success_high", "time/collect", "time/other", "unheard/of"]
    drawn = [name for chart in charts_of(names) for name in [*chart["series"], *(chart["band"] or [])]]
    assert sorted(drawn) == sorted(names)


def test_a_phase_before_the_first_update_has_charts_and_an_axis_of_its_own() -> None:
    names = ["warm_start/step", "warm_start/loss", "warm_start/success", "warm_start/tokens", "policy_loss", "success"]
    charts = {chart["title"]: chart for chart in charts_of(names)}
    assert (charts["Success"]["series"], charts["Success"]["along"]) == (["success"], None)
    assert charts["Losses"]["series"] == ["policy_loss"]
    assert charts["Warm start, loss"]["series"] == ["warm_start/loss"]
    assert charts["Warm start, success"]["along"] == "warm_start/step"
    assert charts["more"]["series"] == ["warm_start/tokens"]
