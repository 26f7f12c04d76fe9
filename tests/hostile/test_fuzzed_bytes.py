"""Whatever bytes come, who reads them returns or raises what its docstring says.

Each kept input, and some mutations of them; VOICELOOP_FUZZ=50000 for as many as that of each.
"""

from __future__ import annotations

import logging
import os
import random

import pytest

from tests.hostile.fuzzed_bytes import MOST_BYTES, TARGETS, corpus
from tests.tables import each_row

N_MUTATIONS = int(os.environ.get("VOICELOOP_FUZZ", "400"))
TELLING = (b"", b"\0", b"\xff" * 4, b"\x80", b"\xdf\xff\xff\xff\xff", b".", b"\r\n", b"--x", b"=")


def mutated(data: bytes, other: bytes, rng: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(found))
        match rng.randrange(5):
            case 0:
                found[at : at + 1] = rng.randbytes(1)
            case 1:
                found[at:at] = rng.choice(TELLING)
            case 2:
                del found[at : at + rng.randint(1, 16)]
            case 3:
                found[at:] = other[rng.randint(0, len(other)) :]
            case _:
                found[at:at] = found[: rng.randint(0, 32)]
    return bytes(found[:MOST_BYTES])


# Starlette leaves a broken form's file to be closed with its last reference.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@each_row("name", TARGETS)
def test_bytes_of_strangers_are_read_or_refused(name: str) -> None:
    told = logging.getLogger("python_multipart")
    assert told.getEffectiveLevel() >= logging.ERROR  # a line for each byte that it does not like
    rng, known = random.Random(f"bytes/{name}"), corpus(name)
    for data in known:
        TARGETS[name](data)
    for _ in range(N_MUTATIONS):
        data = mutated(rng.choice(known), rng.choice(known), rng)
        try:
            TARGETS[name](data)
        except Exception as error:
            raise AssertionError(f"{name} of {data!r}") from error
