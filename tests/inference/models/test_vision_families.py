"""Every vision family keeps one contract, from its own files: what the engine samples is what the learner scores."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.inference.models.families_page import PAGE, families_table, refused_table
from tests.inference.models.picture_families import FAMILIES, saved
from tests.inference.models.refused_families import REFUSED
from tests.inference.pictures import picture
from uirl.config import ModelConfig
from uirl.config.sections.model import LoraConfig
from uirl.errors import ContractError
from uirl.images import ImageStore, Screenshot
from uirl.inference import (
    ChatRenderer,
    GenerationRequest,
    LoadedModel,
    Message,
    SamplingParams,
    TransformersInferenceEngine,
    load_model,
)
from uirl.inference.models.loading import hidden_states, pad_sequences
from uirl.learner import Policy, collate
from uirl.types import Sample

PORTRAIT, LANDSCAPE, SMALL = (54, 120), (90, 60), (40, 40)
"""A phone's 1080 x 2400 scaled down, a browser's window, an icon."""

Built = Callable[[str], LoadedModel]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Models by the name of their family, each made once."""
    made: dict[str, LoadedModel] = {}

    def of(name: str) -> LoadedModel:
        if name not in made:
            made[name] = saved(name, tmp_path_factory.mktemp("model"))
        return made[name]

    return of


@pytest.fixture(params=FAMILIES)
def loaded(request: pytest.FixtureRequest, built: Built) -> LoadedModel:
    return built(request.param)


TURNS = (
    [("look at both", (picture(1, PORTRAIT), picture(2, LANDSCAPE))), ("and now", (picture(3, SMALL),)), ("go on", ())],
    [("press ok", (picture(4, LANDSCAPE),)), ("again", (picture(5, PORTRAIT), picture(6, PORTRAIT)))],
)
"""What two users show, turn by turn."""


async def play(loaded: LoadedModel, number: int, engine: TransformersInferenceEngine, *, session: bool) -> Sample:
    """A conversation of several turns, as a sample."""
    chat = ChatRenderer(loaded)
    ids: list[int] = []
    mask: list[bool] = []
    log_probs: list[float] = []
    shown: tuple[Screenshot, ...] = ()
    for turn, (text, images) in enumerate(TURNS[number]):
        message = Message("user", text, images)
        ended = bool(ids) and ids[-1] in loaded.end_ids
        added = chat.following([message], after_end=ended) if turn else chat.whole([message])
        shown += images
        ids, mask, log_probs = ids + added, mask + [False] * len(added), log_probs + [0.0] * len(added)
        sampling = SamplingParams(max_tokens=4, seed=10 * number + turn)
        request = GenerationRequest(tuple(ids), shown, sampling, session_id=f"user {number}" if session else None)
        reply = await engine.generate(request)
        assert reply.log_probs is not None
        assert not (session and turn) or reply.cached_tokens > 0
        ids, mask = ids + list(reply.token_ids), mask + [True] * len(reply.token_ids)
        log_probs += reply.log_probs
    hashes = tuple(image.hash for image in shown)
    nothing, turns = (0.0,) * len(ids), tuple(0 if sampled else -1 for sampled in mask)
    return Sample(tuple(ids), tuple(mask), tuple(log_probs), nothing, turns, images=hashes)


async def conversations(loaded: LoadedModel, *, cache: bool) -> list[Sample]:
    engine = TransformersInferenceEngine(loaded, kv_cache=cache)
    try:
        return list(await asyncio.gather(*[play(loaded, n, engine, session=cache) for n in range(len(TURNS))]))
    finally:
        await engine.close()


def store() -> ImageStore:
    images = ImageStore()
    for turns in TURNS:
        for _, shots in turns:
            for shot in shots:
                images.put(shot)
    return images


async def test_the_learner_scores_what_the_engine_sampled_with_and_without_its_cache(loaded: LoadedModel) -> None:
    samples = await conversations(loaded, cache=True)
    again = await conversations(loaded, cache=False)
    assert [s.token_ids for s in samples] == [s.token_ids for s in again]
    images = store()
    for played in (samples, again):
        batch = collate(loaded, played, images)
        with torch.no_grad():
            scores = Policy(loaded).log_probs_and_values(batch)
        assert scores.log_probs is not None
        assert (scores.log_probs - batch.rollout_log_probs).abs().max() < 1e-4
        assert int(batch.response_mask.sum()) >= 5


