"""`uirl check --record`: each fault is planted once in a sound dump and named; sound dumps are blamed for nothing.

The traces were recorded from verifiers' own classes (tests/originals/record_verifiers.py). Rows of TRL and verl are
made here as their code makes them; tests/clients/test_trl_dump.py writes TRL's files with pandas.
"""

from __future__ import annotations

import base64
import copy
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from uirl.cli.main import main
from uirl.errors import ConfigError
from uirl.storage import dumps
from uirl.storage.dump_faults import FAULTS, DumpReport, check_dump

TRACES = Path(__file__).parent.parent / "originals" / "recordings" / "verifiers_traces.jsonl"
END, PICTURE = 2, 6
Rows = list[dict[str, Any]]


def recorded() -> Rows:
    return [json.loads(line) for line in TRACES.read_text().splitlines()]


def written(folder: Path, rows: Iterable[Any], name: str = "train_rollouts.jsonl") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def sampled(row: dict[str, Any], which: int = 0) -> dict[str, Any]:
    return [node for node in row["nodes"] if node["sampled"]][which]


def node_of(row: dict[str, Any], role: str) -> dict[str, Any]:
    return next(node for node in row["nodes"] if node["message"]["role"] == role)


def without_placeholders(role: str) -> Callable[[Rows], None]:
    def plant(rows: Rows) -> None:
        node = node_of(rows[1], role)
        kept = [id for id in node["token_ids"] if id != PICTURE]
        node["token_ids"], node["mask"] = kept, node["mask"][: len(kept)]

    return plant


def blank(rows: Rows) -> None:
    from PIL import Image

    Image.new("RGB", (6, 6)).save(buffer := io.BytesIO(), "PNG")
    url = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    for i, part in enumerate(
        part
        for row in rows
        for node in row["nodes"]
        for part in node["message"]["content"] or ()
        if isinstance(part, dict) and part["type"] == "image_url"
    ):
        part["image_url"]["url"] = url + " " * i  # not the same text


def fed_again(rows: Rows, thought: str | None) -> None:
    """Have the first reply of a trace, and the tool's answer, stand in a branch of their own with other tokens."""
    row = rows[2]
    first = row["nodes"].index(sampled(row))
    tool = row["nodes"].index(node_of(row, "tool"))
    reply, answer = copy.deepcopy(row["nodes"][first]), copy.deepcopy(row["nodes"][tool])
    reply["sampled"], reply["logprobs"], reply["mask"] = False, [], []
    reply["trainer_logprobs"] = reply["advantages"] = None
    if thought is None:
        reply["message"]["reasoning_content"] = None
        reply["token_ids"] = [id for id in reply["token_ids"] if id < 100]
    else:
        reply["token_ids"] = [*reply["token_ids"][:5], 999, *reply["token_ids"][5:]]
    reply["mask"] = [False] * len(reply["token_ids"])
    for node in row["nodes"]:
        if node["parent"] == tool:
            node["parent"] = len(row["nodes"]) + 1
    answer["parent"] = len(row["nodes"])
    row["nodes"] += [reply, answer]
    ordered(row)


def ordered(row: dict[str, Any]) -> None:
    """Have parents stand before their children again."""
    order: list[int] = []
    while len(order) < len(row["nodes"]):
        ready = [i for i, node in enumerate(row["nodes"]) if node["parent"] in (None, *order)]
        order += [i for i in ready if i not in order]
    places = {old: new for new, old in enumerate(order)}
    row["nodes"] = [row["nodes"][i] | {"parent": places.get(row["nodes"][i]["parent"])} for i in order]
    for call in row["calls"]:
        call["node"] = places[call["node"]]


def end_unlearned(rows: Rows) -> None:
    for row in rows:
        for node in row["nodes"]:
            if node["sampled"]:
                node["mask"][-1] = False
                for name in ("logprobs", "trainer_logprobs", "advantages"):
                    node[name] = node[name][:-1]


def end_not_there(rows: Rows) -> None:
    end_unlearned(rows)
    for row in rows:
        for node in row["nodes"]:
            if node["sampled"]:
                node["token_ids"].pop()
                node["mask"].pop()
                node["token_ids"][-1] = 300 + len(node["token_ids"]) % 9  # the last letters of replies differ


