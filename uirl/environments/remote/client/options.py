"""The options of environments behind servers: the pool they share, and those of each protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from uirl.config.section import Count, NonNegative, Positive
from uirl.environments.options import EnvironmentOptions, MistakeReward, Names
from uirl.environments.ui.vocabulary import Coordinates
from uirl.errors import ConfigError


class ServerPoolOptions(EnvironmentOptions):
    """Servers that offer the same environment, and how long they are waited for."""

    renamed: ClassVar[Mapping[str, str]] = {
        "spares": "fallback_urls",
        "patience": "acquire_timeout",
        "rest": "retry_backoff",
        "most": "max_sessions",
        "sessions_per_server": "max_sessions",
    }

    url: str | None = None
    """Address of the server; None: `urls`, or http://127.0.0.1 and the protocol's usual port."""
    urls: Names = ()
    """Addresses of several servers."""
    fallback_urls: Names = ()
    """Servers that are used only while none of the others is."""
    token_env: str | None = None
    """Environment variable with the servers' token, sent as a bearer token; None: none."""
    acquire_timeout: NonNegative = 30.0
    """Seconds that a reset waits for a server with room."""
    retry_backoff: NonNegative = 5.0
    """Seconds that a server which failed is left alone; they double with each failure in a row."""
    step_timeout: Positive = 60.0
    """Seconds for a server to answer a step."""


class RemoteOptions(ServerPoolOptions):
    """The same, of environments whose reset is one request."""

    reset_timeout: Positive = 180.0
    """Seconds for a server to answer a reset."""


class NativeRemoteOptions(RemoteOptions):
    """An environment that `uirl serve` serves."""

    key = "remote"

    max_sessions: Count | None = None
    """Sessions per server that this process opens; None: as many as a server takes."""
    blind: bool = False
    """Go without rewards (0.0 each), for an agent's token; None of the episodes says whether it succeeded."""
    variant: str | None = None
    """Name of one of the environment's controls, to play it."""


class UIVerifiersOptions(RemoteOptions):
    """A screen behind a server of ui-verifiers."""

    key = "ui_verifiers"

    acquire_timeout: NonNegative = 60.0
    """Seconds that a reset waits for a server with room."""
    protocol: Literal["auto", "M", "S"] = "auto"
    """M: a session per episode, a mouse; S: one session for the life of the server, mouse and keyboard. 'auto' asks the
    server."""
    session_type: str = "simple_data_entry"
    """Which task a session of protocol M is."""
    prompt: str = ""
    """The goal, which is not on the wire; a task with a goal of its own replaces it."""
    rows: Count | None = None
    """Correct rows that end the episode as a success; None: it ends by `terminate` or its turns alone."""
    wrong_cost: NonNegative = 0.1
    """What a wrong submission costs."""
    max_turns: Count | None = 50
    """Actions per episode; None: the run's limit alone."""
    width: Count = 1280
    """Width of the screen in pixels."""
    height: Count = 800
    """Height of the screen in pixels."""
    coordinates: Coordinates = "pixels"
    """Of the policy: 'pixels', or 'grid_999'."""
    delay: NonNegative = 1.0
    """Seconds that the server waits between an action and its screenshot."""

    @model_validator(mode="after")
    def _protocol_has_session_types(self) -> Self:
        if self.protocol == "S" and self.session_type != "simple_data_entry":
            raise ConfigError(
                f"ui_verifiers: protocol 'S' opens no sessions, so it has no session_type, got {self.session_type!r}; "
                "leave it out, or set protocol to 'auto' or 'M'"
            )
        return self


class OpenEnvOptions(RemoteOptions):
    """An environment behind OpenEnv's `/ws`."""

    key = "openenv"

    action_format: str = "json"
    """Parser of the policy's replies; 'text': the reply is the action."""
    name_field: str | None = None
    """Field of the server's action for the name of a call, of no use with 'text'; None: read from its schema."""
    text_field: str | None = None
    """Field that takes the reply, with 'text' alone; None: the schema's only text field."""
    reset_options: dict[str, Any] | None = None
    """Further data of every reset, such as a difficulty."""
    describe: Literal["template", "prompt", "none"] = "template"
    """Where the policy reads of a server's tools: the chat template shows them, a list after `prompt`, or nowhere."""
    prompt: str = ""
    """The system prompt, which is not on the wire."""
    max_turns: Count | None = None
    """Actions per episode; None: the run's limit alone."""
    invalid_reward: MistakeReward | None = None
    """Reward of a reply that is no action, also of one that the server refuses; None: the lowest that the servers gave
    in this process so far, at most 0."""
    blind: bool = False
    """Go without rewards, for the agent's token of a `uirl serve`."""

    @model_validator(mode="after")
    def _fields_are_read(self) -> Self:
        if self.name_field is not None and self.action_format == "text":
            raise ConfigError(
                "openenv: name_field is for the name of a call, and action_format 'text' has none, got "
                f"{self.name_field!r}; leave it out, or choose the parser of another format"
            )
        if self.text_field is not None and self.action_format != "text":
            raise ConfigError(
                f"openenv: text_field is for action_format 'text', got {self.action_format!r} and {self.text_field!r}; "
                "leave it out"
            )
        return self
