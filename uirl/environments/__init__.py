"""What an agent can use, behind one contract. Names load when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uirl.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from uirl.environments.adapters.gym_env import GymEnv
    from uirl.environments.adapters.gymnasium import GymnasiumEnvironment
    from uirl.environments.base import BaseEnvironment
    from uirl.environments.browser.miniwob.environment import MiniWobEnvironment
    from uirl.environments.browser.web import WebEnvironment
    from uirl.environments.conformance import EnvironmentReport, check_environment
    from uirl.environments.data_entry.environment import DataEntryEnvironment
    from uirl.environments.mobile_world.environment import MobileWorldEnvironment
    from uirl.environments.registry import ENVIRONMENTS, create_environment, environment_class
    from uirl.environments.remote.client.native import NativeRemoteEnvironment
    from uirl.environments.remote.client.openenv import OpenEnvEnvironment
    from uirl.environments.remote.client.ui_verifiers import UIVerifiersEnvironment
    from uirl.environments.screen.environment import ScreenEnvironment
    from uirl.environments.scripted import Play, play_episode, scripted_success
    from uirl.environments.session import EnvironmentSession
    from uirl.environments.text.guess_number import GuessNumberEnvironment
    from uirl.environments.text.simple_game import SimpleGameEnvironment
    from uirl.environments.tool_use.calculator import CalculatorEnvironment
    from uirl.environments.tool_use.environment import ToolEnvironment
    from uirl.environments.tool_use.lookup import LookupEnvironment

_EXPORTS = {
    "BaseEnvironment": "uirl.environments.base",
    "EnvironmentReport": "uirl.environments.conformance",
    "check_environment": "uirl.environments.conformance",
    "Play": "uirl.environments.scripted",
    "play_episode": "uirl.environments.scripted",
    "scripted_success": "uirl.environments.scripted",
    "EnvironmentSession": "uirl.environments.session",
    "ENVIRONMENTS": "uirl.environments.registry",
    "create_environment": "uirl.environments.registry",
    "environment_class": "uirl.environments.registry",
    "CalculatorEnvironment": "uirl.environments.tool_use.calculator",
    "GuessNumberEnvironment": "uirl.environments.text.guess_number",
    "GymEnv": "uirl.environments.adapters.gym_env",
    "GymnasiumEnvironment": "uirl.environments.adapters.gymnasium",
    "LookupEnvironment": "uirl.environments.tool_use.lookup",
    "DataEntryEnvironment": "uirl.environments.data_entry.environment",
    "MiniWobEnvironment": "uirl.environments.browser.miniwob.environment",
    "WebEnvironment": "uirl.environments.browser.web",
    "MobileWorldEnvironment": "uirl.environments.mobile_world.environment",
    "NativeRemoteEnvironment": "uirl.environments.remote.client.native",
    "OpenEnvEnvironment": "uirl.environments.remote.client.openenv",
    "ScreenEnvironment": "uirl.environments.screen.environment",
    "SimpleGameEnvironment": "uirl.environments.text.simple_game",
    "UIVerifiersEnvironment": "uirl.environments.remote.client.ui_verifiers",
    "ToolEnvironment": "uirl.environments.tool_use.environment",
}

__all__ = [
    "ENVIRONMENTS",
    "BaseEnvironment",
    "CalculatorEnvironment",
    "DataEntryEnvironment",
    "EnvironmentReport",
    "EnvironmentSession",
    "GuessNumberEnvironment",
    "GymEnv",
    "GymnasiumEnvironment",
    "LookupEnvironment",
    "MiniWobEnvironment",
    "MobileWorldEnvironment",
    "NativeRemoteEnvironment",
    "OpenEnvEnvironment",
    "Play",
    "ScreenEnvironment",
    "SimpleGameEnvironment",
    "ToolEnvironment",
    "UIVerifiersEnvironment",
    "WebEnvironment",
    "check_environment",
    "create_environment",
    "environment_class",
    "play_episode",
    "scripted_success",
]

__getattr__ = lazy_exports(__name__, _EXPORTS)
