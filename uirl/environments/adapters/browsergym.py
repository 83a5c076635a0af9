"""`BrowserGymEnvironment`: an environment with a screen behind BrowserGym's observations and action strings.

For agents that were written against BrowserGym. Neither it nor Gymnasium is imported: the calls are those of a
`gymnasium.Env`, so code that only calls them does not see the difference.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from uirl.environments.adapters.browsergym_actions import Unreadable, describe_actions, read_actions
from uirl.environments.adapters.calls import CalledEpisode, EpisodeThread, environment_of
from uirl.environments.base import BaseEnvironment
from uirl.environments.browser.environment import PageEnvironment
from uirl.environments.registry import environment_class, option_names
from uirl.environments.ui.actions import ACTIONS, ActionSpace
from uirl.errors import ConfigError, ContractError
from uirl.images import screenshot
from uirl.types import Action, Observation, StepResult, Task, ToolCall

TREE = 4000
"""Characters of the accessibility tree, where the options do not say."""


class BrowserGymEnvironment:
    """`reset(seed=...)` and `step("mouse_click(3, 4)")`, with observations as BrowserGym's dictionaries.

    An observation holds `goal`, `goal_object`, `chat_messages`, `screenshot` (uint8 [H, W, 3]), `axtree_txt`,
    `last_action`, `last_action_error` and `elapsed_time`, and of a page in the browser `url`, `open_pages_urls`,
    `open_pages_titles` and `active_page_index`. An action that cannot be read or carried out is told in
    `last_action_error`; what the page says (dialogs, windows, files) is a chat message of the role 'info'. A failure of
    the environment is raised, typed; the next `reset` takes a fresh instance.
    """

    metadata: Mapping[str, Any] = {"render_modes": []}

    def __init__(
        self,
        environment: str | BaseEnvironment,
        options: Mapping[str, Any] | None = None,
        *,
        bids: bool = False,
        step_timeout: float = 60.0,
        reset_timeout: float = 120.0,
    ) -> None:
        """Make an environment that opens its page at the first reset.

        Args:
            environment: a name such as 'miniwob', 'package.module:Class', or an environment, used as it is.
            options: of the named environment; `actions` and `tree` default to all of them and to `TREE`.
            bids: numbers are drawn on what can be clicked and written into the tree, and `click('3')` and its like
                name them; those of the tree reach beyond what is in the picture.
            step_timeout, reset_timeout: seconds after which a call is given up.

        Raises:
            ConfigError: an option does not fit, or the environment has no screen to act on.
        """
        if isinstance(environment, str):
            taken = option_names(environment_class(environment)) or set()
            defaults = {"actions": tuple(ACTIONS), "tree": TREE, "marks": bids}
            options = {name: value for name, value in defaults.items() if name in taken} | dict(options or {})
        env = environment_of(environment, options)
        space = getattr(env, "space", None)
        if not isinstance(space, ActionSpace):
            raise ConfigError(
                f"{type(env).__name__} has no `space` of user interface actions; expected one with a screen"
            )
        self.space = space
        """The actions that are offered, in our words."""
        self._episode = CalledEpisode(env, step_timeout=step_timeout, reset_timeout=reset_timeout)
        self._thread = EpisodeThread(self._episode)
        self._started = 0.0
        self._goal = ""
        self._picture: np.ndarray[Any, np.dtype[np.uint8]] | None = None
        self._messages: list[dict[str, Any]] = []

    @property
    def unwrapped(self) -> BrowserGymEnvironment:
        return self

    def describe_actions(self) -> str:
        """Return the functions an action string may call, one per line: for a prompt."""
        return describe_actions()

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the first observation and info. `options={"task": "miniwob/click-test"}` chooses a task.

        Raises EnvironmentFailure or EpisodeTimeout.
        """
        named = (options or {}).get("task")
        first = self._thread.run(self._episode.reset(Task(id=named) if named else None, seed))
        self._started = time.monotonic()
        self._goal = self._thread.run(self._episode.state_description())
        self._messages = []
        self._add_message("user", self._goal)
        return self._observe(first, "", ""), {"task_info": dict(first.info)}

    def step(self, action: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """(Observation, reward, terminated, truncated, info) after an action string.

        A string of several calls is several actions: their rewards are summed, and what comes after a mistake or after
        the end of the episode is not done. Raises EnvironmentFailure or EpisodeTimeout, and ContractError after the
        end.
        """
        if not self._episode.running and self._episode.failure is None:
            raise ContractError("step after the end of an episode; call reset first")
        reward, results = 0.0, []
        for ui_action in self._actions(action):
            results.append(self._thread.run(self._episode.act(ui_action)))
            reward += results[-1].reward
            self._note_page_text(results[-1].observation)
            if results[-1].done or _mistake(results[-1]):
                break
        if not results:  # noop(0): nothing was done, and nothing new is seen
            return self._observe(Observation(), action, ""), 0.0, False, False, {"task_info": {}}
        last = results[-1]
        seen = self._observe(last.observation, action, _mistake(last))
        return seen, reward, last.terminated, last.truncated, {"task_info": dict(last.observation.info)}

    def close(self) -> None:
        """Free the page. Calling it twice is fine; so is another `reset`."""
        self._thread.close()

    def _actions(self, text: str) -> list[Action]:
        try:
            calls = [call for function in read_actions(text) for call in function]
        except Unreadable as problem:
            return [Action(text=text, parse_error=str(problem))]
        return [Action(text=text, tool_calls=(self._offered(call),)) for call in calls]

    def _offered(self, call: ToolCall) -> ToolCall:
        """Return the call; a wait becomes another look where no waiting is offered."""
        if call.name == "wait" and "wait" not in self.space.names and "screenshot" in self.space.names:
            return ToolCall("screenshot")
        if call.name == "answer":
            self._add_message("assistant", str(call.arguments.get("text", "")))
        return call

    def _observe(self, seen: Observation, action: str, error: str) -> dict[str, Any]:
        if seen.images:  # an episode that ended has no new picture: the last one stays
            self._picture = np.asarray(screenshot(seen.images[-1]).open())
        if self._picture is None:
            raise ContractError(f"{type(self._episode.env).__name__} showed no picture; expected one with a screen")
        return {
            "goal": self._goal,
            "goal_object": ({"type": "text", "text": self._goal},),
            "chat_messages": tuple(dict(message) for message in self._messages),
            "screenshot": self._picture,
            "axtree_txt": str(getattr(self._episode.env, "accessibility", "")),
            **_tabs_of(self._episode.env),
            "last_action": action,
            "last_action_error": error,
            "elapsed_time": np.asarray([time.monotonic() - self._started]),
        }

    def _note_page_text(self, seen: Observation) -> None:
        """Keep what the page said beside its tree."""
        page_text = seen.text.removesuffix(str(getattr(self._episode.env, "accessibility", ""))).strip()
        if page_text and "mistake" not in seen.info:
            self._add_message("info", page_text)

    def _add_message(self, role: str, message: str) -> None:
        self._messages.append({"role": role, "timestamp": time.time(), "message": message})


def _tabs_of(env: BaseEnvironment) -> dict[str, Any]:
    """Return what BrowserGym tells of the open tabs; empty for a screen that is no browser of ours."""
    if not isinstance(env, PageEnvironment):
        return {}
    tabs, active = env.tabs
    return {
        "url": tabs[active][0],
        "open_pages_urls": tuple(url for url, _ in tabs),
        "open_pages_titles": tuple(title for _, title in tabs),
        "active_page_index": np.asarray([active]),
    }


def _mistake(result: StepResult) -> str:
    """Return what was wrong with an action, in words for the policy; empty: nothing."""
    return str(result.observation.info.get("mistake", ""))