def mask_shifted(rows: Rows) -> None:
    for row in rows:
        for node in row["nodes"]:
            if node["sampled"]:
                node["mask"] = [*node["mask"][1:], False]


def mask_of_the_user(rows: Rows) -> None:
    node_of(rows[0], "user")["mask"][-1] = True


def padded_log_probs(rows: Rows) -> None:
    sampled(rows[3])["logprobs"].append(0.0)


def temperature_missing(rows: Rows) -> None:
    for row in rows:
        for node in row["nodes"]:
            if node["sampled"]:
                node["trainer_logprobs"] = [0.6 * value - 0.1 for value in node["logprobs"]]


def another_policy(rows: Rows) -> None:
    for row in rows:
        for i, node in enumerate(row["nodes"]):
            if node["sampled"]:
                node["trainer_logprobs"] = [-0.7 * ((i + k) % 5) - 0.1 for k in range(len(node["logprobs"]))]


def advantages_swapped(rows: Rows) -> None:
    values = [sampled(rows[i])["advantages"][0] for i in (1, 2)]
    for row, value in zip(rows[1:3], reversed(values), strict=True):
        for node in row["nodes"]:
            if node["sampled"]:
                node["advantages"] = [value] * len(node["advantages"])


def begun_twice(rows: Rows) -> None:
    root = rows[4]["nodes"][0]
    root["token_ids"], root["mask"] = [root["token_ids"][0], *root["token_ids"]], [False, *root["mask"]]


def cut_as_ended(rows: Rows) -> None:
    row = next(row for row in rows if row["calls"][-1]["finish_reason"] == "length")
    node = row["nodes"][row["calls"][-1]["node"]]
    node["token_ids"].append(END)
    node["mask"].append(True)
    for name in ("logprobs", "trainer_logprobs", "advantages"):
        node[name].append(node[name][-1])


