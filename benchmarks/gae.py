"""How fast is GAE on (512, 2048), and which form of its recurrence is fastest?

    OMP_NUM_THREADS=1 python -m benchmarks.gae

Prints two tables, measured in one run on one thread, candidates taking turns so that a busy machine slows all
of them: the recurrence `out[t] = x[t] + decay * out[t + 1]` in several forms, and the whole advantage
function against the token loop that verl and TRL use. Errors are against a float64 loop. Read the ratios, not
the milliseconds.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks.pairs import Figures, Pair, alternate, pair, report
from uirl.algorithms import compute_gae_advantage_return, discounted_suffix_sum, masked_whiten

Recurrence = Callable[[Tensor, float], Tensor]


def column_loop(x: Tensor, decay: float) -> Tensor:
    """The usual loop: one strided column per step."""
    running, columns = x.new_zeros(len(x)), []
    for t in reversed(range(x.shape[1])):
        running = x[:, t] + decay * running
        columns.append(running)
    return torch.stack(columns[::-1], dim=1)


def transposed_loop(x: Tensor, decay: float) -> Tensor:
    """The loop over contiguous rows of the transpose, in place."""
    out = x.t().contiguous()
    for t in range(len(out) - 2, -1, -1):
        out[t].add_(out[t + 1], alpha=decay)
    return out.t().contiguous()


def numpy_loop(x: Tensor, decay: float) -> Tensor:
    """The same in NumPy, whose calls cost less than torch's."""
    out = np.ascontiguousarray(x.numpy().T)
    for t in range(len(out) - 2, -1, -1):
        out[t] += decay * out[t + 1]
    return torch.from_numpy(np.ascontiguousarray(out.T))


def power_matrix(x: Tensor, decay: float) -> Tensor:
    """One product with the T x T matrix of powers."""
    return x @ _powers(x.shape[1], decay)


def blocked_product(x: Tensor, decay: float, size: int = 32) -> Tensor:
    """Powers within blocks of 32 as a product, a short loop between; obeys the matmul precision."""
    blocks = (x.reshape(-1, size) @ _powers(size, decay)).view(len(x), -1, size)
    return _carry_between_blocks(blocks, decay)


def blocked_doubling(x: Tensor, decay: float, size: int = 64) -> Tensor:
    """Doubling within blocks of 64, a short loop between blocks."""
    blocks = discounted_suffix_sum(x.reshape(-1, size), decay).view(len(x), -1, size)
    return _carry_between_blocks(blocks, decay)


def doubling_with_copies(x: Tensor, decay: float) -> Tensor:
    """Log-depth doubling with a fresh copy per pass, no early end."""
    out, stride, weight = x, 1, decay
    while stride < x.shape[1]:
        longer = out.clone()
        longer[:, :-stride].add_(out[:, stride:], alpha=weight)
        out, stride, weight = longer, 2 * stride, weight * weight
    return out


def _powers(size: int, decay: float) -> Tensor:
    distance = torch.arange(size).unsqueeze(1) - torch.arange(size)
    powers = torch.tensor(decay, dtype=torch.float64) ** distance.clamp(min=0)
    return torch.where(distance >= 0, powers, 0.0).float()


def _carry_between_blocks(blocks: Tensor, decay: float) -> Tensor:
    rows, count, size = blocks.shape
    heads = blocks[:, :, 0].t().contiguous()
    carry = torch.zeros_like(heads)
    for k in range(count - 2, -1, -1):
        torch.add(heads[k + 1], carry[k + 1], alpha=decay**size, out=carry[k])
    weights = (torch.tensor(decay, dtype=torch.float64) ** torch.arange(size, 0, -1)).float()
    return blocks.addcmul_(carry.t().unsqueeze(-1), weights).view(rows, count * size)


def looped_gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """GAE as a loop over tokens that carries value and advantage across masked ones, then whitened."""
    next_values = running = rewards.new_zeros(len(rewards))
    columns = []
    for t in reversed(range(rewards.shape[1])):
        here = mask[:, t]
        step = rewards[:, t] + gamma * next_values - values[:, t] + gamma * lam * running
        next_values = values[:, t] * here + (1 - here) * next_values
        running = step * here + (1 - here) * running
        columns.append(running)
    advantages = torch.stack(columns[::-1], dim=1) * mask
    return masked_whiten(advantages, mask), (advantages + values) * mask


