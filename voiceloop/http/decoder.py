"""Uploaded audio, decoded and cut at its pauses in a process of its own.

The decoders are C, the files anybody's: one that makes a decoder crash, spin or fill memory costs
its own upload. The process may hold what the longest audio takes and compute for as long, behind
what calls need. Once its libraries are loaded the kernel lets it compute, and nothing else: it
opens no file or socket, starts nothing and reaches no other process (``cell.py``). Why it refuses a
file it says by a number. It reads the upload where that lies, and does all that is computed of it:
a thread of the gateway that did would take the interpreter from the event loop at each of its
system calls.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import struct
import sys
from itertools import chain
from typing import BinaryIO, NamedTuple

import numpy as np

from audio.frames import RECOGNIZER_HZ, Samples
from audio.vad import Vad
from voiceloop.cell import only_compute
from voiceloop.child import send
from voiceloop.http.compressed_audio import (
    HEAD_BYTES,
    Unusable,
    Why,
    container_of,
    decode_audio,
)

DEADLINE_S = 60.0
MAX_CPU_S = 30  # ten minutes of any codec take two, and four to find the speech in them
WORKING_BYTES = 256 * 1024 * 1024  # a decoder's and a resampler's own, whatever the file
# What is decoded stands in pieces, in one array and in the pipe.
BYTES_PER_SAMPLE_DECODED = 6
MAX_AT_ONCE = 2  # beside the calls on this machine, not instead of them
# Exit statuses, of which Python itself has 0 to 2. What else the process says is never repeated.
REFUSALS = dict(enumerate(Why, 64))
# Where the processors are taken a call's process has ten times the share of one that decodes.
NICENESS = 10

SPEECH_PROBABILITY = 0.4
PAUSE_MS = 600.0  # a cut there falls between sentences rather than within a word
PADDING_MS = 300.0  # kept of the quiet on both sides
MAX_SEGMENT_MS = 20_000.0
MOST_SPANS_BYTES = 1024 * 1024  # hours of them

NEEDED_ENVIRONMENT = frozenset(("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG"))
_SPAN = struct.Struct("<qq")
_COUNT = struct.Struct("<q")
# The rooms are found before this module imports one of them.
ENTRY = f"""
import os, sys
os.nice({NICENESS})
from voiceloop.rooms import prefer_own_rooms
prefer_own_rooms()
from voiceloop.http.decoder import main
sys.exit(main(float(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer))
"""
# Four hundredths of a second of silence, which is a window of the detector: what decoding loads
# late is loaded before nothing more can be.
TRIAL = (
    b"RIFF" + (36 + 1280).to_bytes(4, "little") + b"WAVEfmt " + (16).to_bytes(4, "little")
    + b"\x01\x00\x01\x00" + (16_000).to_bytes(4, "little") + (32_000).to_bytes(4, "little")
    + b"\x02\x00\x10\x00data" + (1280).to_bytes(4, "little") + bytes(1280)
)  # fmt: skip

_decoding = asyncio.Semaphore(MAX_AT_ONCE)


class Decoded(NamedTuple):
    """samples: mono int16 [n] at 16 kHz. spans: its stretches of speech, (first, last) samples."""

    samples: Samples
    spans: list[tuple[int, int]]


async def decode_upload(upload: BinaryIO, max_s: float) -> Decoded:
    """The audio of a file.

    Raises:
        Unusable: it is no audio, it is damaged, it lasts longer than ``max_s``, or it takes more
            than such audio needs.
    """
    upload.flush()
    descriptor = upload.fileno()
    container_of(os.pread(descriptor, HEAD_BYTES, 0))
    os.lseek(descriptor, 0, os.SEEK_SET)  # its own position is that of the process's stdin
    async with _decoding:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-c",
            ENTRY,
            str(max_s),
            stdin=descriptor,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={name: text for name, text in os.environ.items() if name in NEEDED_ENVIRONMENT},
        )
        try:
            async with asyncio.timeout(DEADLINE_S):
                told = await _told_by(process, int(max_s * RECOGNIZER_HZ) * 2 + MOST_SPANS_BYTES)
        except TimeoutError:
            raise Unusable(Why.TOO_SLOW) from None
        finally:
            if process.returncode is None:
                send(process, signal.SIGKILL)
                await process.communicate()  # some versions of Python wait for its pipe as well
    if process.returncode != 0:
        raise Unusable(REFUSALS.get(process.returncode or 0, Why.BROKEN), max_s)
    return unpacked(told)


async def _told_by(process: asyncio.subprocess.Process, n_most_bytes: int) -> bytes:
    """All that it writes until it ends. Raises: Unusable where that is more than it may."""
    assert process.stdout is not None
    told = bytearray()
    while piece := await process.stdout.read(n_most_bytes):
        told += piece
        if len(told) > n_most_bytes:
            raise Unusable(Why.BROKEN)
    await process.wait()
    return bytes(told)


def packed(decoded: Decoded) -> bytes:
    spans = b"".join(_SPAN.pack(*span) for span in decoded.spans)
    return _COUNT.pack(len(decoded.spans)) + spans + decoded.samples.tobytes()


def unpacked(data: bytes) -> Decoded:
    """Raises: Unusable where it is not what `packed` gives: the file may have taken over."""
    try:
        (n_spans,) = _COUNT.unpack_from(data)
        begins = _COUNT.size + n_spans * _SPAN.size
        spans: list[tuple[int, int]] = list(_SPAN.iter_unpack(data[_COUNT.size : begins]))
        samples = np.frombuffer(data, np.int16, offset=begins)
    except (struct.error, ValueError):
        raise Unusable(Why.BROKEN) from None
    edges = [0, *chain.from_iterable(spans), len(samples)]
    if edges != sorted(edges):
        raise Unusable(Why.BROKEN)
    return Decoded(samples, spans)


def main(max_s: float, source: BinaryIO, sink: BinaryIO) -> int:
    """Decode what stands in the source into the sink. Returns the process's exit status."""
    data = source.read()
    speech_spans(decode_audio(TRIAL, max_s))
    confine(max_s)
    try:
        samples = decode_audio(data, max_s)
    except Unusable as error:
        return next(status for status, why in REFUSALS.items() if why is error.why)
    sink.write(packed(Decoded(samples, speech_spans(samples))))
    sink.flush()
    return 0


def speech_spans(samples: Samples) -> list[tuple[int, int]]:
    """Stretches of speech as (first, last) samples, cut at pauses and before they grow long.

    Takes 0.1 ms a window of 32 ms.
    """
    pause, padding = _n(PAUSE_MS), _n(PADDING_MS)
    spans: list[tuple[int, int]] = []
    start = end = -1
    position = 0
    for window in Vad().feed(samples):
        first, position = position, window.end_position
        is_speech = window.probability >= SPEECH_PROBABILITY
        if start >= 0 and (position - end > pause or position - start > _n(MAX_SEGMENT_MS)):
            spans.append((start, end))
            start = -1
        if is_speech:
            start = first if start < 0 else start
            end = position
    if start >= 0:
        spans.append((start, end))
    # Padding may reach into the pause, but not over the neighbour's speech.
    edges = [0, *((a[1] + b[0]) // 2 for a, b in zip(spans, spans[1:], strict=False)), len(samples)]
    return [
        (max(edges[i], first - padding), min(edges[i + 1], last + padding))
        for i, (first, last) in enumerate(spans)
    ]


def _n(ms: float) -> int:
    return int(ms * RECOGNIZER_HZ / 1000)


def confine(max_s: float) -> None:
    """Bound this process from here on to what decoding ``max_s`` of audio takes."""
    if sys.platform == "linux":  # elsewhere there is no bound on memory that holds
        with open("/proc/self/statm", encoding="ascii") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        n_decoded = int(max_s * RECOGNIZER_HZ) * BYTES_PER_SAMPLE_DECODED
        resource.setrlimit(resource.RLIMIT_AS, (now + WORKING_BYTES + n_decoded,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    # Its stdin, the upload's file, can be written.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))  # what is open stays, nothing more opens
    only_compute()