PLANTED: dict[str, tuple[str, Callable[[Rows], None]]] = {
    "a user's pictures": ("pictures lost", without_placeholders("user")),
    "a tool's pictures": ("pictures in tool messages dropped", without_placeholders("tool")),
    "one colour": ("blank pictures", blank),
    "text again": ("history made of its text again", lambda rows: fed_again(rows, "kept")),
    "thoughts": ("thoughts dropped between turns", lambda rows: fed_again(rows, None)),
    "end out of the mask": ("end token not learned", end_unlearned),
    "end not there": ("end token not learned", end_not_there),
    "shifted": ("mask not of the sampled tokens", mask_shifted),
    "of the user": ("mask not of the sampled tokens", mask_of_the_user),
    "padded": ("mask not of the sampled tokens", padded_log_probs),
    "temperature": ("engine and trainer disagree", temperature_missing),
    "another policy": ("engine and trainer disagree", another_policy),
    "swapped": ("reward of another member", advantages_swapped),
    "begun twice": ("double bos", begun_twice),
    "cut": ("cut replies learned from as ended", cut_as_ended),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_named(name: str, tmp_path: Path) -> None:
    fault, plant = PLANTED[name]
    rows = recorded()
    plant(rows)
    report = check_dump(written(tmp_path, rows))
    assert fault in report.shown, str(report)
    others = {
        "end token not learned": {"mask not of the sampled tokens"},
        "mask not of the sampled tokens": {"end token not learned"},
    }
    assert report.shown.keys() - {fault} <= others.get(fault, set()), str(report)


def seen(report: DumpReport) -> set[str]:
    return {fault for fault in FAULTS if report.over[fault]}


def test_sound_traces_are_blamed_for_nothing(tmp_path: Path) -> None:
    report = check_dump(TRACES)
    assert not report.shown, str(report)
    assert seen(report) == FAULTS.keys() - {"held-out questions in training", "success is always or never paid"}
    assert report.over["engine and trainer disagree"] > 100
    assert "groups without signal: 0 of 2" in str(report)
    assert "2 replies were cut by length, 22 ended" in str(report)


def test_episodes_of_prime_rl_are_read_once_and_evaluations_never(tmp_path: Path) -> None:
    rows = recorded()
    episodes = [{"id": str(i), "group": {"id": str(i // 4)}, "traces": [row]} for i, row in enumerate(rows)]
    advantages_swapped(rows)
    for subset in ("all", "effective"):
        written(tmp_path, episodes, f"step_3/train/{subset}/traces.jsonl")
    written(tmp_path, [{"nodes": "no list"}], "step_3/eval/all/traces.jsonl")
    report = check_dump(tmp_path)
    assert len(report.replies) == 8
    assert report.shown.keys() == {"reward of another member"}
    assert "step_3/train/effective/traces.jsonl line 2" in str(report)


def test_what_is_legitimate_is_not_blamed(tmp_path: Path) -> None:
    """A penalty on length, a critic's credit of each token, no scaling, staleness, agents that are not trained, engines
    without tokens, stop strings, one colour a picture."""
    rows = recorded()
    for i, row in enumerate(rows):
        for node in row["nodes"]:
            if node["sampled"] and i < 4:  # of its reward and its length
                node["advantages"] = [value - 0.1 * (i % 3) for value in node["advantages"]]
            elif node["sampled"]:
                node["advantages"] = [value + 0.1 * k for k, value in enumerate(node["advantages"])]
            if node["sampled"]:
                node["trainer_logprobs"] = [value - 0.15 * (k % 2) for k, value in enumerate(node["logprobs"])]
    report = check_dump(written(tmp_path, rows))
    assert not report.shown, str(report)
    assert not report.over["reward of another member"]
    rows = recorded()
    mask_shifted(rows)
    for row in rows:
        row["agent"]["trainable"] = False
    rows += recorded()[:1]
    assert not check_dump(written(tmp_path, rows)).shown
    rows = recorded()
    for row in rows:
        for node in row["nodes"]:
            node |= {"token_ids": [], "mask": [], "logprobs": [], "trainer_logprobs": None, "advantages": None}
    report = check_dump(written(tmp_path, rows))
    assert not report.shown
    assert seen(report) == {"blank pictures"}
    rows = recorded()
    end_not_there(rows)
    for row in rows:
        for call in row["calls"]:
            call["sampling"] = {"stop": ["</answer>"]}
    assert not check_dump(written(tmp_path, rows)).shown
    rows = recorded()
    advantages_swapped(rows)
    assert not check_dump(written(tmp_path, rows[1:3])).shown  # of two, lengths may have turned the order
    rows = recorded()
    for row in rows:
        for node in row["nodes"]:
            for part in node["message"]["content"] or ():
                if isinstance(part, dict) and "image_url" in part:
                    part["image_url"] = "file:///gone.png"
    assert not check_dump(written(tmp_path, rows)).over["blank pictures"]


def verl(count: int = 64) -> Rows:
    """As `_dump_generations` of verl writes a step: text without special tokens, in any order."""
    return [
        {
            "input": f"system\nYou add.\nuser\nwhat is {i % 16} + 1?\nassistant\n",
            "output": f"{i}",
            "gts": str(i % 16 + 1),
            "score": float(i % 3 == 0),
            "step": 1,
            "acc": i % 3 == 0,
            "request_id": f"r{i}",
        }
        for i in range(count)
    ]


def test_of_verl_what_is_paid_and_what_is_held_out(tmp_path: Path) -> None:
    path = written(tmp_path, verl(), "1.jsonl")
    held_out = written(tmp_path, [{"question": "what is 3  + 1?"}, {"question": "what is 99 + 1?"}], "held.jsonl")
    report = check_dump(path)
    assert not report.shown
    assert seen(report) == {"success is always or never paid"}
    report = check_dump(path, held_out)
    assert [*report.shown] == ["held-out questions in training"]
    assert "1.jsonl line 4: the question 'what is 3 + 1?' is held out" in str(report)
    assert check_dump(path, written(tmp_path, verl()[:1], "val/0.jsonl")).shown
    assert not check_dump(path, written(tmp_path, [{"question": "what is 3"}], "held.jsonl")).shown
    for row in (rows := verl()):
        row["score"] = 0.0
    report = check_dump(written(tmp_path, rows, "1.jsonl"))
    assert [*report.shown] == ["success is always or never paid"]
    assert not check_dump(written(tmp_path, rows[:32], "1.jsonl")).shown


def test_of_verl_the_same_words_about_other_pictures_are_not_blamed(tmp_path: Path) -> None:
    rows = verl()
    for row in rows:
        row["input"] = "user\nwhat is shown?\nassistant\n"
    held_out = written(tmp_path, [{"prompt": [{"role": "user", "content": "what is shown?"}]}], "held.jsonl")
    assert not check_dump(written(tmp_path, rows, "1.jsonl"), held_out).shown


def test_of_verl_scores_may_be_missing_or_no_number(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    path.write_text("\n".join(json.dumps({**row, "score": float("nan")}) for row in verl()) + "\n")
    assert not check_dump(path).shown


def trl(groups: int = 8, size: int = 4) -> Rows:
    """As TRL's GRPOTrainer makes its table: groups after each other, rewards, what was logged, the advantage."""
    rows = []
    for group in range(groups):
        rewards = [float((group + 2 * i) % 5) for i in range(size)]
        mean = sum(rewards) / size
        spread = (sum((one - mean) ** 2 for one in rewards) / (size - 1)) ** 0.5
        rows += [
            {
                "step": 1,
                "prompt": [{"role": "user", "content": f"question {group}"}],
                "completion": [{"role": "assistant", "content": f"{group} {i}"}],
                "accuracy": reward,
                "answer": "x",
                "advantage": (reward - mean) / (spread + 1e-4),
            }
            for i, reward in enumerate(rewards)
        ]
    return rows


@pytest.fixture
def as_parquet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Rows], DumpReport]:
    """Reads rows as if pyarrow had: it may be missing here."""

    def check(rows: Rows, **options: Any) -> DumpReport:
        path = tmp_path / "out" / "completions" / "completions_00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        monkeypatch.setattr(dumps, "parquet_rows", lambda source: iter(rows))
        return check_dump(tmp_path / "out", **options)

    return check


def test_of_trl_whose_reward_an_advantage_is(as_parquet: Any, tmp_path: Path) -> None:
    report = as_parquet(trl())
    assert not report.shown, str(report)
    assert report.over["reward of another member"] == 32
    assert seen(report) == {"reward of another member"}
    rows = trl()
    rows[5]["advantage"], rows[6]["advantage"] = rows[6]["advantage"], rows[5]["advantage"]
    assert "completions_00001.parquet row 6: the reward 0 has the advantage" in str(as_parquet(rows))
    rows = trl()
    for row in rows[8:12]:
        row["advantage"] += 0.5
    assert "the advantages of 4 replies to one prompt sum to 2; expected 0" in str(as_parquet(rows))
    held_out = written(tmp_path, [{"prompt": "question 3"}], "held.jsonl")
    assert [*as_parquet(trl(), held_out=held_out).shown] == ["held-out questions in training"]


def test_of_trl_what_is_legitimate_is_not_blamed(as_parquet: Any, tmp_path: Path) -> None:
    for row in (rows := trl()):  # two functions, whose weights nobody knows
        row["advantage"], row["brevity"] = row.pop("advantage"), 0.5
        row["advantage"] = row.pop("advantage")
    assert not as_parquet([rows[i] | {"advantage": -rows[i]["advantage"]} for i in range(32)]).shown
    for row in (rows := trl()):  # the same words about other pictures: groups cannot be told apart
        row["prompt"] = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is it?"}]}]
    held_out = written(tmp_path, [{"prompt": "what is it?"}], "held.jsonl")
    assert not as_parquet(rows, held_out=held_out).shown
    assert not as_parquet(trl()[3:]).shown  # the newest rows alone
    for row in (rows := trl()):  # Dr. GRPO: the standard deviation left out
        row["advantage"] *= 3.7
    assert not as_parquet(rows).shown
    rows = trl()
    rows[2]["accuracy"] = None  # a function that does not apply
    assert not as_parquet(rows).shown
    for row in rows:
        del row["advantage"]
    assert not as_parquet(rows).shown


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "line 1 is not JSON"),
        ("[" * 100_000, "nested too deep"),
        ("[1]", "has no columns; expected one of: TRL: completion, prompt, step"),
        ('{"a": 1, "b": 2}', "has 'a', 'b'; expected one of"),
        ('{"nodes": [{"message": {"role": 1}}]}', "Expected `str`, got `int`"),
        ('{"nodes": [{"message": {"role": "user"}, "parent": 3}]}', "a node before its parent"),
        ('{"nodes": [{"message": {"role": "user"}, "token_ids": [99999999999]}]}', "Expected `int` <"),
        ('{"nodes": [{"message": {"role": "user"}, "parent": "\\ud800"}]}', "surrogates not allowed"),
        ("", "holds no rollout"),
    ],
)
def test_what_is_broken_is_named(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=told.replace("[", r"\[")):
        check_dump(tmp_path / "1.jsonl")


def test_stop_strings_in_any_form_end_replies(tmp_path: Path) -> None:
    for sampling in ({"stop": "</answer>"}, {"extra_body": {"stop_token_ids": [5]}}):
        rows = recorded()
        end_not_there(rows)
        for row in rows:
            for call in row["calls"]:
                call["sampling"] = sampling
        assert not check_dump(written(tmp_path, rows)).shown


def test_a_question_that_begins_with_a_token_twice_is_no_second_beginning(tmp_path: Path) -> None:
    rows = recorded()
    for i, row in enumerate(rows):  # prompts without a template: 11 + 5, 23 + 5
        row["nodes"][0]["token_ids"][:3] = [20 + i, 20 + i, 40]
    assert not check_dump(written(tmp_path, rows)).shown


@pytest.mark.parametrize("folder", ["val", "validation_data", "Eval-0", "evaluations"])
def test_what_was_played_to_validate_is_no_training(folder: str, tmp_path: Path) -> None:
    questions = written(tmp_path, [{"question": "what is 99 + 1?"}], "held.jsonl")
    written(tmp_path, verl(), "rollouts/1.jsonl")
    row = verl(1)[0]
    written(tmp_path, [row | {"input": row["input"].replace("0 + 1", "99 + 1")}], f"{folder}/1.jsonl")
    report = check_dump(tmp_path, questions)
    assert (len(report.replies), report.shown) == (64, {})
    assert check_dump(tmp_path / folder, questions).shown


def test_a_question_is_found_where_no_line_begins_with_its_header(tmp_path: Path) -> None:
    row = verl(1)[0] | {"input": "system\n\nYou add.user\n\nwhat is 3 + 1?assistant\n\n"}  # Llama 3
    held_out = written(tmp_path, [{"question": "what is 3 + 1?"}], "held.jsonl")
    assert check_dump(written(tmp_path, [row], "1.jsonl"), held_out).shown


def test_white_space_is_read_once() -> None:
    started = time.perf_counter()
    assert dumps.question_of("a\nuser\nq" + " " * 300_000 + "x\nassistant\n<think>\n") == "q x"
    assert dumps.question_of("a" + "\n" * 300_000 + "user\nq") == "q"
    assert time.perf_counter() - started < 5  # it was a matter of minutes


def test_a_line_without_end_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "LINE", dumps.Limits(size=1000, items=100))
    (tmp_path / "1.jsonl").write_text('{"input": "' + "x" * 5000 + '"}')
    with pytest.raises(ConfigError, match="has 1002 bytes; expected at most 1000"):
        check_dump(tmp_path)


