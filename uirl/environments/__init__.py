"""What an agent can use, behind one contract. Names load when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uirl.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from uirl.environments.adapters.gym_env import GymEnv
    from uirl.environments.adapters.gymnasium import GymnasiumEnvironment
    from uirl.environments.base import BaseEnvironment
    from uirl.environments.browser.miniwob import MiniWobEnvironment
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
    from uirl.environments.tool_use.arithmetic import CalculatorEnvironment, LookupEnvironment
    from uirl.environments.tool_use.environment import ToolEnvironment
    from uirl.environments.tool_use.errands import ErrandsEnvironment

_HOMES = {
    "uirl.environments.adapters.gym_env": "GymEnv",
    "uirl.environments.adapters.gymnasium": "GymnasiumEnvironment",
    "uirl.environments.base": "BaseEnvironment",
    "uirl.environments.browser.miniwob": "MiniWobEnvironment",
    "uirl.environments.browser.web": "WebEnvironment",
    "uirl.environments.conformance": "EnvironmentReport check_environment",
    "uirl.environments.data_entry.environment": "DataEntryEnvironment",
    "uirl.environments.mobile_world.environment": "MobileWorldEnvironment",
    "uirl.environments.registry": "ENVIRONMENTS create_environment environment_class",
    "uirl.environments.remote.client.native": "NativeRemoteEnvironment",
    "uirl.environments.remote.client.openenv": "OpenEnvEnvironment",
    "uirl.environments.remote.client.ui_verifiers": "UIVerifiersEnvironment",
    "uirl.environments.screen.environment": "ScreenEnvironment",
    "uirl.environments.scripted": "Play play_episode scripted_success",
    "uirl.environments.session": "EnvironmentSession",
    "uirl.environments.text.guess_number": "GuessNumberEnvironment",
    "uirl.environments.text.simple_game": "SimpleGameEnvironment",
    "uirl.environments.tool_use.arithmetic": "CalculatorEnvironment LookupEnvironment",
    "uirl.environments.tool_use.environment": "ToolEnvironment",
    "uirl.environments.tool_use.errands": "ErrandsEnvironment",
}

__getattr__, __all__ = lazy_exports(__name__, _HOMES)
