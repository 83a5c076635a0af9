"""A seccomp filter: the kernel refuses sockets, new processes, signals to others and the ways around the limits."""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterator

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine -> column of the table below, AUDIT_ARCH value."""

# Numbers of x86_64 and aarch64; None: the machine has no such call.
_NETWORK = {"socket": (41, 198)}
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # other processes: no children (none can be left behind, none can multiply), nothing sent to or read from anybody
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    # memory that no limit of ours counts, or that stays after the process
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    # ways around the filter and the limits
    "setrlimit": (160, 164), "unshare": (272, 97), "setns": (308, 268), "io_uring_setup": (425, 425),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    # what Landlock leaves open: rights and owners of files of the same user
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
}  # fmt: skip
_CLONE, _CLONE3 = (56, 220), (435, 435)
_PRLIMIT, _PRCTL, _FCNTL = (302, 261), (157, 167), (72, 25)

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_REFUSE = _ERRNO | errno.EPERM
_NUMBER, _ARCHITECTURE = 0, 4
_X32 = 0x40000000
_CLONE_THREAD = 0x00010000
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _FILTER_MODE = 1, 22, 2
_F_SETOWN, _F_SETOWN_EX = 8, 15

_Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, constant."""


def install(machine: str, network: bool) -> None:
    """Puts the filter on this process for good, which must have set PR_SET_NO_NEW_PRIVS.

    Raises OSError where the kernel does not take it.
    """
    program = b"".join(struct.pack("HBBI", *instruction) for instruction in build(machine, network))
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    pointer = ctypes.create_string_buffer(header, len(header))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_FILTER_MODE), pointer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the kernel takes no seccomp filter: {errno.errorcode.get(number, number)}")


def build(machine: str, network: bool) -> list[_Instruction]:
    """The filter program for `machine`; with `network`, sockets are allowed."""
    column, architecture = ARCHITECTURES[machine]
    program: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        # The x32 numbers are second names of the same calls.
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _REFUSE),
        # The flags of clone3 lie in memory, where no filter looks: the C library falls back to clone.
        (_EQUAL, 0, 1, _CLONE3[column]),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    refused = _REFUSED if network else {**_REFUSED, **_NETWORK}
    for numbers in refused.values():
        number = numbers[column]
        if number is not None:
            program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    thread = [(_low(0), _ANY_BIT, _CLONE_THREAD, True)]
    only_read = [(_low(2), _EQUAL, 0, True), (_low(2) + 4, _EQUAL, 0, True)]
    own_death = [(_low(0), _EQUAL, _PR_SET_PDEATHSIG, False)]
    own_signals = [(_low(1), _EQUAL, _F_SETOWN, False), (_low(1), _EQUAL, _F_SETOWN_EX, False)]
    for number, tests in (
        (_CLONE[column], thread),
        (_PRLIMIT[column], only_read),
        (_PRCTL[column], own_death),
        (_FCNTL[column], own_signals),
    ):
        body = [instruction for test in tests for instruction in _unless(*test)]
        program += [(_EQUAL, 0, len(body) + 1, number), *body, (_RETURN, 0, 0, _ALLOW)]
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _low(argument: int) -> int:
    """Offset of the lower half of a call's argument (both machines are little-endian)."""
    return 16 + 8 * argument


def _unless(offset: int, test: int, constant: int, wanted: bool) -> Iterator[_Instruction]:
    yield (_LOAD, 0, 0, offset)
    yield (test, 1, 0, constant) if wanted else (test, 0, 1, constant)
    yield (_RETURN, 0, 0, _REFUSE)
