"""One target of `fuzzed_bytes` under libFuzzer: `NAME [CORPUS...] [-flag=...]`. Needs atheris."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["voiceloop", "starlette", "python_multipart"]):
    from tests.hostile.fuzzed_bytes import TARGETS

if __name__ == "__main__":
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, TARGETS[name])
    atheris.Fuzz()
