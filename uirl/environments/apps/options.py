"""The options of `AppsEnvironment`."""

from __future__ import annotations

from typing import Literal

from uirl.environments.browser.environment import PageOptions
from uirl.environments.options import Names


class AppsOptions(PageOptions):
    """A real web application: records to add, to change, to remove and to find in it."""

    key = "apps"

    app: str = "django"
    """An app of `uirl apps`, or a folder that `uirl apps add` wrote."""
    split: Literal["train", "test", "all"] = "train"
    """Which tasks: 'test' has the entities and the templates that 'train' does not have."""
    tags: Names = ()
    """Of these only the tasks that carry every one of the tags: a group, an entity or a template, for example
    ['shop', 'edit']."""
