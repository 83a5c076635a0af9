"""How fast `uirl view` steps through one trajectory of very many turns with large pictures, in real Chromium.

    python -m benchmarks.viewer_steps                    # 1000 turns of 1080 x 2400, in a temporary folder
    python -m benchmarks.viewer_steps --keep runs/long   # ... kept there, and taken from there the next time

Every turn has a picture of its own, every tenth an answer of 150 000 characters. A step is the time from the key to the
frame in which the new turn stands with both pictures (as it was, as it was fed) decoded. Between two steps the reader
waits, as people do. Beside the times stands the processor time that a step takes: of the page's main thread, and of the
server, which do not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, ImageDraw

from benchmarks.viewer import WORDS
from uirl.environments.browser.process import Chromium
from uirl.images import ImageStore, Screenshot
from uirl.storage import RunDirectory, TrajectoryStore
from uirl.types import Action, Observation, PictureTransform, Task, ToolCall, ToolResult, Trajectory, Turn

SIZE, FED = (1080, 2400), (504, 1120)
STEP = """(async (count, wait) => {
  const shown = () => document.querySelector('.said h2')?.innerText;
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));
  const times = [];
  for (let i = 0; i < count; i += 1) {
    await pause(wait);
    const wanted = `Turn ${Number(shown().slice(5)) + 1}`;
    const begun = performance.now();
    dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}));
    while (shown() !== wanted) await frame();
    await Promise.all([...document.querySelectorAll('.picture img')].map((image) => image.decode()));
    await frame();
    times.push(performance.now() - begun);
  }
  return times;
})"""


def screen(number: int, draw_from: random.Random) -> Screenshot:
    """A screen of a phone: lines of words, some shapes, a photo on every fourth."""
    image = Image.new("RGB", SIZE, "white")
    if number % 4 == 0:
        image.paste(Image.effect_noise((270, 150), 90).resize((1080, 600), Image.Resampling.BICUBIC), (0, 300))
    draw = ImageDraw.Draw(image)
    for _ in range(200):
        x, y = draw_from.randrange(SIZE[0]), draw_from.randrange(SIZE[1])
        color = tuple(draw_from.randrange(256) for _ in range(3))
        draw.rectangle((x, y, x + draw_from.randrange(200), y + draw_from.randrange(30)), fill=color)
    for line in range(40):
        words = " ".join(draw_from.choices(WORDS, k=12))
        draw.text((30, 40 + 55 * line), f"turn {number} {words}", fill="black", font_size=26)
    out = io.BytesIO()
    image.save(out, format="PNG", compress_level=1)
    return Screenshot(out.getvalue())


def played(count: int) -> Iterator[Turn]:
    draw = random.Random(0)
    results: tuple[ToolResult, ...] = ()
    for number in range(count):
        shot = screen(number, draw)
        place = {"x": draw.randrange(SIZE[0]), "y": draw.randrange(SIZE[1])}
        page = "\n".join(" ".join(draw.choices(WORDS, k=14)) for _ in range(1600))
        answer = (ToolResult("click", place, True, page if number % 10 == 5 else "done"),)
        thought, ids = " ".join(draw.choices(WORDS, k=60)), tuple(draw.choices(range(500), k=80))
        yield Turn(
            observation=Observation("the screen", (shot,), tool_results=results),
            context_ids=(7,) * 3200 + ids,
            response_ids=ids,
            rollout_log_probs=(-0.25,) * 80,
            action=Action(f"{thought}\nclick {place}", (ToolCall("click", place),), thought),
            context_images=(shot.hash,),
            pictures=(PictureTransform(SIZE, FED),),
            starts_segment=number == 0,
            tool_results=answer,
        )
        results = answer


def make(path: Path, turns: int) -> None:
    RunDirectory.create(path, "environment:\n  name: browser\n").close()
    task = Task("a thousand things", "browser", "do one thing after the other")
    with TrajectoryStore(RunDirectory.open(path).trajectories_path) as store:
        one = Trajectory(id="long", task=task, turns=list(played(turns)), stop_reason="max_turns", group_id="g")
        store.add(one, step=1, images=ImageStore())


def processor(pid: int) -> float:
    """Return the seconds of processor time that a process took so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


async def measure(address: str, key: str, steps: int, wait: int, server: int) -> None:
    browser = Chromium(allow=[address], timeout=600)
    page = await browser.new_page(1280, 1000)
    await page.first.call("Performance.enable")

    async def tasks() -> float:
        found = (await page.first.call("Performance.getMetrics"))["metrics"]
        return next(one["value"] for one in found if one["name"] == "TaskDuration")

    await page.goto(f"{address}/#/run/{key}/t/long/400")
    while not await page.evaluate("Boolean(document.querySelector('.said h2'))"):
        await asyncio.sleep(0.05)
    await page.evaluate(f"{STEP}(3, {wait})", timeout=600)
    before = await tasks(), processor(server)
    times = sorted(await page.evaluate(f"{STEP}({steps}, {wait})", timeout=600))
    after = await tasks(), processor(server)
    ninth = times[int(0.9 * len(times))]
    print(
        f"{'a step, median; nine of ten; longest':40} {statistics.median(times):.0f}; {ninth:.0f}; {times[-1]:.0f} ms"
    )
    for name, begin, end in zip(("main thread of the page", "server"), before, after, strict=True):
        print(f"{f'processor time of a step, {name}':40} {1000 * (end - begin) / steps:.0f} ms")
    await page.close()
    await browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--wait", type=int, default=500, help="milliseconds between two steps")
    parser.add_argument("--keep", type=Path, help="folder of the generated run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder) / "long"
        if not path.exists():
            make(path, options.turns)
        command = [sys.executable, "-m", "uirl", "view", str(path), "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            address = re.search(r"http://\S+", server.stdout.readline())
            assert address is not None, "the server did not say where it listens"
            asyncio.run(measure(address[0], path.name, options.steps, options.wait, server.pid))
        finally:
            server.terminate()
            server.wait(20)


if __name__ == "__main__":
    main()
