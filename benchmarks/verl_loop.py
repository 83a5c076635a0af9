"""Our agent loop beside verl's own tool agent loop, on the same work.

    VERL_PLATFORM=cpu VERL_USE_EXTERNAL_MODULES=tests.integrations.verl.cpu python -m benchmarks.verl_loop

Both run inside verl's own `AgentLoopWorker`, from the row to the output, and play the same conversations: a question,
one call of a calculator, its result, an answer. It is checked that both make the same tokens and the same mask. Replies
are fixed; the server answers at once (what the loop itself costs), after a fixed time (what that is of an episode that
waits), or after a model generated as many tokens as the reply has. Ours is also measured with its record: every episode
goes to another process and on the disk before its output is handed on.

Rounds go forth and back (verl, ours, recorded, recorded, ours, verl). A ratio is that of the sums within one round, and
the figures are medians over rounds. CPU seconds are those of this process, which other programs on the machine change
little; those of the process that keeps the record are given apart.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import itertools
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.tools.function_tool import FUNCTION_TOOL_REGISTRY, function_tool
from verl.workers.rollout.replica import TokenOutput

from benchmarks.pairs import pair, report
from tests.integrations.verl.cpu.rollout import CPUServer
from tests.integrations.verl.runs import config, trainer
from uirl.environments import ToolEnvironment
from uirl.inference.models.templates import TEMPLATES
from uirl.integrations.verl.record import start_coordinator
from uirl.integrations.verl.settings import Settings
from uirl.tools import CalculatorTool

QUESTION = "What is 12 * (3 + 4)? Use the calculator."
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12 * (3 + 4)"}}\n</tool_call>'
ANSWER = "The result is 84."
TEMPERATURE = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


def calculator(expression: str) -> str:
    return str(CalculatorTool().execute(expression))


def described() -> Any:
    """verl's tool, which is described by its docstring, in the words of ours: they stand in the prompt."""
    about = CalculatorTool.execute.__doc__.partition("Args:")[2]
    calculator.__doc__ = f"{CalculatorTool.description}\n\n        Args:{about}"
    return function_tool(calculator)


class Asking(ToolEnvironment):
    """The same task for our loop."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config, registry=[CalculatorTool()], action_format="hermes", max_turns=4)

    def ask(self, rng: Any, task: Any) -> str:
        return QUESTION


class Server:
    """Answers with the call, then with the answer, after `latency` seconds; `engine`: after it generated as many
    tokens."""

    def __init__(self, tokenizer: Any, engine: CPUServer | None, latency: float) -> None:
        end = tokenizer.eos_token_id
        self._replies = [[*tokenizer(t, add_special_tokens=False)["input_ids"], end] for t in (CALL, ANSWER)]
        self._engine, self._latency = engine, latency
        self._asked: dict[str, int] = {}
        self.prompts: list[int] = []

    async def generate(self, request_id: str, **request: Any) -> TokenOutput:
        turn = self._asked[request_id] = self._asked.get(request_id, -1) + 1
        ids = self._replies[turn]
        self.prompts.append(len(request["prompt_ids"]))
        if self._latency:
            await asyncio.sleep(self._latency)
        if self._engine is not None:
            sampling = {**TEMPERATURE, "max_tokens": len(ids)}
            await self._engine.generate(request_id, request["prompt_ids"], sampling)
        steps = {"global_steps": 0, "min_global_steps": 0, "max_global_steps": 0}
        return TokenOutput(token_ids=ids, log_probs=[-1.0] * len(ids), stop_reason="completed", extra_fields=steps)


class Worker(AgentLoopWorker):
    """verl's worker up to the output: what it makes of outputs is the same for both loops."""

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **row: Any) -> Any:
        return output


def row_for(agent: str, index: int) -> dict[str, Any]:
    return {
        "agent_name": agent,
        "raw_prompt": [{"role": "user", "content": QUESTION}],
        "index": index,
        "extra_info": {"task": "arithmetic", "seed": index},
        "session_id": 0,
        "global_steps": 1,
    }


NUMBERS = itertools.count()
"""Numbers of the episodes: a record takes each once."""


