import pytest

from tests.learner.worlds import make_config
from uirl.images import ImageStore
from uirl.learner import Policy


@pytest.fixture
def images() -> ImageStore:
    return ImageStore()


@pytest.fixture
def policy() -> Policy:
    return Policy.from_config(make_config(), critic=True)
