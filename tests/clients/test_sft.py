"""What `uirl export --to sft` writes, in the loader of datasets and in TRL's own SFTTrainer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from uirl.config import TinyConfig
from uirl.images import screenshot
from uirl.inference.models.tiny import build_tiny
from uirl.storage import TrajectoryStore, export_sft
from uirl.types import Action, Observation, Task, ToolResult, Trajectory, Turn

pytestmark = pytest.mark.clients

CLICK = '{"action":"click","x":3,"y":4}'
CALL = '<tool_call>\n{"name": "lookup", "arguments": {"key": "fig"}}\n</tool_call>'
SIZES = [(56, 56), (84, 28), (108, 240)]

LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Looks it up.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}, "n": {"enum": ["1", "2"]}}},
    },
}

# what loaders like to take for something else
TALKS = [
    [("7", (), "8"), ("higher", (), "9")],
    [('{"a": 1}', (), CLICK), ("[1, 2]", (), "true")],
    [("2024-01-02", (), "2024-01-03T04:05:06"), ("", (), "null")],
    [("what is a fig?", (), CALL), ("", ('{"kind": "fruit"}', "12"), "fruit"), ("sure?", ("yes",), "1e5")],
]


def picture(size: tuple[int, int]) -> Any:
    from PIL import Image

    return screenshot(Image.effect_noise(size, 60).convert("RGB"))


def trajectories(pictures: bool) -> list[Trajectory]:
    """The talks as solved episodes; `pictures`: each turn but those of the first talk shows one, or two."""
    made = []
    for n, talk in enumerate(TALKS):
        turns = []
        for at, (text, answers, reply) in enumerate(talk):
            shown = [picture(size) for size in SIZES[: 1 + at % 2]] if pictures and n else []
            results = tuple(ToolResult("lookup", {}, result=answer) for answer in answers)
            turns.append(Turn(Observation(text, tuple(shown), tool_results=results), action=Action(reply), reward=0.5))
        made.append(Trajectory(f"t{n}", Task(f"{n}"), turns, stop_reason="terminated", metrics={"success": 1.0}))
    return made


def exported(tmp_path: Path, *, pictures: bool, each_reply: bool = False, tools: Any = ()) -> Path:
    file = tmp_path / "sft.jsonl"
    with TrajectoryStore(tmp_path / "trajectories.sqlite") as store:
        store.add_many(trajectories(pictures), step=1)
        export_sft(store, file, system_prompt="be brief", each_reply=each_reply, tools=tools)
    return file


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def bare(row: Any) -> Any:
    """A row without what a loader adds: the fields of other parts, which are None."""
    if isinstance(row, dict):
        return {key: bare(value) for key, value in row.items() if value is not None}
    return [bare(value) for value in row] if isinstance(row, list) else row


LOAD = """
import json, sys
from datasets import Image, Sequence, load_dataset
rows = load_dataset("json", data_files=sys.argv[1], split="train")
print(json.dumps(list(rows)))
if "images" in rows.column_names:
    here = sys.argv[1].rpartition("/")[0]
    rows = rows.map(lambda row: {"images": [f"{here}/{path}" for path in row["images"]]})
    rows = rows.cast_column("images", Sequence(Image()))
    print(json.dumps([[image.size for image in row["images"]] for row in rows]))
