"""How commands end: codes, single lines, and readers that have gone."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from clients.command import run
from clients.errors import ClientError
from clients.progress import progress_bar, spinner
from clients.terminal import Terminal


def raises(error: BaseException) -> int:
    raise error


def test_errors_of_a_person_are_one_line_and_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda: raises(ClientError("expected a, found b"))) == 2
    assert capsys.readouterr().err == "expected a, found b\n"
    assert run(lambda: raises(KeyError("k")), (KeyError,)) == 2
    with pytest.raises(KeyError):
        run(lambda: raises(KeyError("a bug")))


def test_ctrl_c_says_what_it_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda: raises(KeyboardInterrupt()), loss="nothing is written") == 130
    assert capsys.readouterr().err == "interrupted: nothing is written\n"
    assert run(lambda: raises(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == ""


def test_another_broken_pipe_is_not_taken_for_a_lost_reader() -> None:
    with pytest.raises(BrokenPipeError):
        run(lambda: raises(BrokenPipeError(32, "a socket's")))


PRINTS = """
    def command():
        while True:
            print("line")
"""
PRINTS_WITHIN_TASKS = """
    import asyncio
    from clients.terminal import Terminal

    async def print_lines():
        console = Terminal()
        while True:
            console.print("line")
            await asyncio.sleep(0)

    async def group():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(print_lines())

    def command():
        return asyncio.run(group())
"""
PRINTS_LITTLE = """
    import sys, time

    def command():
        print("line")  # stays in the buffer until the end
        sys.stdin.read()  # until the reader has gone
        return 0
"""


@pytest.mark.parametrize("command", [PRINTS, PRINTS_WITHIN_TASKS, PRINTS_LITTLE])
def test_a_reader_that_goes_ends_a_command_quietly(command: str) -> None:
    script = "import sys\nfrom clients.command import run\n" + textwrap.dedent(command)
    process = subprocess.Popen(
        [sys.executable, "-c", script + "\nsys.exit(run(command, loss='never told'))"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdout.close()
    process.stdin.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 141


def test_a_reader_that_goes_ends_a_job_in_the_background_too() -> None:
    script = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    script += "from clients.command import run\n" + textwrap.dedent(PRINTS_WITHIN_TASKS)
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys\n" + script + "\nsys.exit(run(command))"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 141


def test_where_there_is_no_terminal_no_bar_leaves_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress_bar("calls", 2) as progress:
        progress(1)
    with spinner("starting", Terminal()):
        pass
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""
