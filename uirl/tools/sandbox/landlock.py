"""Landlock: the kernel shows this process a few folders of the file system, and lets it write to one."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable

OLDEST_ABI = 3
"""The first that guards against cutting a file to nothing (Linux 6.2)."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE, _READ, _READ_DIR, _TRUNCATE, _IOCTL = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_REMOVE_FILE, _MAKE_FILE = 1 << 5, 1 << 8
_OF_A_FILE = _EXECUTE | _WRITE | _READ | _TRUNCATE
_SEE = _READ | _READ_DIR
# No folders, links or pipes: a working folder that is flat can always be removed.
_WORK = _SEE | _WRITE | _TRUNCATE | _REMOVE_FILE | _MAKE_FILE
_SCOPE_ALL = 0b11


def abi() -> int:
    """Return the version of Landlock in this kernel; 0: it has none."""
    return max(0, _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_ASK_VERSION)))


def restrict(readable: Iterable[str], devices: Iterable[str], work: str) -> None:
    """Limit this process to `readable` folders and files to read, `devices` to read and write, and `work` for files.

    Paths that do not exist are passed over. Raises OSError where the kernel refuses.
    """
    version = abi()
    if version < OLDEST_ABI:
        raise OSError(errno.EOPNOTSUPP, f"Landlock has version {version} here, expected {OLDEST_ABI} or later")
    handled = (1 << 15) - 1 | (_IOCTL if version >= 5 else 0)
    # Files, network (guarded elsewhere), scopes: the kernel takes as many fields as it knows.
    fields = struct.pack("QQQ", handled, 0, _SCOPE_ALL)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    ruleset = _must(_call(_CREATE_RULESET, fields, ctypes.c_size_t(len(fields)), ctypes.c_uint(0)), "create_ruleset")
    for paths, access in ((readable, _SEE), (devices, _READ | _WRITE), ((work,), _WORK)):
        for path in paths:
            _allow(ruleset, path, access)
    _must(_call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0)), "restrict_self")
    os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            access &= _OF_A_FILE
        rule = struct.pack("=Qi", access, descriptor)
        _must(
            _call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint(0)),
            f"add_rule({path})",
        )
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: object) -> int:
    result: int = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *arguments)
    return result


def _must(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"landlock_{what} failed: {errno.errorcode.get(code, code)}")
    return result
