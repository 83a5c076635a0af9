"""Stored trajectories as chat messages, for supervised fine-tuning with any tool that reads JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from uirl.errors import StorageError
from uirl.files import write_atomically
from uirl.images import Screenshot
from uirl.storage.trajectories import TrajectoryStore, TrajectorySummary
from uirl.types import Trajectory, Turn

_SIGNATURES = ((b"\x89PNG", ".png"), (b"\xff\xd8\xff", ".jpg"), (b"RIFF", ".webp"), (b"GIF8", ".gif"))


def solved(summary: TrajectorySummary) -> bool:
    """Whether an episode is evidence and its task was solved."""
    return summary.success is True and summary.failure is None


def export_sft(
    store: TrajectoryStore,
    path: str | os.PathLike[str],
    where: Callable[[TrajectorySummary], bool] = solved,
    *,
    system_prompt: str | None = None,
) -> int:
    """How many trajectories were written to `path`, one JSON object per line.

    A line holds `messages` (role and content; user content is a list of `{"type": "image", "image": path}` and
    `{"type": "text", "text": ...}`), `images` (the same paths in order), `id`, `task` and `reward`. Pictures lie in the
    folder `<name>_images` beside the file, each once, and paths are relative to the file's folder.

    Args:
        store: The trajectories of a run.
        path: The file, replaced in one step after its pictures are there.
        where: Which trajectories; the default takes the solved ones.
        system_prompt: First message of each; None: no system message. (The environment's prompt is in the token ids of
            a trajectory, not in its messages.)

    Raises:
        StorageError: A chosen trajectory was stored without its screenshots, or has a turn with tool calls but no
            text, from which nothing can be learned; or the disk is full.
    """
    target = Path(path)
    folder = target.with_name(f"{target.stem}_images")
    lines = []
    for summary in store.list():
        if where(summary):
            trajectory = store.get(summary.id)
            lines.append(json.dumps(_line(trajectory, folder, system_prompt)) + "\n")
    write_atomically(target, "".join(lines))
    return len(lines)


def _line(trajectory: Trajectory, folder: Path, system_prompt: str | None) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    if system_prompt is not None:
        messages.append({"role": "system", "content": system_prompt})
    images: list[str] = []
    for index, turn in enumerate(trajectory.turns):
        where = f"trajectory {trajectory.id}: turns[{index}]"
        paths = [_save(picture, folder, where) for picture in turn.observation.images]
        parts = [{"type": "image", "image": path} for path in paths]
        texts = [{"type": "text", "text": turn.observation.text}] if turn.observation.text or not parts else []
        messages.append({"role": "user", "content": [*parts, *texts]})
        messages.append({"role": "assistant", "content": _reply(turn, where)})
        images.extend(paths)
    return {
        "id": trajectory.id,
        "task": trajectory.task.id,
        "reward": trajectory.total_reward(),
        "messages": messages,
        "images": images,
    }


def _reply(turn: Turn, where: str) -> str:
    if not turn.action.text and turn.action.tool_calls:
        raise StorageError(
            f"{where} has tool calls but no text; expected the reply as the policy wrote it: render the action with "
            "the environment's parser before it is stored"
        )
    return turn.action.text


def _save(picture: Any, folder: Path, where: str) -> str:
    """The path of a picture, relative to the folder of the export; written where it is not there yet."""
    if not isinstance(picture, Screenshot):
        raise StorageError(f"{where}: the image {picture} was not kept; store runs with logging.store_images=true")
    ending = next((end for start, end in _SIGNATURES if picture.data.startswith(start)), ".bin")
    file = folder / f"{picture.hash}{ending}"
    if not file.exists():
        write_atomically(file, picture.data)
    return f"{folder.name}/{file.name}"
