"""Where a run keeps its pictures: in memory, or in a folder where other processes play."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from uirl import ConfigError, ConfigStore
from uirl.images import ImageStore
from uirl.peers.pictures import SharedImageStore
from uirl.training.assembly import assemble


def settings(**sections: Any) -> ConfigStore:
    return ConfigStore.from_dict({"environment": {"name": "guess_number"}, "model": {"device": "cpu"}, **sections})


async def test_in_one_process_pictures_are_in_memory() -> None:
    parts = assemble(settings())
    assert type(parts.images) is ImageStore
    await parts.close()


@pytest.mark.parametrize("sections", [{"ray": {"use_ray": True}}, {"actors": {"processes": 2}}])
async def test_where_others_play_they_are_in_a_folder_that_goes_with_the_run(
    sections: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    actors = {**sections.get("actors", {}), "pictures": str(tmp_path / "shared")}
    parts = assemble(settings(**{**sections, "actors": actors}))
    assert isinstance(parts.images, SharedImageStore)
    assert parts.images.shared.folder.parent == tmp_path / "shared"
    await parts.close()
    assert list((tmp_path / "shared").iterdir()) == []


def test_ray_and_processes_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="in Ray's actors or in processes of this machine"):
        settings(ray={"use_ray": True}, actors={"processes": 2})