RECURRENCES: dict[str, Recurrence] = {
    "column loop": column_loop,
    "transposed loop": transposed_loop,
    "numpy loop": numpy_loop,
    "power matrix": power_matrix,
    "blocked product": blocked_product,
    "blocked doubling": blocked_doubling,
    "doubling, copies": doubling_with_copies,
    "doubling (kept)": discounted_suffix_sum,
}


def holes(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """A multi-turn mask: prompt, then turns of 64 response and 192 observation tokens, ragged at the end."""
    position = torch.arange(columns) % 256
    length = torch.randint(columns // 2, columns + 1, (rows, 1), generator=generator)
    return ((position < 64) & (torch.arange(columns) < length)).float()


def measure(candidates: dict[str, Callable[[], object]], repeats: int) -> Figures:
    """Seconds of each by round, by turns, after one unmeasured call."""

    def seconds(call: Callable[[], object]) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return alternate({name: partial(seconds, call) for name, call in candidates.items()}, repeats)


def exact(x: Tensor, decay: float) -> Tensor:
    """The recurrence in float64, by loop."""
    return column_loop(x.double(), decay)


def report_recurrences(x: Tensor, decay: float, repeats: int) -> None:
    """One line per form: time, ratio to the column loop, error."""
    reference = exact(x, decay)
    scale = reference.abs().max()
    rounds = measure({n: partial(f, x, decay) for n, f in RECURRENCES.items()}, repeats)
    seconds = {name: statistics.median(times) for name, times in rounds.items()}
    print(f"\nrecurrence, decay {decay:.4f}   ms   times faster   largest error / largest value")
    for name, function in RECURRENCES.items():
        error = ((function(x, decay).double() - reference).abs().max() / scale).item()
        faster = seconds["column loop"] / seconds[name]
        print(f"{name:28s} {seconds[name] * 1e3:7.2f} {faster:10.1f} {error:18.1e}")


def report_gae(rewards: Tensor, values: Tensor, mask: Tensor, title: str, repeats: int) -> Pair:
    """One line: the whole function against the token loop."""
    gamma, lam = 0.99, 0.95
    rounds = measure(
        {
            "loop": partial(looped_gae, rewards, values, mask, gamma, lam),
            "uirl": partial(compute_gae_advantage_return, rewards, values, mask, gamma, lam),
        },
        repeats,
    )
    seconds = {name: statistics.median(times) for name, times in rounds.items()}
    precise = looped_gae(rewards.double(), values.double(), mask.double(), gamma, lam)
    ours = compute_gae_advantage_return(rewards, values, mask, gamma, lam)
    error = max((a.double() - b).abs().max().item() for a, b in zip(ours, precise, strict=True))
    print(
        f"{title:28s} loop {seconds['loop'] * 1e3:7.1f} ms, uirl {seconds['uirl'] * 1e3:6.2f} ms: "
        f"{seconds['loop'] / seconds['uirl']:.1f} times faster, largest error {error:.1e}"
    )
    work = f"GAE of {tuple(rewards.shape)}, whitened: {title}"
    named = {"uirl": rounds["uirl"], "token loop (verl, TRL)": rounds["loop"]}
    checked = f"largest error {error:.0e}"
    return pair(work, "s", named, "uirl", "token loop (verl, TRL)", checked, more_is_better=False)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--columns", type=int, default=2048, help="a multiple of 64")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--pairs", help="a file to which the pairs are added")
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randn(options.rows, options.columns, generator=generator)
    values = torch.randn(options.rows, options.columns, generator=generator)
    print(f"({options.rows}, {options.columns}), float32, torch {torch.__version__}, 1 thread")
    for decay in (0.99 * 0.95, 1.0):
        report_recurrences(rewards, decay, options.repeats)
    print("\nthe whole of GAE, whitened")
    one_run = (torch.arange(options.columns) < torch.randint(1, options.columns, (options.rows, 1))).float()
    pairs = [report_gae(rewards * one_run, values, one_run, "one response per row", options.repeats)]
    many = holes(options.rows, options.columns, generator)
    pairs.append(report_gae(rewards * many, values, many, "8 turns per row, with holes", options.repeats))
    report(options.pairs, pairs)


if __name__ == "__main__":
    main()