def test_what_the_picture_shows_matters(loaded: LoadedModel) -> None:
    chat = ChatRenderer(loaded)
    states = []
    for shot in (picture(1, LANDSCAPE), picture(7, LANDSCAPE)):
        ids = chat.whole([Message("user", "press", (shot,))])
        tokens, positions = pad_sequences(loaded, [ids], [[shot]])
        with torch.no_grad():
            states.append(hidden_states(loaded, tokens, positions, [shot])[0, -1])
    assert not torch.allclose(states[0], states[1], atol=1e-5)


@pytest.mark.parametrize("size", [PORTRAIT, LANDSCAPE, SMALL], ids=str)
def test_the_ids_are_those_of_the_processor_and_counted_without_the_picture(
    loaded: LoadedModel, size: tuple[int, int]
) -> None:
    vision = loaded.vision
    assert vision is not None
    shot = picture(1, size)
    message = Message("user", "press ok", (shot,))
    text = loaded.tokenizer.apply_chat_template([message.as_hf()], tokenize=False, add_generation_prompt=True)
    before, after = text.split(vision.front.word)
    theirs = vision.front.sequence(before, shot.open(), after)["input_ids"][0].tolist()
    ours = ChatRenderer(loaded).whole([message])
    assert ours == theirs
    ((start, end),) = vision.spans(ours, [shot])
    assert vision.tokens_of(size) == end - start == vision.encode([shot])[0].tokens
    assert set(theirs[start:end]) - {vision.image_token_id} <= set(loaded.tokenizer.added_tokens_decoder) | set(
        loaded.tokenizer("\n")["input_ids"]
    )


async def test_adapters_sit_in_the_language_layers_and_learn(loaded: LoadedModel) -> None:
    samples = await conversations(loaded, cache=True)
    own = replace(loaded, model=copy.deepcopy(loaded.model))
    policy = Policy(own, lora_config=LoraConfig(r=2, target="all"))
    where = {name.split(".lora_")[0] for name, _ in policy.adapter_weights()}
    decoder: Any = own.model.get_decoder()  # type: ignore[operator]
    inside = {id(module) for module in decoder.modules()}
    assert where
    assert all(id(own.model.get_submodule(path)) in inside for path in where)
    batch = collate(own, samples, store())

    def loss() -> torch.Tensor:
        scores = policy.log_probs_and_values(batch)
        assert scores.log_probs is not None
        return -scores.log_probs.sum()

    before = loss()
    optimizer = torch.optim.SGD([p for _, p in policy.adapter_weights()], lr=1e-3)
    before.backward()
    assert all(p.grad is None for name, p in own.model.named_parameters() if ".lora_" not in name)
    optimizer.step()
    assert loss() < before


def test_a_saved_model_is_the_same_model(loaded: LoadedModel, tmp_path: Path) -> None:
    loaded.save(tmp_path)
    again = load_model(ModelConfig(local_path=str(tmp_path), device="cpu"))
    shots = [picture(1, PORTRAIT), picture(2, LANDSCAPE)]
    message = Message("user", "press ok", tuple(shots))
    ids = ChatRenderer(loaded).whole([message])
    assert ChatRenderer(again).whole([message]) == ids
    assert again.banned_ids == loaded.banned_ids
    tokens, positions = pad_sequences(loaded, [ids], [shots])
    with torch.no_grad():
        ours, theirs = (hidden_states(model, tokens, positions, shots) for model in (loaded, again))
    assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_a_family_that_cannot_work_is_refused_by_name(name: str, tmp_path: Path) -> None:
    refused = REFUSED[name]
    torch.manual_seed(0)
    refused.write(tmp_path)
    kind = transformers.AutoConfig.from_pretrained(tmp_path).model_type
    config = ModelConfig(local_path=str(tmp_path), device="cpu")
    if refused.by == "at load":
        with pytest.raises(ContractError, match=refused.said) as caught:
            load_model(config)
    else:
        loaded = load_model(config)
        with pytest.raises(ContractError, match=refused.said) as caught:
            TransformersInferenceEngine(loaded)
    assert repr(kind) in str(caught.value)


def test_the_tables_of_the_page_are_up_to_date(built: Built) -> None:
    for table in (families_table(built), refused_table()):
        assert f"\n{table}" in PAGE.read_text(), "python -m tests.inference.models.families_page"
