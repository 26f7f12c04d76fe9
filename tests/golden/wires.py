"""Golden wires: every frame of the tests of a call, recorded, and held while its inside is rebuilt.

    python -m tests.golden.wires check --base DIR    # what differs from tests/golden/wires.txt
    python -m tests.golden.wires record --into DIR   # a wanted difference: record, commit, say why

Records each frame both ways with its virtual time, the order in which frames were sent, and how the
connection closed: one file a test, outside git, and a digest of each in `wires.txt`. Ids are
numbered as they appear, sound is a digest, what an epoch or a key makes is left out. A test on real
sockets has no virtual time: of it the kinds of events are recorded, each connection and way by
itself, deltas in a row as one.
As a pytest plugin (`-p tests.golden.wires`) it does the recording alone.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DIGESTS = Path(__file__).with_name("wires.txt")
NOW = ROOT / "out" / "golden" / "now"
INTO = "VOICELOOP_GOLDEN_INTO"  # the folder, for pytest and the processes that it starts
TESTS = (
    "tests/voiceloop/call",
    "tests/voiceloop/reply",
    "tests/voiceloop/resume",
    "tests/golden/test_random_calls.py",
)
# Recorded by nobody: why their wires differ from run to run.
NOT_REPRODUCIBLE = {
    "tests/voiceloop/call/test_session_mcp.py"
    "::test_a_call_that_is_resumed_has_the_servers_that_its_new_line_names_with_a_token": (
        "on real sockets; how many tickets go out is a matter of time"
    ),
}
DIGITS = 16  # of a digest in the table
SOUND = re.compile(r"[A-Za-z0-9+/=]{100,}")
TICKET = re.compile(r"\brt_[\w.~-]+")
ID = re.compile(
    r"\b([a-z]+_)?(?:[0-9a-f]{32}|[0-9a-f]{24})(?![0-9a-f])"
    r"|\b(event_)[0-9a-f]{12}(?=_)|\b(call_)\d{15}(?!\d)"
)
EPOCH = re.compile(r'("(?:expires_at|created_at|created|received_at)": ?)\d{10}\b')
# What explains a wait and measures a cut, in words and weights.
WHY = re.compile(r',"(?:why": ?"(?:[^"\\]|\\.)*"|cut_over_ms": ?[\d.]+|late": ?\[[^\]]*\])')
PORT = re.compile(r"\b(127\.0\.0\.1|localhost):\d{4,5}\b")


class Recording:
    """The frames of one test, in order."""

    def __init__(self, *, is_timed: bool) -> None:
        self._is_timed = is_timed
        self._lines: list[str] = []
        self._ids: dict[str, str] = {}
        self._n_ids: dict[str, int] = {}
        self._ends: list[object] = []  # of connections, as they appear

    def add(self, end: object, way: str, text: str) -> None:
        if not any(end is one for one in self._ends):
            self._ends.append(end)
        number = next(n for n, one in enumerate(self._ends) if end is one)
        if not self._is_timed:
            text = kind_of(text)
            line = f"{number}{way} {text}"
            if not (text.endswith(".delta") and self._lines[-1:] == [line]):
                self._lines.append(line)
            return
        try:
            at = f"{asyncio.get_running_loop().time() - 1000.0:.4f}"
        except RuntimeError:
            at = "-"
        self._lines.append(f"{at} {number}{way} {self._plain(text)}")

    def _plain(self, text: str) -> str:
        if "rt_" in text:
            text = TICKET.sub(self._numbered, text)
        text = WHY.sub("", text)
        text = SOUND.sub(lambda found: f"<{len(found[0])}: {digest_of(found[0])}>", text)
        text = ID.sub(self._numbered, text)
        return PORT.sub(r"\1:0", EPOCH.sub(r"\g<1>0", text)).replace("\n", "\\n")

    def _numbered(self, found: re.Match[str]) -> str:
        prefix = "rt_" if found.re is TICKET else found[1] or found[2] or found[3] or ""
        if found[0] not in self._ids:
            self._n_ids[prefix] = self._n_ids.get(prefix, 0) + 1
            self._ids[found[0]] = f"{prefix}#{self._n_ids[prefix]}"
        return self._ids[found[0]]

    def text(self) -> str:
        lines = self._lines
        if not self._is_timed:  # which of two connections is first is chance
            lines = sorted(lines, key=lambda line: line.split(" ")[0])
        return "".join(f"{line}\n" for line in lines)


def kind_of(text: str) -> str:
    try:
        return str(json.loads(text)["type"])
    except (ValueError, KeyError, TypeError):
        return text.split(" ")[0]


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]


class Recorder:
    """Patched once into the protocol and the transport in memory; `recording` is the test's."""

    def __init__(self) -> None:
        self.recording: Recording | None = None
        from tests.callers import MemoryTransport
        from voiceloop.realtime.protocol import Protocol

        receive, take = Protocol.receive, Protocol.take_outgoing
        send, close = MemoryTransport.send, MemoryTransport.close

        def receiving(protocol: Protocol, frame: str | bytes) -> Any:
            self._add(protocol, "<", frame if isinstance(frame, str) else repr(frame))
            return receive(protocol, frame)

        def taking(protocol: Protocol) -> Any:
            frames = take(protocol)
            for each in frames:
                self._add(protocol, "+", each.data)
            return frames

        async def sending(transport: MemoryTransport, data: str) -> None:
            await send(transport, data)
            event = json.loads(data)
            self._add(transport, ">", f"{event['type']} {event['event_id']}")

        async def closing(transport: MemoryTransport, code: int = 1000, reason: str = "") -> None:
            self._add(transport, "x", f"{code} {reason}")
            await close(transport, code, reason)

        Protocol.receive, Protocol.take_outgoing = receiving, taking  # type: ignore[method-assign]
        MemoryTransport.send, MemoryTransport.close = sending, closing  # type: ignore[method-assign]

    def _add(self, end: object, way: str, text: str) -> None:
        if self.recording is not None:
            self.recording.add(end, way, text)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        name = item.nodeid
        if name.split("[")[0] in NOT_REPRODUCIBLE or name in NOT_REPRODUCIBLE:
            return (yield)
        self.recording = Recording(is_timed=item.get_closest_marker("virtual_time") is not None)
        result = yield
        text = self.recording.text()
        self.recording = None
        if text:
            save(Path(os.environ[INTO]), name, text)
        return result