"""


@pytest.mark.parametrize("version", ["3.6", "4.5", "5.2"])
@pytest.mark.parametrize("each_reply", [False, True])
@pytest.mark.parametrize("pictures", [False, True])
def test_datasets_loads_every_row_as_it_is(tmp_path: Path, version: str, each_reply: bool, pictures: bool) -> None:
    file = exported(tmp_path, pictures=pictures, each_reply=each_reply, tools=[LOOKUP])
    older = Path(sys.prefix) / f"datasets-{version}"
    path = os.pathsep.join(filter(None, [str(older) if older.is_dir() else "", os.environ.get("PYTHONPATH", "")]))
    code = f"import datasets; assert datasets.__version__.startswith({version!r}), datasets.__version__\n{LOAD}"
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    loaded, *sizes = map(json.loads, done.stdout.splitlines())
    wanted = rows_of(file)
    assert bare(loaded) == wanted
    if sizes:
        assert [len(row["images"]) for row in wanted] == [len(row) for row in sizes[0]]
        assert {tuple(size) for row in sizes[0] for size in row} == set(SIZES[:2])


def trainer_of(model: Any, processing_class: Any, rows: Any, folder: Path, **options: Any) -> Any:
    from trl import SFTConfig, SFTTrainer

    args = SFTConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_length=None,
        per_device_train_batch_size=2,
        max_steps=1,
        learning_rate=1e-3,
        warmup_steps=0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        shuffle_dataset=False,
        seed=0,
        **options,
    )
    return SFTTrainer(model, args=args, train_dataset=rows, processing_class=processing_class)


def takes_a_step(trainer: Any) -> None:
    before = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.train()
    (loss,) = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert 0 < loss < 20
    after = trainer.model.parameters()
    assert any((a != b).any() for a, b in zip(before, after, strict=True))


def loss_falls_on(tokenizer: Any, ids: Any, labels: Any) -> list[str]:
    """The stretches of a sequence that are trained on, as texts."""
    stretches: list[list[int]] = []
    inside = False
    for token, label in zip(list(ids), list(labels), strict=True):
        if label != -100:
            assert label == token
            if not inside:
                stretches.append([])
            stretches[-1].append(int(token))
        inside = label != -100
    return [tokenizer.decode(stretch) for stretch in stretches]


def load(file: Path) -> Any:
    from datasets import Image, Sequence, load_dataset

    rows = load_dataset("json", data_files=str(file), split="train")
    if "images" in rows.column_names:
        rows = rows.map(lambda row: {"images": [str(file.parent / path) for path in row["images"]]})
        rows = rows.cast_column("images", Sequence(Image()))
    return rows


def text_model(template: str) -> tuple[Any, Any]:
    from trl import chat_template_utils

    model, tokenizer, _ = build_tiny("uirl/tiny-lm", TinyConfig(vocab_size=640, hidden_size=64), seed=0)
    tokenizer.chat_template = getattr(chat_template_utils, template)
    return model, tokenizer


# Qwen3's template begins every reply with an empty thought where it has none
@pytest.mark.parametrize(
    ("template", "before"), [("qwen2_5_chat_template", "\n"), ("qwen3_chat_template", "<think>\n\n</think>\n\n")]
)
def test_trl_trains_on_the_replies_of_whole_episodes(tmp_path: Path, template: str, before: str) -> None:
    model, tokenizer = text_model(template)
    rows = load(exported(tmp_path, pictures=False))
    trainer = trainer_of(model, tokenizer, rows, tmp_path / "out", assistant_only_loss=True)
    seen = [loss_falls_on(tokenizer, row["input_ids"], row["labels"]) for row in trainer.train_dataset]
    assert seen == [[f"{before}{reply}<|im_end|>\n" for _, _, reply in talk] for talk in TALKS]
    shown = [tokenizer.decode(row["input_ids"]) for row in trainer.train_dataset]
    for text, talk in zip(shown, TALKS, strict=True):
        assert text.startswith("<|im_start|>system\nbe brief<|im_end|>\n")
        for said, answers, _ in talk:
            assert f"<|im_start|>user\n{said}<|im_end|>" in text or (answers and not said)
            assert all(f"<tool_response>\n{answer}\n</tool_response>" in text for answer in answers)
    takes_a_step(trainer)


def test_trl_shows_the_tools_that_the_policy_was_shown(tmp_path: Path) -> None:
    model, tokenizer = text_model("qwen2_5_chat_template")
    rows = load(exported(tmp_path, pictures=False, each_reply=True, tools=[LOOKUP]))
    trainer = trainer_of(model, tokenizer, rows, tmp_path / "out")
    shown = tokenizer.decode(trainer.train_dataset[-1]["input_ids"])
    assert f"<tools>\n{json.dumps(LOOKUP)}\n</tools>" in shown
    assert f"assistant\n{CALL}<|im_end|>\n<|im_start|>user\n<tool_response>\n" in shown


def test_trl_trains_on_one_reply_at_a_time(tmp_path: Path) -> None:
    model, tokenizer = text_model("qwen2_5_chat_template")
    rows = load(exported(tmp_path, pictures=False, each_reply=True))
    trainer = trainer_of(model, tokenizer, rows, tmp_path / "out")
    seen = [loss_falls_on(tokenizer, row["input_ids"], row["labels"]) for row in trainer.train_dataset]
    assert seen == [[f"{reply}<|im_end|>\n"] for talk in TALKS for _, _, reply in talk]
    takes_a_step(trainer)


def picture_model() -> tuple[Any, Any]:
    from trl.chat_template_utils import qwen2_5_vl_chat_template

    from tests.inference.processors import Qwen2_5_VLProcessor

    sizes = TinyConfig(vocab_size=640, architecture="qwen2_5_vl")
    model, tokenizer, images = build_tiny("uirl/tiny-vlm", sizes, seed=0)
    return model, Qwen2_5_VLProcessor(images, tokenizer, chat_template=qwen2_5_vl_chat_template)


@pytest.mark.parametrize("each_reply", [False, True])
def test_trl_sees_the_pictures_of_an_episode(tmp_path: Path, each_reply: bool) -> None:
    model, processor = picture_model()
    file = exported(tmp_path, pictures=True, each_reply=each_reply)
    trainer = trainer_of(model, processor, load(file), tmp_path / "out")
    shown = 0
    for batch in trainer.get_train_dataloader():
        at = batch["input_ids"] == processor.image_token_id
        if "pixel_values" in batch:
            shown += len(batch["image_grid_thw"])
            assert int(at.sum()) == int(batch["image_grid_thw"].prod(dim=1).sum()) // 4
        else:
            assert not at.any()
    assert shown == sum(len(row["images"]) for row in rows_of(file)) > 0
    takes_a_step(trainer)


def test_trl_puts_the_loss_on_the_reply_to_a_picture(tmp_path: Path) -> None:
    model, processor = picture_model()
    rows = load(exported(tmp_path, pictures=True, each_reply=True))
    trainer = trainer_of(model, processor, rows, tmp_path / "out")
    seen = []
    for row in rows:
        batch = trainer.data_collator([dict(row)])
        seen.append(loss_falls_on(processor.tokenizer, batch["input_ids"][0], batch["labels"][0]))
    talks = [*TALKS[1:], TALKS[0]]  # what has no picture comes last
    assert seen == [[f"{reply}<|im_end|>\n"] for talk in talks for _, _, reply in talk]
