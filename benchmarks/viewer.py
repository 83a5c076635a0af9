"""How fast `uirl view` answers about very many trajectories, and how much memory it takes.

    python -m benchmarks.viewer                      # 100 000 generated trajectories of 3 turns, in a temporary folder
    python -m benchmarks.viewer --keep runs/large    # ... kept there, and taken from there the next time

The server is the command itself, in a process of its own: the first page is asked for before there is any index.
"""

from __future__ import annotations

import argparse
import io
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
from PIL import Image, ImageDraw

from uirl.images import Screenshot
from uirl.metrics.trackers import MetricsLogger
from uirl.storage import RunDirectory, TrajectoryStore
from uirl.types import Action, Failure, Observation, Task, ToolCall, Trajectory, Turn, Verdict

WORDS = (
    *("open", "press", "scroll", "type", "search", "select", "confirm", "cancel"),
    *("settings", "mail", "invoice", "table", "row", "field", "button", "menu"),
)
STOPS = ("terminated", "terminated", "terminated", "max_turns", "token_budget", "truncated")
LEVELS = ("new", "frontier", "exploration", "near_mastery", "exploitation")
QUESTIONS = {
    "newest": "",
    "by reward": "sort=reward&order=asc",
    "by turns": "sort=turns",
    "solved": "success=true",
    "not solved, one level": "success=false&level=frontier",
    "one task": "task=task-017",
    "tasks by prefix": "task_prefix=task-01&sort=step&order=asc",
    "steps 100 to 120": "step_from=100&step_to=120",
    "failures": "failure=any",
    "without a label": "label=none&verdict=true",
    "repeated": "flag=repeated",
    "search, frequent word": "q=button",
    "search, two words": "q=invoice+unique4242",
}


def pictures(count: int, size: tuple[int, int]) -> list[Screenshot]:
    """Screens of a phone: flat parts, a few hundred words' worth of small shapes."""
    made = []
    draw_from = random.Random(0)
    for _ in range(count):
        image = Image.new("RGB", size, "white")
        draw = ImageDraw.Draw(image)
        for _ in range(400):
            x, y = draw_from.randrange(size[0]), draw_from.randrange(size[1])
            color = tuple(draw_from.randrange(256) for _ in range(3))
            draw.rectangle((x, y, x + draw_from.randrange(200), y + draw_from.randrange(30)), fill=color)
        out = io.BytesIO()
        image.save(out, format="PNG", compress_level=1)
        made.append(Screenshot(out.getvalue()))
    return made


def trajectories(count: int, turns: int, shots: list[Screenshot]) -> Iterator[Trajectory]:
    draw = random.Random(1)
    for number in range(count):
        group, solved = number // 8, draw.random() < 0.4
        made = [_turn(number, at, turns, draw, shots) for at in range(turns)]
        failure = Failure("environment", "the page did not answer", 1) if draw.random() < 0.01 else None
        yield Trajectory(
            id=f"train-{group:06d}-{number % 8}",
            task=Task(f"task-{group % 200:03d}", "browser", f"find the {draw.choice(WORDS)} unique{number}"),
            turns=made,
            stop_reason=draw.choice(STOPS),
            group_id=f"train-{group:06d}",
            verdict=Verdict(float(solved), solved, "the rules say so", "rules"),
            failure=failure,
            metrics={"success": float(solved), "seconds": draw.random()},
            level=draw.choice(LEVELS),
        )


def _turn(number: int, at: int, turns: int, draw: random.Random, shots: list[Screenshot]) -> Turn:
    x, y = draw.randrange(1080), draw.randrange(2400)
    thought = " ".join(draw.choices(WORDS, k=30))
    thought = "press the button. " * 20 if draw.random() < 0.01 else thought
    shot = shots[(number + at) % len(shots)]
    ids = tuple(draw.choices(range(500), k=40))
    return Turn(
        observation=Observation("the screen", (shot.hash,)),
        context_ids=ids,
        response_ids=ids,
        rollout_log_probs=(-0.25,) * 40,
        action=Action(
            f'{thought}\n{{"action":"click","x":{x},"y":{y}}}', (ToolCall("click", {"x": x, "y": y}),), thought
        ),
        reward=draw.random() if at == turns - 1 else 0.0,
        context_images=(shot.hash,),
        starts_segment=at == 0,
    )


