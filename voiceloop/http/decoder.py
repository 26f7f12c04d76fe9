"""Uploaded audio, decoded in a process of its own: the decoders are C, the files anybody's.

A file that makes a decoder crash, spin or fill memory costs its own upload. The process may hold
what the longest audio takes and compute for as long, behind what calls need, and once its libraries
are loaded it can open nothing more: neither files nor sockets.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from typing import BinaryIO

import numpy as np

from audio.frames import RECOGNIZER_HZ, Samples
from voiceloop.errors import InvalidRequest, VoiceLoopError
from voiceloop.http.compressed_audio import (
    PLAIN,
    container_of,
    decode_audio,
    has_av,
    missing_av,
    unusable,
)

DEADLINE_S = 30.0
MAX_CPU_S = 20  # ten minutes of any codec take two
WORKING_BYTES = 256 * 1024 * 1024  # a decoder's and a resampler's own, whatever the file
# What is decoded stands in pieces, in one array and in the pipe.
BYTES_PER_SAMPLE_DECODED = 6
MAX_AT_ONCE = 2  # beside the calls on this machine, not instead of them
EXIT_REFUSED = 3
# Where the processors are taken a call's process has ten times the share of one that decodes.
NICENESS = 10

NEEDED_ENVIRONMENT = frozenset(("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG"))
# The rooms are found before this module imports one of them.
ENTRY = f"""
import os, sys
os.nice({NICENESS})
from voiceloop.rooms import prefer_own_rooms
prefer_own_rooms()
from voiceloop.http.decoder import main
sys.exit(main(float(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer))
"""
# A hundredth of a second of silence: what decoding loads late is loaded before nothing more can be.
TRIAL = (
    b"RIFF" + (36 + 320).to_bytes(4, "little") + b"WAVEfmt " + (16).to_bytes(4, "little")
    + b"\x01\x00\x01\x00" + (16_000).to_bytes(4, "little") + (32_000).to_bytes(4, "little")
    + b"\x02\x00\x10\x00data" + (320).to_bytes(4, "little") + bytes(320)
)  # fmt: skip

_decoding = asyncio.Semaphore(MAX_AT_ONCE)


async def decode_upload(data: bytes, max_s: float) -> Samples:
    """The first audio track as mono int16 [n] at 16 kHz.

    Raises:
        InvalidRequest: it is no audio, it is damaged, it lasts longer than ``max_s``, or it takes
            more than such audio needs.
        MissingExtra: PyAV is absent, and it takes that.
    """
    if container_of(data) not in PLAIN and not has_av():
        raise missing_av()
    async with _decoding:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-c",
            ENTRY,
            str(max_s),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={name: text for name, text in os.environ.items() if name in NEEDED_ENVIRONMENT},
        )
        try:
            async with asyncio.timeout(DEADLINE_S):
                decoded, _ = await process.communicate(data)
        except TimeoutError:
            raise unusable(f"it takes more than {DEADLINE_S:g} s to decode") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if process.returncode == EXIT_REFUSED:
        refusal = json.loads(decoded)
        raise InvalidRequest(refusal["message"], param="file", code=refusal["code"])
    if process.returncode != 0:
        raise unusable("it takes more memory or time than its length allows, or breaks the decoder")
    return np.frombuffer(decoded, np.int16)


def main(max_s: float, source: BinaryIO, sink: BinaryIO) -> int:
    """Decode what stands in the source into the sink; or say there, as JSON, why it is refused."""
    data = source.read()
    decode_audio(TRIAL, max_s)
    confine(max_s)
    try:
        samples = decode_audio(data, max_s)
    except VoiceLoopError as error:
        sink.write(json.dumps({"code": error.wire_code, "message": error.message}).encode())
        sink.flush()
        return EXIT_REFUSED
    sink.write(samples.tobytes())
    sink.flush()
    return 0


def confine(max_s: float) -> None:
    """Bound this process from here on to what decoding ``max_s`` of audio takes."""
    if sys.platform == "linux":  # elsewhere there is no bound on memory that holds
        with open("/proc/self/statm", encoding="ascii") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        n_decoded = int(max_s * RECOGNIZER_HZ) * BYTES_PER_SAMPLE_DECODED
        resource.setrlimit(resource.RLIMIT_AS, (now + WORKING_BYTES + n_decoded,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))  # what is open stays, nothing more opens
