"""Demonstrations: made as they are needed, and kept whole for as long as they are drawn from."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

from tests.rollout.worlds import Countdown
from tests.training.test_loop import settings
from uirl.images import ImageStore
from uirl.training.assembly import assemble
from uirl.training.warm_start import Demonstrations


def test_the_pictures_of_demonstrations_outlive_the_bound_of_the_store(tmp_path: Path) -> None:
    config = settings(tmp_path)
    config.model.model_name = "uirl/tiny-vlm"
    parts = assemble(config, Countdown(length=2, pictures=True))
    small = ImageStore(capacity=1)
    parts.images = parts.collector.images = parts.learner.images = small

    async def learn() -> None:
        demonstrations = Demonstrations(parts, size=2, seed=0)
        made = await demonstrations.batch(2)
        assert len({hash for sample in made for hash in sample.images}) > 1
        for _ in range(2):  # from now on those that were made are drawn again
            gc.collect()
            assert parts.learner.supervised(await demonstrations.batch(2))["sequences"] == 2
        await parts.close()

    asyncio.run(learn())