def pytest_configure(config: pytest.Config) -> None:
    from hypothesis import settings  # not before pytest is there to rewrite it

    # A property's examples are the same in each run.
    settings.register_profile(
        "golden", settings.get_profile("default"), derandomize=True, deadline=None
    )
    settings.load_profile("golden")
    config.pluginmanager.register(Recorder())


def save(folder: Path, name: str, text: str) -> None:
    """One file a test; its first line names it."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"\W+", "_", name.removeprefix("tests/"))[:120]
    path = folder / f"{stem}.{digest_of(name)[:6]}.txt"
    path.write_text(f"{name}\n{text}", encoding="utf-8", errors="surrogatepass")


def load(folder: Path) -> dict[str, str]:
    """The recordings of a folder by the names of their tests."""
    found = {}
    for path in folder.glob("*.txt"):
        name, _, text = path.read_text("utf-8", errors="surrogatepass").partition("\n")
        found[name] = text
    return found


def first_difference(before: str, after: str) -> str:
    was, now = before.splitlines(), after.splitlines()
    for n in range(max(len(was), len(now))):
        one, other = (lines[n] if n < len(lines) else "(nothing)" for lines in (was, now))
        if one != other:
            return f"  frame {n + 1}\n  - {one[:400]}\n  + {other[:400]}"
    return "  the same frames"


def run(paths: list[str], into: Path) -> int:
    for old in into.glob("*.txt"):
        old.unlink()
    os.environ[INTO] = str(into)
    os.environ.setdefault("VOICELOOP_FUZZ", "20")
    return int(pytest.main(["-q", "-p", "tests.golden.wires", "--rootdir", str(ROOT), *paths]))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("record", "check"))
    parser.add_argument("paths", nargs="*", help="tests; all of them unless given")
    parser.add_argument("--into", type=Path, default=NOW, help="where recordings are written")
    parser.add_argument("--base", type=Path, help="recordings to show a difference from")
    chosen = parser.parse_intermixed_args(arguments)
    paths = chosen.paths or list(TESTS)
    failed = run(paths, chosen.into)
    now = load(chosen.into)
    lines = DIGESTS.read_text("utf-8").splitlines() if DIGESTS.exists() else []
    golden = dict(reversed(line.split(" ", 1)) for line in lines)
    golden = {name: digest for name, digest in golden.items() if name.startswith(tuple(paths))}
    if chosen.what == "record":
        kept = [line for line in lines if not line.split(" ", 1)[1].startswith(tuple(paths))]
        kept += [f"{digest_of(text)} {name}" for name, text in now.items()]
        kept.sort(key=lambda line: line.split(" ", 1)[1])
        DIGESTS.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        return failed
    base = load(chosen.base) if chosen.base else {}
    differ = [
        name
        for name in sorted(now)
        if digest_of(now[name]) != golden.get(name, digest_of(now[name]))
    ]
    for name in differ:
        print(f"differs: {name}")
        print(first_difference(base[name], now[name]) if name in base else "  (no base to show)")
    for name in sorted(golden.keys() - now.keys()):
        print(f"missing: {name}")
    for name in sorted(now.keys() - golden.keys()):
        print(f"new: {name}")
    print(f"{len(now)} wires, {len(differ)} differ")
    return failed or bool(differ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