def make(path: Path, count: int, turns: int) -> None:
    """Write the run, as training writes it."""
    RunDirectory.create(path, "environment:\n  name: browser\n").close()
    run = RunDirectory.open(path)
    shots = pictures(40, (1080, 2400))
    with MetricsLogger(run.metrics_path) as log:
        for step in range(1, 501):
            log.log(step, {f"part/{i}": float(step) for i in range(60)} | {"success": 0.4, "trajectories": 200})
    from uirl.images import ImageStore

    images = ImageStore()
    for shot in shots:
        images.put(shot)
    with TrajectoryStore(run.trajectories_path) as store, images.holding():
        batch: list[Trajectory] = []
        for number, one in enumerate(trajectories(count, turns, shots), start=1):
            batch.append(one)
            if len(batch) == 1000 or number == count:
                store.add_many(batch, step=1 + number * 500 // count, images=images)
                batch = []


def measure(path: Path) -> None:
    """Start the server, ask, and print what was found."""
    command = [sys.executable, "-m", "uirl.cli.main", "view", str(path), "--port", "0"]
    clock = time.perf_counter()
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = re.search(r"http://\S+", server.stdout.readline())
        assert address is not None, "the server did not say where it listens"
        print(f"{'server starts':34} {time.perf_counter() - clock:8.3f} s")
        with httpx.Client(base_url=address[0], timeout=120) as client:
            _ask(client, path)
        print(f"{'memory, at most':34} {_peak(server.pid):8.0f} MB")
    finally:
        server.terminate()
        server.wait(20)


def _ask(client: httpx.Client, path: Path) -> None:
    (run,) = _timed(client, "list of runs", "/api/runs", 1)["runs"]
    base = f"/api/runs/{run['key']}"
    first = _timed(client, "first page, without an index", f"{base}/trajectories?limit=100", 1)
    assert len(first["rows"]) == 100
    clock = time.perf_counter()
    while (found := client.get(f"{base}/trajectories?limit=1").json())["indexed"]["done"] < found["indexed"]["total"]:
        time.sleep(0.5)
    print(f"{'index is whole':34} {time.perf_counter() - clock:8.3f} s   (beside the answers)")
    assert found["count"] == run["trajectories"]
    for name, query in QUESTIONS.items():
        _timed(client, name, f"{base}/trajectories?limit=100&{query}")
    page = client.get(f"{base}/trajectories?limit=100&sort=reward").json()
    _timed(client, "next page by reward", f"{base}/trajectories?limit=100&sort=reward&after={page['next']}")
    _timed(client, "values of the filters", f"{base}/facets")
    id = page["rows"][0]["id"]
    shown = _timed(client, "one trajectory", f"{base}/trajectories/{id}")
    turn = _timed(client, "one turn of it", f"{base}/trajectories/{id}/turns/0")
    _timed(client, "its tokens", f"{base}/trajectories/{id}/tokens?turn=0")
    _timed(client, "a picture, 1080 x 2400", f"{base}/images/{turn['fed'][0]['hash']}")
    _timed(client, "the same, small", f"{base}/images/{turn['fed'][0]['hash']}/small")
    _timed(client, "the same as it was fed", turn["fed"][0]["url"])
    _timed(client, "a group of 8, first time", f"{base}/groups/{shown['group_id']}", 1)
    _timed(client, "a group of 8", f"{base}/groups/{shown['group_id']}")
    _timed(client, "curves of 500 steps", f"{base}/metrics?since=0")


def _timed(client: httpx.Client, name: str, path: str, times: int = 7) -> dict:
    seconds = []
    for _ in range(times):
        clock = time.perf_counter()
        answer = client.get(path)
        seconds.append(time.perf_counter() - clock)
        assert answer.status_code == 200, answer.text[:500]
    is_json = answer.headers["content-type"] == "application/json"
    count = answer.json().get("count") if is_json else None
    more = "" if count is None else f"   ({count} fit)"
    print(f"{name:34} {statistics.median(seconds):8.3f} s{more}")
    return answer.json() if is_json else {}


def _peak(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", text)[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="folder of the generated run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder) / "large"
        if not path.exists():
            clock = time.perf_counter()
            make(path, options.trajectories, options.turns)
            size = (path / "trajectories.sqlite").stat().st_size / 1e6
            print(f"{options.trajectories} trajectories made in {time.perf_counter() - clock:.0f} s, {size:.0f} MB")
        measure(path)


if __name__ == "__main__":
    main()
