"""One pretrained model everywhere: engine, learner, HF, peft and the endpoint say the same of it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.learner.worlds import make_config
from tests.patience import PATIENCE
from tests.serving.worlds import ADD, CLIENTS, client_of, user
from tests.training.test_loop import digits, worth
from uirl import ConfigStore, load_config
from uirl.config.sections.model import ModelConfig
from uirl.inference import (
    ChatRenderer,
    GenerationRequest,
    LoadedModel,
    Message,
    SamplingParams,
    TransformersInferenceEngine,
    recompute_with,
)
from uirl.inference.models.loading import load_model
from uirl.inference.models.unpacked import folder_of
from uirl.learner import Policy, export_hf
from uirl.learner.checkpoint import export_peft
from uirl.serving import ModelEndpoint
from uirl.training.loop import RLTrainer

pytestmark = pytest.mark.real
NAME = "uirl/smollm2-135m"
ROOT = Path(__file__).parents[2]
QUESTIONS = ("What is the capital of France?", "Name a fruit.", "What is 2 + 2?")


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(ModelConfig(model_name=NAME, device="cpu"))


def prompt_of(loaded: LoadedModel, question: str) -> tuple[int, ...]:
    return tuple(ChatRenderer(loaded).whole([Message("user", question)]))


async def test_it_says_what_hf_generates(loaded: LoadedModel) -> None:
    engine = TransformersInferenceEngine(loaded)
    greedy = SamplingParams(max_tokens=12, temperature=0.0)
    prompts = [prompt_of(loaded, question) for question in QUESTIONS]
    ours = await asyncio.gather(*[engine.generate(GenerationRequest(prompt, (), greedy)) for prompt in prompts])
    await engine.close()
    for prompt, made in zip(prompts, ours, strict=True):
        theirs = loaded.model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0]
        assert list(made.token_ids) == theirs[len(prompt) :].tolist()
    assert "Paris" in loaded.tokenizer.decode(ours[0].token_ids)


async def test_engine_learner_and_hf_agree_on_log_probs(loaded: LoadedModel) -> None:
    engine, recompute = TransformersInferenceEngine(loaded), recompute_with(loaded)
    for number, question in enumerate(QUESTIONS):
        ids = list(prompt_of(loaded, question))
        for turn in range(3):
            sampling = SamplingParams(max_tokens=24, seed=10 * number + turn)
            made = await engine.generate(GenerationRequest(tuple(ids), (), sampling, f"talk-{number}"))
            ids += made.token_ids
            count = len(made.token_ids)
            with torch.no_grad():
                logits = loaded.model(input_ids=torch.tensor([ids])).logits[0, -count - 1 : -1].clone()
            logits[:, list(loaded.banned_ids)] = float("-inf")
            chosen = torch.tensor(made.token_ids)[:, None]
            theirs = logits.log_softmax(-1).gather(-1, chosen)[:, 0].tolist()
            assert made.log_probs == pytest.approx(theirs, abs=2e-4)
            assert recompute(ids, (), count, sampling) == pytest.approx(theirs, abs=2e-4)
            ids += loaded.tokenizer("\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n").input_ids
    await engine.close()


def test_every_part_of_a_conversation_comes_back(loaded: LoadedModel) -> None:
    chat = ChatRenderer(loaded, tools=[ADD])
    talk = [
        Message("system", "Be brief."),
        Message("user", "What is 41 * 57?"),
        Message("assistant", "<think>\nI should count.\n</think>\n\nLet me see."),
        Message("user", "Well?"),
    ]
    text = loaded.tokenizer.decode(chat.whole(talk))
    places = [text.index(part) for part in ("Be brief.", '"add"', "41 * 57", "I should count.", "Let me see.", "Well?")]
    assert places == sorted(places)
    assert text.count("<|im_start|>") == 5
    assert text.endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize("lora", [False, True])
def test_what_is_exported_is_the_same_model_elsewhere(lora: bool, tmp_path: Path) -> None:
    config = make_config(f"model.model_name={NAME}", "model.device=cpu", f"model.use_lora={str(lora).lower()}")
    policy = Policy.from_config(config)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if parameter.requires_grad and ("lora_B" in name or (not lora and "q_proj" in name)):
                parameter.add_(torch.randn_like(parameter), alpha=0.01)
    ids = torch.tensor([prompt_of(policy.loaded, QUESTIONS[0])])
    with torch.no_grad():
        expected = policy.model(input_ids=ids).logits
        export_hf(tmp_path / "hf", policy)
        whole = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()(input_ids=ids).logits
        assert torch.allclose(whole, expected, atol=2e-3)
        original = AutoModelForCausalLM.from_pretrained(folder_of(NAME)).eval()(input_ids=ids).logits
        assert not torch.allclose(original, expected, atol=2e-3)
        if lora:
            from peft import AutoPeftModelForCausalLM

            export_peft(tmp_path / "peft", policy)
            adapted = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "peft").eval()(input_ids=ids).logits
            assert torch.allclose(adapted, expected, atol=2e-3)
    again = AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert again.chat_template == policy.loaded.tokenizer.chat_template


async def test_a_program_for_the_openai_client_asks_it_with_tools(loaded: LoadedModel) -> None:
    engine = TransformersInferenceEngine(loaded)
    async with ModelEndpoint(engine, loaded, any_model=True) as endpoint:
        ask = client_of(endpoint).chat.completions.create
        plain = await ask(model="x", messages=[user(QUESTIONS[0])], max_completion_tokens=16, temperature=0)
        assert "Paris" in plain.choices[0].message.content
        tooled = await ask(
            model="x", messages=[user("Add 2 and 3.")], tools=[ADD], max_completion_tokens=16, temperature=0
        )
        assert tooled.usage.prompt_tokens > plain.usage.prompt_tokens + 50
    while CLIENTS:
        await CLIENTS.pop().close()
    await engine.close()


def run_of(folder: Path) -> ConfigStore:
    """configs/smollm2_tools.yaml with little of everything, saved after every update."""
    few = ("steps=2", "batch_size=4", "demonstrations=8", "evaluate_every=null", "stop_at_success=null")
    return load_config(ROOT / "configs/smollm2_tools.yaml").override(
        [
            *(f"training.warm_start.{one}" for one in few),
            *(
                "training.batch_size=8",
                "training.group_size=4",
                "training.eval_every=null",
                "training.stop_at_success=null",
                "training.eval_episodes=4",
            ),
            *("training.num_epochs=2", "training.num_iters_per_epoch=1", "checkpoint.save_interval=1"),
            *(f"logging.runs_dir={folder}", "logging.run_name=run", "logging.trackers=[]"),
        ]
    )


def train(config: ConfigStore) -> Path:
    trainer = RLTrainer(config, reward_fn=worth)
    try:
        trainer.fit()
    finally:
        trainer.cleanup()
    return config.logging.runs_path / "run" / "metrics.jsonl"


def test_a_killed_run_that_resumes_repeats_every_digit(tmp_path: Path) -> None:
    code = f"from pathlib import Path; from {__name__} import run_of, train; train(run_of(Path({str(tmp_path)!r})))"
    killed = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL)
    log, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 10 * PATIENCE
    while time.monotonic() < deadline and not (log.exists() and log.read_bytes().count(b"\n") >= 3):
        assert killed.poll() is None
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    again = run_of(tmp_path)
    again.checkpoint.resume = True
    rows = digits(train(again))
    assert [row["optimizer_steps"] for row in rows] == [1, 1]
    assert rows == digits(train(run_of(tmp_path / "whole")))
