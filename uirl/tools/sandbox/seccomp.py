"""A seccomp filter: of the kernel's calls a program gets those that computing takes, and no other, known or not."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine -> column of the tables below, AUDIT_ARCH value."""

_Numbers = dict[str, tuple[int | None, int | None]]
"""Name of a call -> its numbers on x86_64 and aarch64 (asm/unistd_64.h, asm-generic/unistd.h); None: it has none."""

_ALLOWED: _Numbers = {
    # files, which Landlock guards, and memory, which the limits count
    "access": (21, None), "brk": (12, 214), "chdir": (80, 49), "close": (3, 57), "close_range": (436, 436),
    "copy_file_range": (326, 285), "creat": (85, None), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24),
    "faccessat": (269, 48), "faccessat2": (439, 439), "fadvise64": (221, 223), "fallocate": (285, 47),
    "fchdir": (81, 50), "fdatasync": (75, 83), "fstat": (5, 80), "fstatfs": (138, 44), "fsync": (74, 82),
    "ftruncate": (77, 46), "getcwd": (79, 17), "getdents": (78, None), "getdents64": (217, 61), "lseek": (8, 62),
    "lstat": (6, None), "madvise": (28, 233), "mmap": (9, 222), "mprotect": (10, 226), "mremap": (25, 216),
    "msync": (26, 227), "munmap": (11, 215), "newfstatat": (262, 79), "open": (2, None), "openat": (257, 56),
    "pipe": (22, None), "pipe2": (293, 59), "pread64": (17, 67), "preadv": (295, 69), "preadv2": (327, 286),
    "pwrite64": (18, 68), "pwritev": (296, 70), "pwritev2": (328, 287), "read": (0, 63), "readlink": (89, None),
    "readlinkat": (267, 78), "readv": (19, 65), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "sendfile": (40, 71), "stat": (4, None), "statfs": (137, 43), "statx": (332, 291), "truncate": (76, 45),
    "umask": (95, 166), "unlink": (87, None), "unlinkat": (263, 35), "write": (1, 64), "writev": (20, 66),
    # time, and waiting for it and for files
    "alarm": (37, None), "clock_getres": (229, 114), "clock_gettime": (228, 113), "clock_nanosleep": (230, 115),
    "epoll_create": (213, None), "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_pwait": (281, 22),
    "epoll_pwait2": (441, 441), "epoll_wait": (232, None), "eventfd": (284, None), "eventfd2": (290, 19),
    "futex": (202, 98), "futex_waitv": (449, 449), "getitimer": (36, 102), "gettimeofday": (96, 169),
    "nanosleep": (35, 101), "pause": (34, None), "poll": (7, None), "ppoll": (271, 73), "pselect6": (270, 72),
    "select": (23, None), "setitimer": (38, 103), "time": (201, None), "timerfd_create": (283, 85),
    "timerfd_gettime": (287, 87), "timerfd_settime": (286, 86),
    # threads, signals and its own end
    "arch_prctl": (158, None), "exit": (60, 93), "exit_group": (231, 94), "get_robust_list": (274, 100),
    "getcpu": (309, 168), "membarrier": (324, 283), "restart_syscall": (219, 128), "rseq": (334, 293),
    "rt_sigaction": (13, 134), "rt_sigpending": (127, 136), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "rt_sigsuspend": (130, 133), "rt_sigtimedwait": (128, 137), "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126), "sched_getaffinity": (204, 123), "sched_yield": (24, 124),
    "set_robust_list": (273, 99), "set_tid_address": (218, 96), "sigaltstack": (131, 132), "wait4": (61, 260),
    "waitid": (247, 95),
    # questions
    "capget": (125, 90), "getegid": (108, 177), "geteuid": (107, 175), "getgid": (104, 176), "getgroups": (115, 158),
    "getpgid": (121, 155), "getpgrp": (111, None), "getpid": (39, 172), "getppid": (110, 173),
    "getrandom": (318, 278), "getresgid": (120, 150), "getresuid": (118, 148), "getrlimit": (97, 163),
    "getrusage": (98, 165), "getsid": (124, 156), "gettid": (186, 178), "getuid": (102, 174), "sysinfo": (99, 179),
    "times": (100, 153), "uname": (63, 160),
    # the two ends of a socketpair
    "getpeername": (52, 205), "getsockname": (51, 204), "getsockopt": (55, 209), "recvfrom": (45, 207),
    "setsockopt": (54, 208), "shutdown": (48, 210),
}  # fmt: skip
_NETWORK: _Numbers = {
    "accept": (43, 202), "accept4": (288, 242), "bind": (49, 200), "connect": (42, 203), "listen": (50, 201),
    "recvmmsg": (299, 243), "recvmsg": (47, 212), "sendmmsg": (307, 269), "sendmsg": (46, 211), "sendto": (44, 206),
}  # fmt: skip
_FILES: _Numbers = {  # what Landlock does not guard: owners, rights and times of files that belong to the same user
    "chmod": (90, None), "chown": (92, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "fchown": (93, 55), "fchownat": (260, 54), "fgetxattr": (193, 10), "flistxattr": (196, 13), "flock": (73, 32),
    "fremovexattr": (199, 16), "fsetxattr": (190, 7), "futimesat": (261, None), "getxattr": (191, 8),
    "lchown": (94, None), "lgetxattr": (192, 9), "link": (86, None), "linkat": (265, 37), "listxattr": (194, 11),
    "llistxattr": (195, 12), "lremovexattr": (198, 15), "lsetxattr": (189, 6), "mkdir": (83, None),
    "mkdirat": (258, 34), "mknod": (133, None), "mknodat": (259, 33), "removexattr": (197, 14), "rmdir": (84, None),
    "setxattr": (188, 5), "symlink": (88, None), "symlinkat": (266, 36), "sync": (162, 81), "syncfs": (306, 267),
    "utime": (132, None), "utimensat": (280, 88), "utimes": (235, None),
}  # fmt: skip
_SOME: _Numbers = {  # allowed with certain arguments
    "clone": (56, 220), "clone3": (435, 435), "fcntl": (72, 25), "ioctl": (16, 29), "kill": (62, 129),
    "prctl": (157, 167), "prlimit64": (302, 261), "sendto": (44, 206), "socket": (41, 198), "socketpair": (53, 199),
    "tgkill": (234, 131),
}  # fmt: skip
_NEWEST = 450
"""The last call that the tables were drawn up for. Later ones do not exist, so the C library does without them."""

_FCNTL_COMMANDS = (*range(8), 36, 37, 38, 1030, 1031, 1032)
"""Copies, flags and locks; not F_SETOWN, F_SETSIG, F_NOTIFY, F_SETLEASE, which send signals."""
_IOCTL_REQUESTS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
_PRCTL_OPTIONS = (3, 15, 16, 0x53564D41)
"""PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_SET_VMA."""
_AF_UNIX, _AF_INET, _AF_INET6, _SOCK_STREAM, _SOCKET_TYPE = 1, 2, 10, 1, 0xF
_THREAD = 0x00010000 | 0x00000400
"""CLONE_THREAD and CLONE_FILES: a thread with a table of files of its own could hide removed ones in it."""

_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_REFUSE, _NOT_THERE = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
_NUMBER, _ARCHITECTURE = 0, 4
_X32 = 0x40000000
_PR_SET_SECCOMP, _FILTER_MODE = 22, 2

_Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, constant."""


def install(machine: str, network: bool, files: bool = False) -> None:
    """Install the filter for good on this process, which must have set PR_SET_NO_NEW_PRIVS.

    Raises OSError where the kernel does not take it.
    """
    program = b"".join(struct.pack("HBBI", *part) for part in build(machine, network, files, os.getpid()))
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    pointer = ctypes.create_string_buffer(header, len(header))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_FILTER_MODE), pointer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the kernel takes no seccomp filter: {errno.errorcode.get(number, number)}")


def build(machine: str, network: bool, files: bool, process: int) -> list[_Instruction]:
    """Build the filter for `machine`: with `network` internet sockets, with `files` all that is done to files.

    `process`: the only one that may be sent signals.
    """
    column, architecture = ARCHITECTURES[machine]
    allowed = _ALLOWED | (_NETWORK if network else {}) | (_FILES if files else {})
    program: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        # The x32 numbers are second names of the same calls.
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _REFUSE),
    ]
    for numbers in allowed.values():
        program += _answer(numbers[column], [], _ALLOW)
    for name, body in _conditions(network, process).items():
        if name not in allowed:
            program += _answer(_SOME[name][column], body, _REFUSE)
    # Its flags lie in memory, where no filter looks: the C library falls back to clone.
    program += _answer(_SOME["clone3"][column], [], _NOT_THERE)
    return [*program, (_AT_LEAST, 0, 1, _NEWEST + 1), (_RETURN, 0, 0, _NOT_THERE), (_RETURN, 0, 0, _REFUSE)]


def _conditions(network: bool, process: int) -> dict[str, list[_Instruction]]:
    """Return the name of a call -> the tests of its arguments, each of which returns where it settles the matter."""
    return {
        "clone": [(_LOAD, 0, 0, _low(0)), (_AND, 0, 0, _THREAD), (_EQUAL, 0, 1, _THREAD), (_RETURN, 0, 0, _ALLOW)],
        "prlimit64": _only_null(2),
        "prctl": _one_of(0, _PRCTL_OPTIONS),
        "fcntl": _one_of(1, _FCNTL_COMMANDS),
        "ioctl": _one_of(1, _IOCTL_REQUESTS),
        "socket": _one_of(0, (_AF_INET, _AF_INET6)) if network else [],
        # Connected for good: a datagram could be sent to an address, that of another process.
        "socketpair": [
            (_LOAD, 0, 0, _low(0)),
            (_EQUAL, 1, 0, _AF_UNIX),
            (_RETURN, 0, 0, _REFUSE),
            (_LOAD, 0, 0, _low(1)),
            (_AND, 0, 0, _SOCKET_TYPE),
            (_EQUAL, 0, 1, _SOCK_STREAM),
            (_RETURN, 0, 0, _ALLOW),
        ],
        "sendto": _only_null(4),
        "kill": _one_of(0, (process,)),
        "tgkill": _one_of(0, (process,)),
    }


def _answer(number: int | None, body: list[_Instruction], otherwise: int) -> list[_Instruction]:
    """Return the instructions for the call of that number: `body`, then `otherwise`. `body` may load something else."""
    if number is None:
        return []
    return [(_EQUAL, 0, len(body) + 1, number), *body, (_RETURN, 0, 0, otherwise)]


def _one_of(argument: int, values: Iterable[int]) -> list[_Instruction]:
    tests = [part for value in values for part in ((_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW))]
    return [(_LOAD, 0, 0, _low(argument)), *tests]


def _only_null(argument: int) -> list[_Instruction]:
    low = _low(argument)
    return [(_LOAD, 0, 0, low), (_EQUAL, 0, 3, 0), (_LOAD, 0, 0, low + 4), (_EQUAL, 0, 1, 0), (_RETURN, 0, 0, _ALLOW)]


def _low(argument: int) -> int:
    """Return the offset of the lower half of a call's argument (both machines are little-endian)."""
    return 16 + 8 * argument
