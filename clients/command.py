"""How a command ends: its exit codes, one line for what a person can put right, quiet pipes.

Shared by ``voiceloop``, ``python -m clients.*`` and the benchmarks. A reader of the output that has
gone (``... | head -3``) ends the command without a word, as it ends other programs.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable

from clients.errors import ClientError

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130
OUTPUTS = (1, 2)  # standard output and standard error
EXIT_NO_READER = 141  # what a shell reports of a program that SIGPIPE ended


def run(
    command: Callable[[], int], errors: tuple[type[Exception], ...] = (), *, loss: str | None = None
) -> int:
    """Run a command; returns its exit code.

    Args:
        errors: what else than a ``ClientError`` is told as one line on standard error.
        loss: what ctrl-C costs, told where the command itself did not see to it; None: nothing.
    """
    told: tuple[type[Exception], ...] = (ClientError, *errors)
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()  # here, not when the interpreter ends: there it would be a traceback
    except KeyboardInterrupt:
        if _has_lost_its_reader():
            return _without_reader()
        if loss is not None:
            print(f"interrupted: {loss}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except told as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_INPUT
    except BrokenPipeError:
        if not _has_lost_its_reader():
            raise
        return _without_reader()


def _has_lost_its_reader() -> bool:
    """Whether our own output is the pipe that broke: a broken socket is another matter."""
    poll = select.poll()
    for number in OUTPUTS:
        poll.register(number, select.POLLOUT)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _without_reader() -> int:
    """Send what is still to be flushed nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in OUTPUTS:
        os.dup2(nowhere, number)
    return EXIT_NO_READER
