"""What many tests share: tiny real models, one thread."""

from __future__ import annotations

import gc
import os
import signal
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

from uirl.config import ModelConfig
from uirl.inference.models.chat import ChatRenderer
from uirl.inference.models.loading import LoadedModel, load_model
from uirl.runtime.memory import set_aside

# no clock judges a test, and a refusal can be repeated: the same examples each time
steady = settings(derandomize=True, max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", steady)
settings.register_profile("thorough", steady, derandomize=False, max_examples=500)
settings.load_profile("steady")

# a shell starts what it puts into the background with Ctrl-C ignored, and what tests start would inherit that
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# and so it is with the end of a terminal under nohup
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

LONGEST = (
    *("test_learning.py", "test_every_run_option.py", "test_miniwob_graded.py"),
    *("test_reports.py", "test_hostile.py", "test_loop.py", "test_features.py", "test_resume.py", "test_miniwob.py"),
)
"""Files that take half a minute or more: they begin first, so that no process plays one alone at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests of `LONGEST` first, in its order; the others keep theirs."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is there by now stays: not to walk over it again and again spares a sixteenth of the time."""
    context = set_aside()
    context.__enter__()
    session.config.add_cleanup(lambda: context.__exit__(None, None, None))
    gc.set_threshold(50_000, 50, 100)
    if record := sys.modules.get("uirl.training.record.record"):  # a quarter of a short run
        record.draw_curve = lambda path, *_, **__: path.touch()


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs of tests are not noted as runs of whoever tests."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def tiny_model(name: str = "uirl/tiny-vlm", **tiny: object) -> LoadedModel:
    """A built-in model on the CPU, seed 0."""
    config = ModelConfig(model_name=name, device="cpu")
    for key, value in tiny.items():
        setattr(config.tiny, key, value)
    return load_model(config, seed=0)


@pytest.fixture(scope="session")
def vlm() -> LoadedModel:
    return tiny_model()


@pytest.fixture(scope="session")
def lm() -> LoadedModel:
    return tiny_model("uirl/tiny-lm")


@pytest.fixture(scope="session")
def vlm_chat(vlm: LoadedModel) -> ChatRenderer:
    return ChatRenderer(vlm)
