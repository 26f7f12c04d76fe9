"""What processes say of themselves, in lines, and what becomes of it where nobody reads."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from voiceloop.cluster.control import telling
from voiceloop.cluster.control.reports import (
    MAX_LINE_BYTES,
    ProcessReport,
    ReportError,
    decode_line,
    encode_line,
)

REPORT = ProcessReport("ready", "127.0.0.1:9000", 0.5, 3, {"10.0.0.5:9001": 0.1})


def test_a_line_reads_as_it_was_written() -> None:
    assert decode_line(encode_line(REPORT)) == REPORT


@pytest.mark.parametrize("line", [b"", b"ready", b"[]", b'{"state": "well"}', b"[" * 5000, b"\xff"])
def test_anything_else_is_refused(line: bytes) -> None:
    with pytest.raises(ReportError, match="expected a line of a process of ours"):
        decode_line(line)


def test_a_gateway_of_many_workers_names_the_queues_that_are_oldest() -> None:
    ages = {f"worker-{index:04}:9000": index / 1000 for index in range(1000)}
    line = encode_line(ProcessReport("ready", "a", queue_age_s=ages, trouble="x" * 9000))
    assert len(line) <= MAX_LINE_BYTES
    assert max(decode_line(line).queue_age_s.values()) == 0.999


async def test_a_process_tells_of_itself_and_never_waits_for_a_reader() -> None:
    reading, writing = os.pipe()
    task = asyncio.create_task(telling.tell_on(lambda: REPORT, writing))
    try:
        await asyncio.sleep(0)
        assert decode_line(os.read(reading, MAX_LINE_BYTES)) == REPORT
        os.set_blocking(writing, False)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(writing, bytes(4096))
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        os.close(reading)
        os.close(writing)


@contextmanager
def unread_pipe() -> Iterator[tuple[int, asyncio.Event]]:
    """The end to write to of a pipe that nobody reads, and what SIGTERM sets meanwhile."""
    reading, writing = os.pipe()
    os.close(reading)
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, told.set)
    try:
        yield writing, told
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        os.close(writing)


async def test_a_process_that_nobody_reads_drains_as_at_a_signal() -> None:
    with unread_pipe() as (writing, told):
        await telling.tell_on(lambda: REPORT, writing)
        await asyncio.wait_for(told.wait(), 10)


async def test_a_process_that_drains_already_is_not_told_to_again() -> None:
    """A second signal cuts the calls that it drains for."""
    with unread_pipe() as (writing, told):
        await telling.tell_on(lambda: replace(REPORT, state="draining"), writing)
        for _ in range(3):  # a signal that came is read in the first and handled in the second
            await asyncio.sleep(0)
        assert not told.is_set()
