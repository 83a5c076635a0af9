"""One step of multi-turn GRPO: ours against TRL's `GRPOTrainer` with an `environment_factory`, in one process.

The parties take turns. The game is that of configs/guess_number.yaml: 256 episodes in groups of 8, at most three
guesses, a tiny text model, one thread. All begin with one policy, which was taught to guess at random and to write
nothing else, and their learning rate is next to nothing, so that every step plays the same game: turns and sampled
tokens are printed, and have to agree. A step is everything from one update to the next: episodes, rewards, the update,
what is logged and, on our side, the record of every episode.

`TRL, lean`: TRL with a chat template as short as ours, in which the call of a tool is its argument. `TRL, stock`: with
its template for Qwen2.5, in which a guess is a JSON call; only its policy is taught that language. TRL asks once more
after the last guess, since it knows no end of an episode: that reply is one token, the end of the message. Its
environment is the plain game, without our adapter.

In the environment of `make test-verl`:
PYTHONPATH=.venv-verl/trl:. .venv-verl/bin/python -m benchmarks.trl_step --rounds 8
"""

from __future__ import annotations

import argparse
import copy
import gc
import os
import random
import statistics
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch

from benchmarks.pairs import pair, report
from uirl import ConfigStore, load_config
from uirl.environments.text.guess_number import GuessNumberEnvironment
from uirl.inference.models.loading import wrap_model
from uirl.inference.models.tiny import build_tiny
from uirl.learner import Policy
from uirl.training.loop import RLTrainer

CONFIG = "configs/guess_number.yaml"
OVER = "over"
"""What TRL's environment says at the end."""
LEAN = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}{% set f = call['function'] %}"
    "{% if f['name'] != 'act' %}{{ f['name'] }}{{ f['arguments'] | tojson }}{% else %}{{ f['arguments']['action'] }}"
    "{% endif %}{% endfor %}{% if message['role'] == 'assistant' %}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Our own template for tiny models, and calls: of the one tool `act` the argument alone."""
ACTION = {"type": "object", "properties": {"action": {"type": "string"}}}
CALL = {"type": "object", "properties": {"name": {"const": "act"}, "arguments": ACTION}}
LEAN_SCHEMA = {
    "x-regex": r"^(?P<tool_calls>[^<]+)?(?P<content>)<\|im_end\|>",
    "type": "object",
    "properties": {
        "role": {"const": "assistant"},
        "content": {"type": "string"},
        "tool_calls": {
            "type": "array",
            "x-regex-iterator": r"([^<]+)",
            "items": {"type": "object", "properties": {"type": {"const": "function"}, "function": CALL}},
        },
    },
}
HEADERS = {"lean": "<|assistant|>", "stock": "<|im_start|>assistant\n"}


class Game:
    """The game as an environment of TRL: `act` is its only tool."""

    turns = 0
    """Of all games, since somebody set it to 0."""

    def __init__(self) -> None:
        options = load_config(CONFIG).environment.options
        self._game = GuessNumberEnvironment(options={"n": options["n"], "guesses": options["guesses"]})
        self._reward, self._done = 0.0, False

    def reset(self, seed: int | None = None, **_: Any) -> str:
        self._reward, self._done = 0.0, False
        return self._game.reset(seed=seed)

    def act(self, action: str) -> str:
        """
        Guess the number.

        Args:
            action: The number.
        """
        if self._done:
            return OVER
        Game.turns += 1
        answer, self._reward, self._done, _ = self._game.step(action)
        return OVER if self._done else answer

    def get_reward(self) -> float:
        return self._reward


@dataclass
class Party:
    """Somebody who takes a step, and waits until it is his turn again."""

    name: str
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    mine: threading.Event = field(default_factory=threading.Event)
    following: Party | None = None
    _begun: tuple[float, float] = (0.0, 0.0)

    def enter(self) -> None:
        """Wait for the turn, and begin to count."""
        self.mine.wait()
        self.mine.clear()
        self._begun = time.perf_counter(), time.process_time()

    def leave(self, turns: float, tokens: float) -> None:
        """End the turn: the next party begins."""
        self.seconds.append(time.perf_counter() - self._begun[0])
        self.cpu.append(time.process_time() - self._begun[1])
        self.turns.append(turns)
        self.tokens.append(tokens)
        assert self.following is not None
        self.following.mine.set()


