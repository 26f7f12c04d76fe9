"""Counts the files of the gateway that audio visits, and a turn from its decision to the wire.

    python -m tests.hops [--files]

Runs a call with scripted models and notes each file of ours whose code runs: while a fifth of a
second of speech is read and words come of it, and from when the end of the turn is told until the
first sound of the answer is on the wire. What a worker process does is not counted.
"""

from __future__ import annotations

import asyncio
import sys
from types import FrameType
from unittest.mock import patch

from tests.callers import Caller
from tests.conftest import VirtualClockLoop
from tests.fakes import instant_backends
from tests.state import ROOT
from voiceloop.call.actions import Action
from voiceloop.call.events import CallEvent
from voiceloop.call.turn_taking import CallStatus, TurnTaking
from voiceloop.listening.events import EndIsLikely, EndOfTurn

ROOMS = tuple(f"{ROOT / room}/" for room in ("voiceloop", "audio", "engine"))


class Walk:
    """`begin`, then `end`: the files that were visited between."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.is_over = False

    def begin(self) -> None:
        self.files.clear()
        sys.setprofile(self._note)

    def end(self) -> None:
        sys.setprofile(None)
        self.is_over = True

    def _note(self, frame: FrameType, event: str, arg: object) -> None:
        path = frame.f_code.co_filename
        # A module's own code runs once in a process: it is imported there.
        if event == "call" and path.startswith(ROOMS) and frame.f_code.co_name != "<module>":
            self.files.add(path.removeprefix(f"{ROOT}/"))


async def walked() -> tuple[Walk, Walk]:
    """Audio, and one turn."""
    frame, turn = Walk(), Walk()
    async with Caller(asyncio.get_running_loop().time, instant_backends()) as caller:
        await caller.say(400)

        frame.begin()
        await caller.say(200)
        frame.end()

        decide, sends = TurnTaking.on, caller.transport.send

        def on(turns: TurnTaking, event: CallEvent, status: CallStatus) -> list[Action]:
            if isinstance(event, EndIsLikely | EndOfTurn) and not turn.is_over:
                turn.begin()
            return decide(turns, event, status)

        async def send(data: str) -> None:
            if "output_audio.delta" in data and not turn.is_over:
                turn.end()
            await sends(data)

        caller.transport.send = send  # type: ignore[method-assign]
        with patch.object(TurnTaking, "on", on):
            await caller.listen_until("response.output_audio.delta")
    return frame, turn


def main() -> None:
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        frame, turn = runner.run(walked())
    for name, walk in (("audio", frame), ("a turn, from decision to wire", turn)):
        print(f"{len(walk.files)} files: {name}")
        if "--files" in sys.argv:
            print("".join(f"  {path}\n" for path in sorted(walk.files)))


if __name__ == "__main__":
    main()
