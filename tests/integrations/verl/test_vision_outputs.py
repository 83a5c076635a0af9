"""Micro-batches with and without pictures, in verl's own forward passes of Qwen2.5-VL and GLM-4V."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integrations.verl.runs import config, trainer
from tests.integrations.verl.worlds import TwoLooks

pytestmark = pytest.mark.verl


MODULE = "uirl.integrations.verl.vision_outputs"

QWEN = """
from tests.conftest import tiny_model
from verl.models.transformers import qwen2_vl as family
model = tiny_model().model.model
"""
GLM = """
from transformers import Glm4vConfig, Glm4vModel
from verl.models.transformers import glm4v as family
text = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
vision = dict(hidden_size=16, out_hidden_size=32, intermediate_size=16, depth=1, num_heads=2)
tokens = dict(image_token_id=9, video_token_id=10)
model = Glm4vModel(Glm4vConfig(text_config=text | dict(vocab_size=64, pad_token_id=0), vision_config=vision, **tokens))
"""
BLIND = """
words = torch.tensor([[5, 6, 7]])
made, _ = family._get_input_embeds(model, words)
assert torch.equal(made, model.get_input_embeddings()(words))
made.sum().backward()
grown = [p.grad for p in model.visual.parameters() if p.requires_grad]
assert any(g is not None for g in grown), "the vision layers are left out, and other ranks would wait for them"
assert all(not g.any() for g in grown if g is not None)
"""
SEEING = """
words = torch.tensor([[6, *[model.config.image_token_id] * 4, 7]])
sizes = model.config.vision_config
patches = torch.randn(16, sizes.in_channels * sizes.temporal_patch_size * sizes.patch_size**2)
grid = torch.tensor([[1, 4, 4]])
made, _ = family._get_input_embeds(model, words, pixel_values=patches, image_grid_thw=grid)
assert torch.allclose(made[0, 1:5], model.visual(patches, grid_thw=grid).pooler_output)
print("as it should")
"""


@pytest.mark.parametrize("family", [QWEN, GLM])
def test_words_and_pictures_become_embeddings(family: str) -> None:
    """In a process of its own: verl is changed for good."""
    code = f"import torch{family}import {MODULE}{BLIND}{SEEING}"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told.stdout.endswith("as it should\n"), told.stderr[-2000:]


def test_every_process_with_a_model_imports_what_mends_it(tmp_path: Path) -> None:
    made = trainer(config(tmp_path), TwoLooks(pictures=False)).config
    assert (made.actor_rollout_ref.model.external_lib, made.critic.model.external_lib) == (MODULE, MODULE)
    key = "actor_rollout_ref.model.external_lib"
    for own in ("json", ["json", "csv"]):
        made = trainer(config(tmp_path), TwoLooks(pictures=False), verl={key: own}).config
        assert list(made.actor_rollout_ref.model.external_lib) == [*([own] if isinstance(own, str) else own), MODULE]
