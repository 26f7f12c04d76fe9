"""Telephones: ``python -m benchmarks.phone [--part NAME]... [--check]``.

Each part measures one thing of a phone call in `voiceloop serve` on the loopback:

twilio, asterisk   the bundled call by a scripted carrier (an exchange), beside the same over a
                   WebSocket: what the line adds to the gap, and how soon the telephone is silent
                   once the server clears its sound
sip                200 calls of SIPp, 20 at once: their set-up, and what they leave behind; then the
                   bundled call in G.711 by SIP beside the same over a WebSocket
people             40 turns of people by SIP in G.711, and 39 people who say a telephone number
flood              the bundled call by SIP while a stranger sends 200 INVITEs a second, and without
recording          the bundled call without and with a folder for it: drift, cuts, gap, bytes
machines           greetings of machines and of people, offline: which are taken for machines, when
echo               the bundled call over Twilio's dialect while the line gives back what was played,
                   25 dB softer, after 60 to 250 ms: how often the agent interrupts itself
digits             keys as events on a line that loses one packet of ten, keys as tones, and how
                   many are heard where people only speak; no server runs
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence

from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import Bar
from benchmarks.phone.digits import DigitsPart
from benchmarks.phone.echo import EchoPart
from benchmarks.phone.lines import LinePart
from benchmarks.phone.machines import MachinesPart
from benchmarks.phone.part import Part
from benchmarks.phone.people import PeoplePart
from benchmarks.phone.recording import RecordingPart
from benchmarks.phone.sip import FloodPart, SipPart

PARTS: dict[str, Part] = {
    **{name: LinePart(name) for name in ("twilio", "asterisk")},
    "sip": SipPart(),
    "people": PeoplePart(),
    "flood": FloodPart(),
    "machines": MachinesPart(),
    "echo": EchoPart(),
    "recording": RecordingPart(),
}
PARTS["digits"] = DigitsPart()


async def measure(names: Sequence[str], chosen: Namespace) -> None:
    for name in names:
        await PARTS[name].measure(chosen)


def main() -> int:
    command = Benchmark(
        "phone",
        "Calls by telephone: what each part of one costs. A run that is interrupted writes the "
        "parts that had begun.",
        seed="the room noise",
    )
    command.count("--turns", 48, "of each line at least so many, in whole calls of eight")
    command.several("--part", tuple(PARTS), "which parts; without it all of them")
    chosen = command.parse()
    names: list[str] = chosen.part or list(PARTS)
    command.measure(measure(names, chosen))
    measured = {name: figures for name in names if (figures := PARTS[name].figures())}
    if not measured:
        return command.without_results()
    bars: list[Bar] = []
    for name in measured:
        PARTS[name].show()
        bars += PARTS[name].bars()
    return command.finish({"turns": chosen.turns, "parts": names}, bars, **measured)


if __name__ == "__main__":
    sys.exit(run(main))
