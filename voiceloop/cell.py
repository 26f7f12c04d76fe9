"""The cell of a process that decodes a stranger's bytes or runs an author's function.

The process shuts it behind itself: what it gave up it cannot have back, nor can what it starts. The
system calls are filtered by the kernel (seccomp), of Linux on x86-64 and arm64. Elsewhere the
limits of memory and files hold alone, and ``voiceloop doctor`` says so.

Source: seccomp(2), prctl(2), and the kernel's `seccomp_filter` page.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterable

# Of one author's process: a model on the CPU fits, and a leak ends before the machine's memory.
TOOL_BYTES = 4 * 1024**3
TOOL_FILES = 1024  # open at once, as most systems allow anyway

_SET_PARENT_DEATH_SIGNAL, _SET_DUMPABLE, _SET_NO_NEW_PRIVS = 1, 4, 38  # of prctl
_SET_MODE_FILTER, _GET_ACTION_AVAIL, _ALL_THREADS = 1, 2, 1  # of seccomp
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_MAY_RUN = 4  # of memory: PROT_EXEC
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16  # in what a filter is given of a call
_X32 = 0x40000000  # second numbers of the calls of x86-64
# Of a machine: its mark in that, and where its numbers stand below.
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
# Numbers on x86-64 and arm64.
# Memory, locks between the threads that are there, time, and an end: all that computing takes.
_COMPUTING = {
    "read": (0, 63), "close": (3, 57), "fstat": (5, 80), "lseek": (8, 62), "munmap": (11, 215),
    "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "sched_yield": (24, 124), "mremap": (25, 216), "madvise": (28, 233),
    "nanosleep": (35, 101), "getpid": (39, 172), "exit": (60, 93), "gettimeofday": (96, 169),
    "sigaltstack": (131, 132), "gettid": (186, 178), "futex": (202, 98),
    "sched_getaffinity": (204, 123), "restart_syscall": (219, 128), "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115), "exit_group": (231, 94), "set_robust_list": (273, 99),
    "getrandom": (318, 278), "rseq": (334, 293),
}  # fmt: skip
_STANDARD_OUTPUT = 1
_WRITE, _MAPPING = (1, 64), ((9, 222), (10, 226))  # write; mmap and mprotect
_SOCKET, _SECCOMP = (41, 198), (317, 277)
# Reaching into other processes, and io_uring, which opens sockets past a filter.
_REACHING = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438), "io_uring_setup": (425, 425),
}  # fmt: skip

_Step = tuple[int, int, int, int]  # code, how far to jump where it holds and where not, value


class _Code(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint16),
        ("held", ctypes.c_uint8),
        ("failed", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    ]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("first", ctypes.POINTER(_Code))]


def make_undumpable() -> None:
    """Keep this process's memory from cores and from other processes of the same user.

    A debugger of that user's cannot attach either; the administrator's can. Of Linux.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def end_with_parent() -> None:
    """Be killed as the thread ends that started this process. Of Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def only_compute() -> bool:
    """Lock this process down: it computes with what is open, and writes to standard output. Starts
    nothing more.

    Returns False where this kernel filters no system calls.
    """
    make_undumpable()
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    return _filter(_computing, _REFUSE)


def run_for_an_author(*, has_network: bool) -> bool:
    """Lock this process down: it reaches into no other process; without the network it has no
    socket of it.

    What it starts is bound by this as well, and gets no rights that it has not (`sudo`). Sockets of
    this machine alone (AF_UNIX) stay. Returns as `only_compute`.
    """
    for what, most in (
        (resource.RLIMIT_CORE, 0), (resource.RLIMIT_DATA, TOOL_BYTES),
        (resource.RLIMIT_NOFILE, TOOL_FILES),
    ):  # fmt: skip
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))
    return _filter(lambda at: _reaching(at, has_network), _ALLOW)


def can_filter() -> bool:
    """Whether this kernel filters system calls, for this kind of processor."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return False
    refuse = ctypes.c_uint32(_REFUSE & 0xFFFF0000)
    return _seccomp(_GET_ACTION_AVAIL, 0, ctypes.byref(refuse)) == 0


def _filter(rules_on: Callable[[int], Iterable[_Step]], otherwise: int) -> bool:
    if not can_filter():
        return False
    mark, at = _MACHINES[platform.machine()]
    steps: list[_Step] = [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_IF_EQUAL, 1, 0, mark),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_IF_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _REFUSE),
        *rules_on(at),
        (_RETURN, 0, 0, otherwise),
    ]
    codes = (_Code * len(steps))(*(_Code(*step) for step in steps))
    program = _Program(len(steps), codes)
    libc = ctypes.CDLL(None)
    if libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    return _seccomp(_SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(program)) == 0


def _seccomp(what: int, flags: int, argument: object) -> int:
    number = _SECCOMP[_MACHINES[platform.machine()][1]]
    return int(ctypes.CDLL(None).syscall(number, what, flags, argument))


def _computing(at: int) -> Iterable[_Step]:
    for numbers in _COMPUTING.values():
        yield from _answer(numbers[at], _ALLOW)
    for numbers in _MAPPING:
        yield from _if_argument(numbers[at], 2, _IF_ANY_BIT, _MAY_RUN, _REFUSE, _ALLOW)
    yield from _if_argument(_WRITE[at], 0, _IF_EQUAL, _STANDARD_OUTPUT, _ALLOW, _REFUSE)


def _reaching(at: int, has_network: bool) -> Iterable[_Step]:
    for numbers in _REACHING.values():
        yield from _answer(numbers[at], _REFUSE)
    if not has_network:
        local = int(socket.AF_UNIX)
        yield from _if_argument(_SOCKET[at], 0, _IF_EQUAL, local, _ALLOW, _REFUSE)


def _answer(number: int, answer: int) -> tuple[_Step, ...]:
    return (_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, answer)


def _if_argument(
    number: int, index: int, test: int, value: int, held: int, failed: int
) -> tuple[_Step, ...]:
    """The call of this number, by one of its arguments: an int, of which the low half is read."""
    return (
        (_IF_EQUAL, 0, 4, number),
        (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * index),
        (test, 0, 1, value),
        (_RETURN, 0, 0, held),
        (_RETURN, 0, 0, failed),
    )
