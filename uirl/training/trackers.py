"""Where metrics go beside the file of the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from uirl.errors import ConfigError


class TensorBoardTracker:
    """Event files in the run directory."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def log(self, step: int, row: Mapping[str, float | None]) -> None:
        for name, value in row.items():
            if value is not None:
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    """A run at Weights & Biases. Raises ConfigError where the package is missing."""

    def __init__(self, project: str, name: str, config: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ConfigError("logging.wandb=true needs the package: pip install 'uirl[wandb]'") from error
        self._run = wandb.init(project=project, name=name, config=dict(config), resume="allow")

    def log(self, step: int, row: Mapping[str, float | None]) -> None:
        self._run.log({name: value for name, value in row.items() if value is not None}, step=step)

    def close(self) -> None:
        self._run.finish()