def language(sizes: Any, kind: str) -> tuple[Any, Any]:
    """A tiny model and its tokenizer, with the template of `kind`."""
    model, tokenizer, _ = build_tiny("uirl/tiny-lm", sizes, seed=0)
    if kind == "stock":
        from trl.chat_template_utils import qwen2_5_chat_template

        tokenizer.chat_template = qwen2_5_chat_template
    else:
        tokenizer.chat_template = LEAN
        tokenizer.response_schema = LEAN_SCHEMA
    return model, tokenizer


def games(rng: random.Random, *, tools: bool) -> list[dict[str, Any]]:
    """The messages of a game of random guesses: as TRL says them (`tools`), or as we do."""
    game = Game()
    said: list[dict[str, Any]] = [{"role": "user", "content": game.reset(seed=rng.randrange(2**31))}]
    while True:
        guess = str(rng.randint(1, game._game.n))
        if tools:
            call = {"type": "function", "function": {"name": "act", "arguments": {"action": guess}}}
            said.append({"role": "assistant", "content": "", "tool_calls": [call]})
        else:
            said.append({"role": "assistant", "content": guess})
        answer = game.act(guess)
        if game._done and not tools:
            return said
        said.append(
            {"role": "tool", "name": "act", "content": answer} if tools else {"role": "user", "content": answer}
        )
        if game._done:
            return [*said, {"role": "assistant", "content": ""}]


def teach(model: Any, tokenizer: Any, kind: str, steps: int, batch: int) -> float:
    """Imitation of games of random guesses; return the loss of the last step, in nats per token."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    rng, end = random.Random(0), tokenizer.eos_token_id
    header = tokenizer(HEADERS[kind], add_special_tokens=False).input_ids
    tools = [Game().act] if kind == "stock" else None
    loss = torch.zeros(())
    for step in range(steps):
        rows = []
        for i in range(batch):
            text = tokenizer.apply_chat_template(
                games(rng, tools=kind == "stock" or i % 2 == 0), tools=tools, tokenize=False
            )
            rows.append(tokenizer(text, add_special_tokens=False).input_ids)
        width = max(map(len, rows))
        ids = torch.full((batch, width), end)
        labels = torch.full((batch, width), -100)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            for at in range(len(row)):
                if row[at : at + len(header)] == header:
                    stop = row.index(end, at + len(header)) + 1
                    labels[i, at + len(header) : stop] = ids[i, at + len(header) : stop]
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, 2.0 * (1 - step / steps))
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return float(loss)


class OurTrainer(RLTrainer):
    """Takes a step when it is its party's turn."""

    party: Party

    async def _step(self, *arguments: Any) -> dict[str, Any]:
        self.party.enter()
        gc.freeze()  # as `fit` does for a run alone; the other parties have the collector as it comes
        return await super()._step(*arguments)

    async def _after_step(self, *arguments: Any) -> None:
        row = dict(self._state.pending or {})
        await super()._after_step(*arguments)
        gc.unfreeze()
        self.party.leave(row["turns"], row["response_tokens"])


def ours(party: Party, taught: tuple[Any, Any], steps: int, minibatches: int, folder: str) -> Callable[[], None]:
    model, tokenizer = copy.deepcopy(taught)
    options = [
        "training.warm_start.enabled=false",
        "training.learning_rate=1e-9",
        f"training.minibatches={minibatches}",
        f"training.num_iters_per_epoch={steps}",
        "training.num_epochs=1",
        "training.eval_every=null",
        "training.eval_episodes=8",
        "training.stop_at_success=null",
        "inference.max_tokens=4",
        f"logging.runs_dir={folder}",
        f"logging.run_name={party.name.replace(' ', '-').replace(',', '')}",
    ]
    config: ConfigStore = load_config(CONFIG, options)
    trainer = OurTrainer(config, policy=Policy(wrap_model(model, tokenizer, None, name=party.name)))
    trainer.party = party

    def run() -> None:
        trainer.fit()
        trainer.cleanup()

    return run


