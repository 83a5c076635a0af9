"""New weights and adapters reach SGLang, and nothing older is sampled from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.conftest import tiny_model
from tests.inference.prompts import gap_of
from tests.inference.sglang.stand_in_sglang import ASKED
from uirl.config import ConfigStore
from uirl.errors import ContractError, EngineFailure
from uirl.inference import LoadedModel
from uirl.learner import Policy
from uirl.training import RayPPOTrainer


@pytest.mark.parametrize(("where", "kind"), [("server", "lm"), ("process", "vlm")])
async def test_an_update_replaces_the_weights_and_drops_the_cache(make: Any, where: str, kind: str) -> None:
    name = f"uirl/tiny-{kind}"
    world, trained = make(where, tiny_model(name)), tiny_model(name, init_seed=5)
    before = await world.engine.generate(ASKED)
    assert before.policy_version == 0
    await world.engine.update_weights(trained.model.named_parameters(), version=3)
    assert world.engine.policy_version == 3
    longer = replace(ASKED, prompt_ids=(*ASKED.prompt_ids, *before.token_ids, 14))
    after = await world.engine.generate(longer)
    assert after.policy_version == 3
    assert after.cached_tokens == 0
    assert gap_of(trained, longer, after) < 1e-5
    assert not list(world.engine._files.path.glob("0*"))  # nothing of it stays behind
    with pytest.raises(ContractError, match="send weights"):
        await world.engine.update_weights(None, version=4)
    with pytest.raises(ContractError, match="does not have"):
        await world.engine.update_weights([("nonsense.weight", torch.zeros(1))], version=4)
    with pytest.raises(ContractError, match="takes no adapters"):
        await world.engine.update_weights([], version=4, adapter={})
    assert (await world.engine.generate(longer)).policy_version == 3


@pytest.mark.parametrize("where", ["server", "process"])
async def test_adapters_are_swapped(make: Any, where: str) -> None:
    config = ConfigStore()
    config.model.model_name, config.model.use_lora = "uirl/tiny-lm", True
    config.model.lora.r, config.model.lora.lora_alpha = 4, 16
    world = make(where, tiny_model("uirl/tiny-lm"), lora=True)
    assert world.engine.takes_adapters
    policy = Policy.from_config(config)
    asked = replace(ASKED, session_id="s")
    for version in range(4):
        with torch.no_grad():
            for tensor_name, tensor in policy.adapter_weights():
                tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(version)))
                assert ".lora_" in tensor_name
        weights, adapter = policy.update_for(world.engine)
        assert adapter is not None
        await world.engine.update_weights(weights, version, adapter=adapter)
        made = await world.engine.generate(asked)
        assert made.policy_version == version
        assert made.cached_tokens == 0  # what the adapter before has cached is not taken
        assert gap_of(policy.loaded, asked, made) < 1e-5
        assert len(world.logic.brain.adapters) == min(version + 1, 2)
        assert len(list(world.engine._files.path.glob("0*"))) == min(version + 1, 2)
    await world.engine.update_weights(policy.weights(), 9)
    assert not world.logic.brain.adapters
    assert (await world.engine.generate(asked)).policy_version == 9


@pytest.mark.parametrize("lora", [False, True])
def test_a_run_trains_through_it(make: Any, lora: bool, tmp_path: Any) -> None:
    config = ConfigStore()
    config.model.model_name, config.model.device, config.model.use_lora = "uirl/tiny-lm", "cpu", lora
    config.environment.name, config.training.warm_start.enabled = "guess_number", False
    config.training.batch_size, config.training.group_size, config.training.eval_episodes = 8, 4, 2
    config.inference.backend, config.inference.max_tokens, config.inference.max_turns = "sglang", 4, 1
    config.logging.runs_dir = str(tmp_path)
    server = make("server", tiny_model("uirl/tiny-lm"), lora=lora).server
    config.inference.server_url = server.url
    # what an untrained model gets different rewards for
    trainer = RayPPOTrainer(config, reward_fn=lambda record: float(record.turns[0].response_ids[0] % 7))
    try:
        trainer.fit(1, 2)
        assert trainer.learner.version == 2
        engine, loaded = trainer._parts.engine, trainer.learner.policy.loaded
        made = trainer._loop.run(engine.generate(ASKED))
    finally:
        trainer.cleanup()
    assert made.policy_version == 2
    assert gap_of(loaded, ASKED, made) < 1e-5
    assert gap_of(tiny_model("uirl/tiny-lm"), ASKED, made) > 1e-3
    assert not server.broken


async def test_an_adapter_does_not_count_twice(make: Any, lm: LoadedModel) -> None:
    world = make("server", lm, lora=True)
    await world.engine.update_weights(lm.model.named_parameters(), version=1)
    with pytest.raises(ContractError, match="would count twice"):
        await world.engine.update_weights([("w", torch.zeros(1))], 2, adapter={"r": 4})


@pytest.mark.parametrize("where", ["server", "process"])
async def test_after_a_failed_update_nothing_is_sampled(
    make: Any, lm: LoadedModel, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(where, lm)
    await world.engine.generate(ASKED)
    with monkeypatch.context() as broken:
        broken.setattr(world.logic, "update_weights_from_disk", lambda body: (False, "Rolling back to original", 0))
        with pytest.raises(EngineFailure, match="Rolling back"):
            await world.engine.update_weights(lm.model.named_parameters(), version=1)
    assert not list(world.engine._files.path.glob("0*"))
    with pytest.raises(EngineFailure, match=r"the last weight update failed .*Rolling back.*push the weights again"):
        await world.engine.generate(ASKED)
    await world.engine.update_weights(lm.model.named_parameters(), version=2)
    assert (await world.engine.generate(ASKED)).policy_version == 2


async def test_the_key_of_another_company_is_not_sent(make: Any, lm: LoadedModel, monkeypatch: Any) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    world = make("server", lm)
    await world.engine.generate(ASKED)
    assert not [seen for seen in world.server.seen if "authorization" in seen.headers]
    monkeypatch.setenv("SGLANG_API_KEY", "ours")
    await world.engine.generate(ASKED)
    assert world.server.seen[-1].headers["authorization"] == "Bearer ours"


async def test_a_server_without_adapters_says_how_to_get_them(make: Any, lm: LoadedModel) -> None:
    world = make("server", lm, lora=True)
    world.logic.lora = False
    with pytest.raises(EngineFailure, match=r"load_lora_adapter failed after 1 try: 400 .*set `--enable-lora`"):
        await world.engine.update_weights([("w", torch.zeros(1))], 1, adapter={"r": 4})
    assert world.engine.policy_version == 0
    assert not list(world.engine._files.path.glob("0*"))


async def test_the_oldest_weights_of_an_answer_count(make: Any, lm: LoadedModel) -> None:
    world = make("server", lm)
    await world.engine.generate(ASKED)
    await world.engine.update_weights(lm.model.named_parameters(), version=1)
    new = world.logic.weight_version
    world.logic.spoil = {"weight_versions": [{"version": "default", "start": 0}, {"version": new, "start": 2}]}
    assert (await world.engine.generate(ASKED)).policy_version == 0
    # a mask without its log-probs tells nothing about a filtered draw
    world.logic.spoil = {"output_token_sampling_logprobs": None}
    filtered = replace(ASKED, sampling=replace(ASKED.sampling, top_k=5))
    assert (await world.engine.generate(filtered)).log_probs is None
    world.logic.spoil = {"output_token_sampling_logprobs": [0.0]}
    with pytest.raises(EngineFailure, match=r"6 entries in meta_info\.output_token_sampling_logprobs"):
        await world.engine.generate(filtered)
