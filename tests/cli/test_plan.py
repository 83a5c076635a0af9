"""`uirl plan`: sums, the verdict, and which key to change."""

from __future__ import annotations

import pytest

from uirl.cli.main import main

TINY = ["--picture", "56x56", "model.tiny.num_layers=1", "training.batch_size=4", "inference.max_turns=2"]
BIG = ["model.tiny.hidden_size=256", "model.tiny.num_layers=6", "training.batch_size=64", "inference.max_turns=4"]
"""Ten million parameters, whose longest micro-batch takes more than a gigabyte."""


def test_a_plan_names_every_part_and_fits(capsys: pytest.CaptureFixture[str]) -> None:
    # of two micro-batches the second one finds the gradients of the first
    assert main(["plan", "--gpu", "80GB", "--tokens", "256", *TINY, "training.micro_batch_tokens=256"]) == 0
    printed = capsys.readouterr().out
    for part in ("weights", "optimizer", "gradients", "activations", "attention cache", "of 72.0 GiB", "x 256 tokens"):
        assert part in printed
    assert "does not fit" not in printed


@pytest.mark.slow
def test_what_does_not_fit_comes_with_the_keys_that_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--gpu", "1.5", "--picture", "112x112", *BIG]) == 1
    printed = capsys.readouterr().out
    assert "does not fit: updating the policy" in printed
    advice = printed.strip().splitlines()[-1]
    assert advice.startswith("it fits with: model.gradient_checkpointing=true")


@pytest.mark.slow
def test_what_nothing_makes_fit_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--gpu", "0.4GB", "--tokens", "64", *TINY]) == 1
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.startswith("even with model.gradient_checkpointing=true")
    assert last.endswith("take a smaller model or a larger GPU")


@pytest.mark.parametrize("words", [["--gpu", "0GB"], ["--gpu", "80TB"], ["--gpu", "4090"], ["--picture", "720p"]])
def test_junk_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == 2
    assert "expected" in capsys.readouterr().err