def theirs(party: Party, taught: tuple[Any, Any], steps: int, longest: int, folder: str) -> Callable[[], None]:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = copy.deepcopy(taught)
    training = load_config(CONFIG).training
    arguments = GRPOConfig(
        output_dir=f"{folder}/{party.name}",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=training.batch_size,
        num_generations=training.group_size,
        max_steps=steps,
        max_completion_length=longest,
        max_tool_calling_iterations=load_config(CONFIG).environment.options["guesses"],
        learning_rate=1e-9,
        epsilon=training.clip_ratio,
        epsilon_high=training.clip_ratio_high,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=0,
    )
    rows = [{"prompt": [{"role": "user", "content": ""}], "seed": i} for i in range(4096)]

    class Turns(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            party.enter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            lengths = trainer._metrics["train"]["completions/mean_length"]
            party.leave(Game.turns / training.batch_size, lengths[-1])
            if trainer.state.global_step < steps:
                party.enter()
            Game.turns = 0

    trainer = GRPOTrainer(
        model,
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        environment_factory=Game,
        callbacks=[Turns()],
    )
    return trainer.train


def whole(run: Callable[[], None]) -> None:
    """Run one party; end the program where it fails, as the others would wait for its turn."""
    try:
        run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--no-stock", action="store_true", help="without TRL's stock template, which takes long")
    parser.add_argument("--pairs", help="a file to which the pairs are added")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    sizes = load_config(CONFIG).model.tiny
    steps = asked.rounds + 2  # the first and the last are not counted: one warms up, others end while the other runs
    lean = language(sizes, "lean")
    print(f"lean policy, loss {teach(*lean, 'lean', 200, 16):.3f} nats per token", flush=True)
    folder = tempfile.mkdtemp(prefix="trl-step-")
    names = ["ours, 1 optimizer step", "ours, 2 optimizer steps", "TRL, lean template", "TRL, stock template"]
    parties = [Party(name) for name in names[: 3 if asked.no_stock else 4]]
    runs = [ours(parties[0], lean, steps, 1, folder), ours(parties[1], lean, steps, 2, folder)]
    runs.append(theirs(parties[2], lean, steps, 40, folder))
    if not asked.no_stock:
        stock = language(sizes, "stock")
        print(f"stock policy, loss {teach(*stock, 'stock', 150, 4):.3f} nats per token", flush=True)
        runs.append(theirs(parties[3], stock, steps, 400, folder))
    for one, following in zip(parties, [*parties[1:], parties[0]], strict=True):
        one.following = following
    threads = [
        threading.Thread(target=whole, args=(run,), name=party.name)
        for run, party in zip(runs[1:], parties[1:], strict=True)
    ]
    for thread in threads:
        thread.start()
    parties[0].mine.set()
    whole(runs[0])
    for thread in threads:
        thread.join()
    show(parties)
    counted = {party.name: party.seconds[1:-1] for party in parties}
    turns = ", ".join(f"{statistics.median(party.turns[1:-1]):.2f}" for party in parties)
    report(
        asked.pairs,
        [
            pair(
                "a step of multi-turn GRPO on 256 episodes of higher/lower, tiny LM, 1 thread",
                "s",
                counted,
                parties[0].name,
                party.name,
                f"turns per episode of all: {turns}",
                more_is_better=False,
            )
            for party in parties[2:]
        ],
    )


def show(parties: list[Party]) -> None:
    """Print medians, and ratios of rounds: every party's against ours in the same round."""
    print("| step | seconds | CPU seconds | turns per episode | sampled tokens | of ours with 1 step | with 2 |")
    print("|---|---|---|---|---|---|---|")
    counted = slice(1, -1)
    for party in parties:
        ratios = []
        for base in parties[:2]:
            each = [a / b for a, b in zip(party.seconds[counted], base.seconds[counted], strict=True)]
            ratios.append(f"{statistics.median(each):.2f}x ({min(each):.2f} to {max(each):.2f})")
        columns = (party.seconds, party.cpu, party.turns, party.tokens)
        numbers = " | ".join(f"{statistics.median(column[counted]):.3f}" for column in columns)
        print(f"| {party.name} | {numbers} | {' | '.join(ratios)} |", flush=True)


if __name__ == "__main__":
    main()
