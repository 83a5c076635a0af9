"""The options of `MobileWorldEnvironment`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from uirl.config.section import Count, NonNegative, Positive
from uirl.environments.options import Names
from uirl.environments.remote.client.options import ServerPoolOptions
from uirl.errors import ConfigError

Prompt: TypeAlias = Literal["own", "mai_ui"]


class MobileWorldOptions(ServerPoolOptions):
    """Android phones behind MobileWorld servers, one phone and one episode per server."""

    key = "mobile_world"

    acquire_timeout: NonNegative = 900.0
    """Seconds that a reset waits for a free phone."""
    retry_backoff: NonNegative = 20.0
    """Seconds that a server which failed is left alone; they double with each failure in a row."""
    device: str = "emulator-5554"
    """Serial of the phone on its server."""
    task_names: Names = ()
    """The tasks; none: all that the other options leave."""
    tags: Names = ()
    """A task has all of them."""
    without_tags: Names = ()
    """A task has none of them."""
    apps: Names = ()
    """A task uses no others; none: any."""
    more_apps: Names = ()
    """Names that `open` knows beside those of every version of the server."""
    mcp: dict[str, Any] | None = None
    """Servers of tools by the name that tasks know them under, each the arguments of an `MCPServer`. A task that needs
    one which is not here is left out."""
    ask_user: bool = True
    """The action `ask_user` is offered; false leaves out the tasks that need it."""
    max_turns: Count | None = 50
    """Actions per episode; None: the run's limit alone."""
    prompt: Prompt | None = None
    """What the policy is told: 'mai_ui' is the published protocol of MobileWorld's agent for MAI-UI, 'own' says what
    happened to a reply that was refused; None: 'own', unless an agent loop chooses."""
    suite: Literal["mobile_world", "android_world"] = "mobile_world"
    """Family of tasks; later servers know 'android_world'."""
    suite_seed: int | None = None
    """Seed of the parameters of the tasks of 'android_world'; None: the server's choice."""
    image_size: Annotated[tuple[Count, Count], Field(strict=False)] | None = None
    """Width and height of the pictures that the policy sees; None: those of the screen."""
    step_wait_time: NonNegative = 1.0
    """Seconds between an action, or the set-up of a task, and the screenshot after it."""
    task_timeout: Positive = 300.0
    """Seconds for the server to set up or score a task."""
    tear_down_timeout: Positive = 60.0
    """Seconds for the server to tear a task down."""
    restart_timeout: Positive = 600.0
    """Seconds for the server to restart its emulator."""

    @property
    def suite_query(self) -> dict[str, str]:
        """The parameters of a request for the suite."""
        return {"target_family": self.suite} | ({} if self.suite_seed is None else {"seed": str(self.suite_seed)})

    @model_validator(mode="after")
    def _seed_is_read(self) -> Self:
        if self.suite_seed is not None and self.suite == "mobile_world":
            raise ConfigError("mobile_world: the tasks of mobile_world take no seed; leave suite_seed out")
        return self
