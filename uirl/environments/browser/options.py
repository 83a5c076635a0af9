"""Options of pages in the browser that are checked before one is opened."""

from __future__ import annotations

from typing import Any, Literal

from uirl.environments.ui.actions import ACTIONS, CLICKS, ActionSpace
from uirl.errors import ConfigError

ImageFormat = Literal["png", "jpeg"]


def capture_options(image_format: str, quality: int | None) -> dict[str, Any]:
    """The arguments of `Page.screenshot`. Raises ConfigError."""
    if image_format not in ("png", "jpeg"):
        raise ConfigError(f"image_format is 'png' or 'jpeg', got {image_format!r}")
    if quality is None:
        return {"format": image_format}
    if isinstance(quality, bool) or not isinstance(quality, int) or not 1 <= quality <= 100:
        raise ConfigError(f"quality is that of 'jpeg', an int from 1 to 100, got {quality!r}")
    if image_format == "png":
        raise ConfigError(f"PNG has no quality, got {quality}; set image_format to 'jpeg', or leave quality out (null)")
    return {"format": image_format, "quality": quality}


def check_pointing(space: ActionSpace, say_target: bool, coordinates: str) -> None:
    """Raises ConfigError for options of clicks and positions where no action has any."""
    clicks = [name for name in space.names if name in CLICKS]
    if say_target and not clicks:
        raise ConfigError(
            f"say_target is about clicks, and the actions {', '.join(space.names)} have none; leave it out"
        )
    if coordinates != "pixels" and not any({"x", "y"} & set(ACTIONS[name].arguments) for name in space.names):
        raise ConfigError(
            f"coordinates={coordinates!r} is about positions, and the actions {', '.join(space.names)} have none; "
            "leave it out"
        )