def test_a_folder_without_a_dump_and_what_is_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no file of a dump"):
        check_dump(tmp_path)
    with pytest.raises(ConfigError, match="does not exist"):
        check_dump(tmp_path / "no")
    path = written(tmp_path, verl(), "1.jsonl")
    with pytest.raises(ConfigError, match="holds no question"):
        check_dump(path, written(tmp_path, [{"label": 1}], "held.jsonl"))


def test_the_command_says_what_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--record", str(TRACES)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("8 rollouts, written as a trace: ")
    assert "none    double bos: in none of 8\n" in said
    assert "unseen  held-out questions in training: this dump cannot show it; name a file" in said
    rows = recorded()
    begun_twice(rows)
    assert main(["check", "--record", str(written(tmp_path, rows))]) == 1
    assert "SHOWN   double bos: 1 of 8; the first: train_rollouts.jsonl line 5" in capsys.readouterr().out
    assert main(["check", "--record", str(TRACES), "screen"]) == 2
    assert main(["check", "--held-out", str(TRACES)]) == 2


def test_no_torch_is_needed() -> None:
    code = f"import sys; from uirl.cli.main import main; main(['check', '--record', {str(TRACES)!r}]); "
    done = subprocess.run(
        [sys.executable, "-c", code + "print('torch' in sys.modules)"], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("False\n")
