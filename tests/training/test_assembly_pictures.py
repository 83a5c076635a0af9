"""Where a run keeps its pictures: in memory, or in a folder where other processes play."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.inference.pictures import picture
from uirl import ConfigError, ConfigStore
from uirl.images import ImageStore
from uirl.training.assembly import assemble
from uirl.workers.pictures import SharedImageStore


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


async def test_what_became_of_pictures_goes_one_update_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.time", lambda: now)
    parts = assemble(settings(model={"device": "cpu", "model_name": "uirl/tiny-vlm", "picture_cache_gib": 0.5}))
    vision = parts.learner.policy.loaded.vision
    assert vision is not None
    assert vision.cache.kept.max_bytes == 2**29
    old, new = picture(1), picture(2)
    now = 2000.0
    vision.cache.kept.forget_before(now)
    vision.encode([parts.images.put(old)])
    now = 3000.0
    vision.encode([parts.images.put(new)])
    parts.forget_pictures(2500.0)
    assert (len(parts.images), len(vision.cache.kept)) == (1, 2)
    parts.forget_pictures(2500.0)
    assert (len(parts.images), len(vision.cache.kept)) == (1, 1)
    await parts.close()


def test_ray_and_processes_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="in Ray's actors or in processes of this machine"):
        settings(ray={"use_ray": True}, actors={"processes": 2})
