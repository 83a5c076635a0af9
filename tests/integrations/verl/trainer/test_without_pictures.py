"""A micro-batch without any picture, in verl's own forward pass of Qwen2.5-VL."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integrations.verl.runs import config, trainer
from tests.integrations.verl.worlds import TwoLooks

pytestmark = pytest.mark.verl
MODULE = "uirl.integrations.verl.trainer.without_pictures"

SEEN = """
import sys
import torch
from tests.conftest import tiny_model
from verl.models.transformers import qwen2_vl
if len(sys.argv) > 1:
    __import__(sys.argv[1])
whole = tiny_model().model
model = whole.model
words = torch.tensor([[5, 6, 7]])
made, _ = qwen2_vl._get_input_embeds(model, words)
assert torch.equal(made, model.get_input_embeddings()(words))
made.sum().backward()
grown = [p.grad for p in model.visual.parameters() if p.requires_grad]
assert any(g is not None for g in grown), "the vision layers are left out, and other ranks would wait for them"
assert all(not g.any() for g in grown if g is not None)
print("as words alone")
"""


def test_it_is_read_as_words_alone() -> None:
    """In a process of its own: verl is changed for good."""
    told = subprocess.run([sys.executable, "-c", SEEN, MODULE], capture_output=True, text=True, check=False)
    assert told.stdout.endswith("as words alone\n"), told.stderr[-2000:]


def test_every_process_with_a_model_imports_what_mends_it(tmp_path: Path) -> None:
    made = trainer(config(tmp_path), TwoLooks(pictures=False)).config
    assert (made.actor_rollout_ref.model.external_lib, made.critic.model.external_lib) == (MODULE, MODULE)
    key = "actor_rollout_ref.model.external_lib"
    for own in ("json", ["json", "csv"]):
        made = trainer(config(tmp_path), TwoLooks(pictures=False), verl={key: own}).config
        assert list(made.actor_rollout_ref.model.external_lib) == [*([own] if isinstance(own, str) else own), MODULE]
