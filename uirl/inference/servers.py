"""What the engines share whose model runs in another program: the way to its server, to its folder, to its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from uirl.errors import ContractError
from uirl.inference.base import Weights
from uirl.inference.http import ModelServerClient
from uirl.inference.models.loading import BUILT_IN_MODELS, LoadedModel
from uirl.inference.models.unpacked import folder_of
from uirl.inference.weight_files import WeightFiles, plain_parameters

if TYPE_CHECKING:
    from uirl.config import InferenceConfig

_OPENAI_KEY = "OPENAI_API_KEY"


def server_client(settings: InferenceConfig, url: str, *, key_variable: str = _OPENAI_KEY) -> ModelServerClient:
    """Build the client of the server at `url`, as the section `inference` says.

    `key_variable`: the environment variable that the server itself reads its key from. It stands in for OpenAI's where
    the config names no other: the key of one company's API is never sent to a server of somebody else.
    """
    name = settings.api_key_env
    return ModelServerClient(
        url,
        api_key_env=key_variable if name == _OPENAI_KEY else name,
        timeout=settings.request_timeout,
        retries=settings.request_retries,
    )


def model_folder(name: str, loaded: LoadedModel, files: WeightFiles, *, program: str) -> str:
    """Where `program` finds the model: its own folder or HF id `name`, or one that is written here for a model that has
    none.

    Raises ContractError for a model that exists nowhere else and was loaded without weights.
    """
    if loaded.name == name and name not in BUILT_IN_MODELS:
        return folder_of(name)
    if loaded.device.type == "meta":
        raise ContractError(f"{loaded.name} was loaded without weights, and {program} cannot find them under {name!r}")
    folder = files.path / "model"
    loaded.save(folder, {name: parameter.detach() for name, parameter in plain_parameters(loaded)})
    return str(folder)


def pushed_weights(
    weights: Weights | None, adapter: Mapping[str, Any] | None, *, takes_adapters: bool, program: str
) -> Weights:
    """Return the weights of an update of `program`, which has its own copy of the model. Raises ContractError where
    there are none, and for an adapter where it takes none."""
    if weights is None:
        raise ContractError(
            f"update_weights(None) needs an engine that shares the learner's module; {program} does not: send weights"
        )
    if adapter is not None and not takes_adapters:
        raise ContractError("this engine takes no adapters (takes_adapters is False); send merged weights")
    return weights