async def play(worker: Worker, agent: str, episodes: int) -> list[Any]:
    trajectory = {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": False}
    rows = [row_for(agent, next(NUMBERS)) for _ in range(episodes)]
    return await asyncio.gather(
        *(worker._run_agent_loop(dict(TEMPERATURE), trajectory, trace=False, **row) for row in rows)
    )


def prepared(folder: Path) -> Any:
    """verl's config, with a model whose template shows tools."""
    store = config(
        folder,
        "model.model_name=uirl/tiny-lm",
        "environment.name=benchmarks.verl_loop:Asking",
        "inference.max_tokens=64",
        "inference.seed=null",
    )
    long = {"data.max_prompt_length": 512, "data.max_response_length": 512}
    run = trainer(store, verl={**long, "actor_rollout_ref.rollout.multi_turn.format": "hermes"})
    run._place_model(run.directory / "model")
    (run.directory / "model" / "chat_template.jinja").write_text(TEMPLATES["hermes"])
    return run.config


async def measure(
    workers: dict[str, Worker], episodes: int, rounds: int, engine: bool, latency: float
) -> list[dict[str, Cost]]:
    """Per round, what an episode of each kind of loop costs: milliseconds of CPU and of the clock."""
    found = []
    for number in range(rounds + 1):
        costs = {kind: Cost() for kind in workers}
        for kind in [*workers, *reversed(workers)]:
            worker = workers[kind]
            part = worker.config.actor_rollout_ref
            server = Server(worker.tokenizer, CPUServer(part.rollout, part.model) if engine else None, latency)
            worker.llm_client = server
            cpu, clock = time.process_time(), time.perf_counter()
            outputs = await play(worker, "tool_agent" if kind == "verl" else "uirl", episodes)
            costs[kind].cpu += (time.process_time() - cpu) / (2 * episodes) * 1e3
            costs[kind].wall += (time.perf_counter() - clock) / (2 * episodes) * 1e3
            check(outputs, server)
        if number:  # the first round warms up
            found.append(costs)
    return found


@dataclass
class Cost:
    """Milliseconds of one episode."""

    cpu: float = 0.0
    wall: float = 0.0


SEEN: list[tuple[list[int], list[int], list[int]]] = []
"""Prompt, response and mask of the first episode: every other one has the same."""


def check(outputs: list[Any], server: Server) -> None:
    """The work was done, and it was the same: two replies per episode, the result of the tool between them."""
    assert len(server.prompts) == 2 * len(outputs)
    for output in outputs:
        replies = [run for run in "".join(map(str, output.response_mask)).split("0") if run]
        assert len(replies) == 2, output.response_mask
        made = (list(output.prompt_ids), list(output.response_ids), list(output.response_mask))
        SEEN.append(made) if not SEEN else None
        for name, own, first in zip(("prompt", "response", "mask"), made, SEEN[0], strict=True):
            assert own == first, f"the loops differ in {name}: {own} and {first}"


def median_of(rounds: list[dict[str, Cost]], kind: str, what: str) -> tuple[float, float, float, float]:
    """(milliseconds, ratio to verl's loop, smallest and largest ratio)."""
    ratios = [getattr(costs[kind], what) / getattr(costs["verl"], what) for costs in rounds]
    return (
        statistics.median(getattr(costs[kind], what) for costs in rounds),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
    )


def workers_of(verl: Any) -> dict[str, Worker]:
    """verl's worker for verl's loop and for ours."""
    workers = {"verl": Worker(verl, None), "ours": Worker(copy.deepcopy(verl), None)}
    workers["verl"].tools = [FUNCTION_TOOL_REGISTRY["calculator"]]
    return workers


def recorded(verl: Any, folder: Path) -> tuple[Worker, Any]:
    """A worker for our loop with a coordinator that writes to `folder`, and the coordinator, which ends with its
    handle."""
    name, coordinator = start_coordinator(Settings.read(verl.data).config, folder)
    ray.get(coordinator.begin.remote(None))
    made = copy.deepcopy(verl)
    made.data.uirl.coordinator = name
    return Worker(made, None), coordinator


def show(name: str, rounds: list[dict[str, Cost]]) -> None:
    """Prints the lines of one server's table."""
    for kind in rounds[0]:
        cells = [name, kind]
        for what in ("cpu", "wall"):
            value, ratio, low, high = median_of(rounds, kind, what)
            cells += [f"{value:.2f}", f"{ratio:.3f} ({low:.3f}-{high:.3f})"]
        print("| " + " | ".join(cells) + " |", flush=True)


def _cpu_seconds(_: Any) -> float:
    """CPU seconds of the process it runs in."""
    return time.process_time()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--latency", type=float, default=0.2, help="seconds per reply of the server that waits")
    parser.add_argument("--no_record", action="store_true", help="without the loop that keeps a record, and Ray")
    parser.add_argument("--pairs", help="a file to which the pairs are added")
    options = parser.parse_args()
    pairs = []
    described()
    servers = [("at once", False, 0.0), (f"after {options.latency:g} s", False, options.latency)]
    with tempfile.TemporaryDirectory() as folder:
        verl = prepared(Path(folder))
        workers, office = workers_of(verl), None
        if not options.no_record:
            ray.init(num_cpus=2, include_dashboard=False)
            workers["recorded"], office = recorded(verl, Path(folder) / "record")
        print(f"{options.episodes} episodes at once, {options.rounds} rounds\n")
        print("| server answers | loop | CPU ms | CPU / verl's | ms | time / verl's |\n|---|---|---|---|---|---|")
        for name, engine, latency in [*servers, ("with a tiny model", True, 0.0)]:
            rounds = asyncio.run(measure(workers, options.episodes, options.rounds, engine, latency))
            show(name, rounds)
            figures = {kind: [costs[kind].cpu / 1e3 for costs in rounds] for kind in rounds[0]}
            work = f"an episode of a calculator in verl's worker, the server answers {name}"
            checked = "the same prompt, response and mask"
            pairs.append(pair(work, "CPU s", figures, "ours", "verl", checked, more_is_better=False))
        report(options.pairs, pairs)
        if office is not None:
            kept = ray.get(office.__ray_call__.remote(_cpu_seconds))
            played = 6 * options.episodes * (options.rounds + 1)
            print(
                f"\nthe process that keeps the record: {kept / played * 1e3:.2f} ms of CPU per episode, start included"
            )
            ray.shutdown()


if __name__ == "__main__":
    main()
