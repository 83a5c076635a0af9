"""Whose doing it is that a call did not come back: the policy's, who chose the arguments, or the world's."""

from __future__ import annotations

import errno
import logging
from collections import Counter
from collections.abc import Iterator

from uirl.errors import UirlError, is_round
from uirl.tools.base import ToolError

_LOG = logging.getLogger(__name__)

BY_ARGUMENTS = frozenset(
    {errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY}
    | {errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP, errno.E2BIG, errno.EFBIG}
)
"""What an OSError says of a path or a size that a call named."""
_MISHAPS: Counter[tuple[str, str]] = Counter()
"""(tool, what happened) -> how often in this process."""


def is_failure(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Return whether something other than the call is at fault: `error` or one of its causes is of `kinds`.

    An OSError about a path or a time limit is the call's, whatever `kinds` say; an error of ours is not.
    """
    return any(isinstance(cause, (*kinds, UirlError)) and not _of_the_call(cause) for cause in _causes(error))


def told(tool: str, what: str, words: str) -> ToolError:
    """Return what the policy is shown of a failed call; the person is warned the first time, the 10th, the 100th."""
    _MISHAPS[tool, what] += 1
    count = _MISHAPS[tool, what]
    if is_round(count):
        _LOG.warning(
            "tool %r %s (time %d in this process), and the policy was told: %.200s. Is it the policy's doing? Raise "
            "ToolError in the tool to say so, EnvironmentFailure where it is not",
            tool,
            what,
            count,
            words,
        )
    return ToolError(words)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def _of_the_call(error: BaseException) -> bool:
    return isinstance(error, OSError) and (isinstance(error, TimeoutError) or error.errno in BY_ARGUMENTS)
