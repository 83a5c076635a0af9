"""The learner's update as a share of what the machine multiplies, beside TRL's GRPOTrainer on the same shapes.

    python -m benchmarks.update                            # ours
    python -m benchmarks.update --trl                      # and TRL's, where it is installed
    python -m benchmarks.update --dtypes bfloat16 --profile ours

A Qwen2 of 103 M parameters with a vocabulary of 32768 words learns from 16 sequences of 192 tokens, of which the last
128 are sampled. One round is a whole `Learner.update` with one minibatch: credit, loss, backward pass, clipping, AdamW.
'recomputed' has the pass for old log-probs besides. TRL's round is `training_step` on inputs that are ready, clipping
and the optimizer's step, without gradient checkpointing; for bfloat16 it computes in autocast, as it does by itself.
Every program is a process of its own; they take turns with the limit: the product of two 2048 x 2048 matrices.
Beside other programs the share by processor time says more than that of the seconds.

Work of a step in floating-point operations, a multiplication and an addition being two:

    3 * (2 * tokens * weights of the layers + 2 * sampled * vocabulary * width
         + sequences * layers * 2 * T * (T + 1) * width)

forward once, backward twice that; the last term is causal attention (half of the matrix, scores and values). A pass for
old log-probs is the bracket once more. Norms, rotations, softmax, padding and the optimizer are no work here.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.pairs import Pair

SEQUENCES, PROMPT, SAMPLED = 16, 64, 128
SIZES = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 11, "num_attention_heads": 12}
VOCABULARY = 32768
TOKENS_AT_ONCE = 4096
EARLIER = "earlier "
SIDE = 2048
"""Of the matrices whose product is the limit."""


def build(dtype: str) -> Any:
    """Return a `LoadedModel` with random weights."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    from uirl.inference.models.loading import wrap_model

    words = {f"w{i}": i for i in range(VOCABULARY - 2)} | {"<pad>": VOCABULARY - 2, "<end>": VOCABULARY - 1}
    raw = Tokenizer(models.WordLevel(words, unk_token="w0"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>", pad_token="<pad>", padding_side="left")
    torch.manual_seed(0)
    ends = {"bos_token_id": None, "eos_token_id": VOCABULARY - 1, "pad_token_id": VOCABULARY - 2}
    config = Qwen2Config(**SIZES, **ends, vocab_size=VOCABULARY, num_key_value_heads=12, tie_word_embeddings=True)
    model = Qwen2ForCausalLM(config).to(getattr(torch, dtype)).eval()
    return wrap_model(model, tokenizer, None, name="benchmark")


def replies(uneven: bool) -> list[int]:
    """Return how many tokens of each sequence are sampled."""
    if not uneven:
        return [SAMPLED] * SEQUENCES
    rng = random.Random(0)
    return [rng.randint(SAMPLED // 4, 7 * SAMPLED // 4) for _ in range(SEQUENCES)]


def token_ids(uneven: bool) -> list[list[int]]:
    """Return the ids of each sequence, prompt and reply."""
    rng = random.Random(1)
    return [[rng.randrange(VOCABULARY - 2) for _ in range(PROMPT + count)] for count in replies(uneven)]


def padding() -> tuple[float, float]:
    """Return the shares of the tokens that are padding with --uneven: in padded micro-batches of ours
    (`training.padding_free=false`), and in one batch of all."""
    from types import SimpleNamespace

    from uirl.learner import micro_batches

    lengths = [PROMPT + count for count in replies(uneven=True)]
    made: Any = [SimpleNamespace(token_ids=range(length)) for length in lengths]
    padded = sum(len(group) * max(lengths[i] for i in group) for group in micro_batches(made, TOKENS_AT_ONCE))
    return 1 - sum(lengths) / padded, 1 - sum(lengths) / (len(lengths) * max(lengths))


def work(loaded: Any, passes: float, uneven: bool) -> float:
    """Return the operations of `passes` forward passes; a backward pass counts as two."""
    weights = sum(p.numel() for name, p in loaded.model.named_parameters() if ".layers." in name and p.ndim == 2)
    width, layers = SIZES["hidden_size"], SIZES["num_hidden_layers"]
    lengths = [PROMPT + count for count in replies(uneven)]
    dense = 2 * sum(lengths) * weights
    head = 2 * sum(replies(uneven)) * VOCABULARY * width
    attention = layers * sum(2 * length * (length + 1) * width for length in lengths)
    return passes * (dense + head + attention)


def ours(dtype: str, uneven: bool, old: str) -> tuple[Callable[[], None], float]:
    """Return a function that makes one update, and its operations. `old`: 'rollout' or 'recompute'."""
    import torch

    from uirl import ConfigStore
    from uirl.images import ImageStore
    from uirl.learner import Learner, Policy
    from uirl.types import Sample

    loaded = build(dtype)
    options = {"model.dtype": dtype, "training.adv_estimator": "grpo", "training.minibatches": 1}
    options |= {"training.batch_size": SEQUENCES, "training.group_size": SEQUENCES, "training.learning_rate": 1e-6}
    options |= {
        "training.old_log_probs": old,
        "training.entropy_coef": 0,
        "training.micro_batch_tokens": TOKENS_AT_ONCE,
    }
    # the log-probs of the samples are made up; with a filter nobody compares them with the learner's
    options |= {"inference.top_p": 0.999}
    config = ConfigStore().override([f"{key}={value}" for key, value in options.items()])
    learner = Learner(Policy(loaded), config, ImageStore())

    def samples() -> list[Sample]:
        made = []
        for row, ids in enumerate(token_ids(uneven)):
            sampled = len(ids) - PROMPT
            mask = (False,) * PROMPT + (True,) * sampled
            rewards = (0.0,) * (len(ids) - 1) + (float(row % 2),)
            turns = (-1,) * PROMPT + (0,) * sampled
            log_probs = (0.0,) * PROMPT + (-10.5,) * sampled
            made.append(
                Sample(tuple(ids), mask, log_probs, rewards, turns, (), learner.version, f"trajectory-{row}", "group")
            )
        return made

    def step() -> None:
        with torch.inference_mode(False):
            learner.update(samples())

    return step, work(loaded, 3.0 if old == "rollout" else 4.0, uneven)


def trl(dtype: str, uneven: bool) -> tuple[Callable[[], None], float]:
    """Return a function that makes one step of TRL, and its operations."""
    import tempfile

    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    loaded = build("float32")  # with bf16 TRL computes in autocast, over weights of float32
    folder = tempfile.mkdtemp()
    options = GRPOConfig(
        output_dir=folder, use_cpu=True, bf16=dtype == "bfloat16", per_device_train_batch_size=SEQUENCES,
        num_generations=SEQUENCES, max_completion_length=SAMPLED, gradient_checkpointing=False, report_to=[],
        learning_rate=1e-6, gradient_accumulation_steps=1,
    )  # fmt: skip
    rows = Dataset.from_dict({"prompt": ["w1 w2"] * SEQUENCES})
    trainer = GRPOTrainer(
        loaded.model, reward_funcs=lambda completions, **_: [0.0] * len(completions), args=options,
        train_dataset=rows, processing_class=loaded.tokenizer,
    )  # fmt: skip
    trainer.create_optimizer()
    trainer.model, trainer.optimizer = trainer.accelerator.prepare(trainer.model, trainer.optimizer)
    trainer.model_wrapped = trainer.model
    trainer.current_gradient_accumulation_steps = 1
    rewards = torch.tensor([float(row % 2) for row in range(SEQUENCES)])
    longest = max(replies(uneven))
    ids = torch.full((SEQUENCES, PROMPT + longest), VOCABULARY - 2)
    for row, sequence in enumerate(token_ids(uneven)):
        ids[row, : len(sequence)] = torch.tensor(sequence)
    inputs = {
        "prompt_ids": ids[:, :PROMPT], "prompt_mask": torch.ones(SEQUENCES, PROMPT, dtype=torch.long),
        "completion_ids": ids[:, PROMPT:],
        "completion_mask": (torch.arange(longest) < torch.tensor(replies(uneven))[:, None]).long(),
        "advantages": (rewards - rewards.mean()) / rewards.std(),
        "num_items_in_batch": torch.tensor(sum(replies(uneven))),
    }  # fmt: skip
    trainer._prepare_inputs = lambda _: inputs  # what `generate` would have made

    def step() -> None:
        trainer.training_step(trainer.model, inputs, None)
        trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), options.max_grad_norm)
        trainer.optimizer.step()
        trainer.model.zero_grad()

    return step, work(loaded, 3.0, uneven)


def limit(dtype: str, uneven: bool) -> tuple[Callable[[], None], float]:
    """Return a function that multiplies two matrices four times, and its operations. `uneven` changes nothing."""
    import torch

    a, b = (torch.randn(SIDE, SIDE).to(getattr(torch, dtype)) for _ in range(2))
    out = torch.empty_like(a)

    def step() -> None:
        for _ in range(4):
            torch.mm(a, b, out=out)

    return step, 8.0 * SIDE**3


PROGRAMS: dict[str, Callable[[str, bool], tuple[Callable[[], None], float]]] = {
    "limit": limit,
    "ours": lambda dtype, uneven: ours(dtype, uneven, "rollout"),
    "ours, recomputed": lambda dtype, uneven: ours(dtype, uneven, "recompute"),
    "TRL": trl,
}


def serve(program: str, dtype: str, uneven: bool) -> None:
    """Make a step for every line on stdin and answer with its figures; the process of one program."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    step, operations = PROGRAMS[program](dtype, uneven)
    step()
    print("ready", file=answers)
    for _ in sys.stdin:
        before = resource.getrusage(resource.RUSAGE_SELF)
        started = time.perf_counter()
        step()
        seconds = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        row = {"seconds": seconds, "rate": operations / seconds / 1e9, "faults": after.ru_minflt - before.ru_minflt}
        row |= {"cpu": cpu, "rate of the processor": operations / cpu / 1e9}
        row |= {"system": after.ru_stime - before.ru_stime, "peak": after.ru_maxrss / 2**20}
        print(json.dumps(row), file=answers)


class Program:
    """A process that makes one step when it is asked."""

    def __init__(self, name: str, dtype: str, threads: int, asked: argparse.Namespace) -> None:
        self.name = name
        self.rows: list[dict[str, float]] = []
        command = [sys.executable, __file__, "--serve", name.removeprefix(EARLIER), "--dtypes", dtype]
        command += ["--uneven"] * asked.uneven
        command += ["--layers", str(asked.layers), "--vocabulary", str(asked.vocabulary)]
        variables = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        if name.startswith(EARLIER):
            variables["PYTHONPATH"] = asked.beside
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self.process: Any = subprocess.Popen(command, env=variables, **pipes)
        assert self.process.stdout.readline() == "ready\n", f"{name} did not start"

    def step(self) -> None:
        self.process.stdin.write("\n")
        self.rows.append(json.loads(self.process.stdout.readline()))
        print(self.name, self.rows[-1], file=sys.stderr, flush=True)

    def median(self, key: str) -> float:
        return statistics.median(row[key] for row in self.rows)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def measure(names: list[str], dtype: str, threads: int, asked: argparse.Namespace) -> list[Pair]:
    """Let the programs take turns; print a row of each, return ours beside the limit and TRL."""
    # not above: a process for another checkout (`--beside`) imports that one's modules
    from benchmarks.pairs import pair

    programs = {name: Program(name, dtype, threads, asked) for name in ("limit", *names)}
    until = time.monotonic() + asked.seconds
    while time.monotonic() < until:
        for name in names:
            programs["limit"].step()
            programs[name].step()
    limit = programs["limit"]
    print(f"| {dtype}, {threads} threads | limit | | {limit.median('rate'):.0f} | 100 % | 100 % | | | |", flush=True)
    for name in names:
        one = programs[name]
        columns = [f"{dtype}, {threads} threads", name, f"{one.median('seconds'):.2f}", f"{one.median('rate'):.0f}"]
        for key in ("rate", "rate of the processor"):
            shares = [100 * row[key] / limit.median(key) for row in one.rows]
            columns.append(f"{statistics.median(shares):.1f} % ({min(shares):.1f} to {max(shares):.1f})")
        columns += [f"{one.median(key):.2f}" for key in ("cpu", "system", "peak")]
        print(f"| {' | '.join(columns)} |", flush=True)
    for one in programs.values():
        one.close()
    work = f"an update of 100 M parameters on 16 x 192 tokens, {dtype}, {threads} threads"
    rates = {name: [row["rate"] for row in one.rows] for name, one in programs.items()}
    rates["limit"] = [limit.median("rate")] * len(rates["ours"])
    checked = "operations of the step, counted"
    peers = [("limit", "a product of two matrices (its share of the limit)"), ("TRL", "TRL's GRPOTrainer")]
    return [
        pair(work, "GFLOP/s", {"ours": rates["ours"], name: rates[peer]}, "ours", name, checked, more_is_better=True)
        for peer, name in peers
        if peer in rates
    ]


def profile(program: str, dtype: str, uneven: bool) -> None:
    """Print where the time of one step goes."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    step, _ = PROGRAMS[program](dtype, uneven)
    step()
    with profiler(activities=[ProfilerActivity.CPU]) as seen:
        step()
    print(seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=40, max_name_column_width=60))


def main() -> None:
    global VOCABULARY
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--seconds", type=float, default=90, help="of rounds, for each precision")
    parser.add_argument("--trl", action="store_true")
    parser.add_argument("--uneven", action="store_true", help="replies of 32 to 224 tokens instead of 128 each")
    parser.add_argument("--layers", type=int, default=SIZES["num_hidden_layers"])
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--beside", metavar="FOLDER", help="another checkout, whose `uirl` is measured too")
    parser.add_argument("--recomputed", action="store_true", help="also with a pass for old log-probs")
    parser.add_argument("--profile", choices=PROGRAMS)
    parser.add_argument("--serve", choices=PROGRAMS, help=argparse.SUPPRESS)
    parser.add_argument("--pairs", help="a file to which the pairs are added")
    asked = parser.parse_args()
    SIZES["num_hidden_layers"], VOCABULARY = asked.layers, asked.vocabulary
    if asked.serve:
        serve(asked.serve, asked.dtypes, asked.uneven)
        return
    if asked.profile:
        profile(asked.profile, asked.dtypes, asked.uneven)
        return
    mine = ["ours"] + ["ours, recomputed"] * asked.recomputed
    from benchmarks.pairs import report

    names = [*mine, *(f"{EARLIER}{name}" for name in mine if asked.beside), *["TRL"] * asked.trl]
    if asked.uneven:
        print("padding: none in our rows, {:.1%} in padded ones, {:.1%} in one batch of all\n".format(*padding()))
    titles = ["", "program", "seconds", "GFLOP/s", "of the limit", "by processor time", "processor s", "of them system"]
    print(f"| {' | '.join([*titles, 'peak, GiB'])} |\n" + "|---" * 9 + "|")
    for threads in asked.threads.split(","):
        for dtype in asked.dtypes.split(","):
            report(asked.pairs, measure(names, dtype, int(threads), asked))


if __name__ == "__main__":
    main()
