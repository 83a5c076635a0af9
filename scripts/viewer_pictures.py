"""Take the pictures of docs/viewer.md: the pages of `uirl view` over a run, in real Chromium.

    uirl train configs/mai_ui.yaml && python scripts/viewer_pictures.py runs/mai_ui

Episodes are chosen by rule, not by hand: the newest failed one with the most turns that an update learned from, and
the newest group in which episodes part.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from uirl.environments.browser.process import Chromium

SECONDS = 60
PAUSE = 1.5
"""Seconds for pictures and charts to be drawn."""


class Shown:
    """One run, as the viewer at `address` answers."""

    def __init__(self, address: str, key: str) -> None:
        self.key = key
        self.client = httpx.Client(base_url=f"{address}/api/runs/{key}", timeout=SECONDS)

    def get(self, path: str, **query: Any) -> Mapping[str, Any]:
        answer = self.client.get(path, params=query)
        answer.raise_for_status()
        return answer.json()

    def rows(self) -> list[Mapping[str, Any]]:
        return list(self.get("/trajectories", limit=500, split="train")["rows"])

    def episode(self) -> tuple[str, int]:
        """Return id and turn of the episode to show: its first turn."""
        rows = sorted(self.rows(), key=lambda row: (row["success"] is False, row["turns"], row["number"]), reverse=True)
        for row in rows[:50]:
            if self.get(f"/trajectories/{row['id']}")["learned"]:
                return str(row["id"]), 0
        return str(rows[0]["id"]), 0

    def group(self) -> str:
        """Return the newest group with a fork; without one the newest group."""
        groups = list(dict.fromkeys(row["group_id"] for row in self.rows()))
        found = (group for group in groups if self.get(f"/groups/{group}")["fork"] is not None)
        return str(next(found, groups[0]))


async def take(browser: Chromium, address: str, route: str, size: tuple[int, int], theme: str, path: Path) -> None:
    """Write a picture of one page."""
    page = await browser.new_page(*size)
    await page.goto(f"{address}/static/icon.svg")
    await page.evaluate(
        f"localStorage.setItem('uirl-theme', '{theme}'); localStorage.setItem('uirl-figure', 'advantage')"
    )
    await page.goto(f"{address}/{route}")
    for _ in range(20 * SECONDS):
        if await page.evaluate("Boolean(document.querySelector('main') && !document.querySelector('.busy'))"):
            break
        await asyncio.sleep(0.05)
    await asyncio.sleep(PAUSE)
    path.write_bytes(await page.screenshot())
    await page.close()
    print(path)


async def take_all(address: str, key: str, out: Path) -> None:
    run = Shown(address, key)
    (id, turn), group = run.episode(), run.group()
    pages = {
        "viewer_run": (f"#/run/{key}", (1280, 1240), "light"),
        "viewer_trajectories": (f"#/run/{key}/trajectories", (1280, 620), "light"),
        "viewer_turn": (f"#/run/{key}/t/{id}/{turn}", (1280, 1000), "light"),
        "viewer_group": (f"#/run/{key}/g/{group}", (1280, 1180), "light"),
        "viewer_narrow": (f"#/run/{key}/t/{id}/{turn}", (390, 844), "dark"),
    }
    browser = Chromium(allow=[address], timeout=SECONDS)
    for name, (route, size, theme) in pages.items():
        await take(browser, address, route, size, theme, out / f"{name}.png")
    await browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    command = [sys.executable, "-m", "uirl", "view", str(options.run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as viewer:
        try:
            assert viewer.stdout is not None
            address = viewer.stdout.readline().split()[-1]
            key = httpx.get(f"{address}/api/runs").json()["runs"][0]["key"]
            asyncio.run(take_all(address, key, options.out))
        finally:
            viewer.terminate()


if __name__ == "__main__":
    main()
