"""Fourteen services, each with its dialect: does a call speak, and none of the model's thoughts?"""

from __future__ import annotations

from benchmarks.any_brain.served import Found, served_by
from benchmarks.calls.typed_call import typed_call
from benchmarks.harness.harness import Bar
from clients.progress import progress_bar
from tests.dialect_service import ANSWER, NAMES, THOUGHT, DialectService
from voiceloop.remote.dialect import KINDS

SECRET = THOUGHT.split()[0]
N_TURNS = 2  # the second asks for nothing that was refused


async def measure(found: Found, *, is_quick: bool, seed: int) -> None:
    """One call of each: its model thinks unless a request keeps it from that, or in any case."""
    services = [
        (name, thinks) for name in NAMES for thinks in ((False,) if is_quick else (False, True))
    ]
    spoke: dict[str, bool] = {}
    with progress_bar("calls", len(services)) as progress:
        for done, (name, thinks_anyway) in enumerate(services):
            service = DialectService(name, thinks_anyway=thinks_anyway)
            speaks = await _speaks(service)
            spoke[name] = spoke.get(name, True) and speaks
            progress(done + 1)
    found.figures["services"] = spoke
    found.bars.append(Bar("services whose calls speak", sum(spoke.values()), len(NAMES), "", True))


async def _speaks(service: DialectService) -> bool:
    """Whether each turn of a call says the answer, aloud, and nothing else."""
    named = service.name if KINDS[service.name].hosts else "auto"
    async with (
        served_by(service, llm_service=named) as url,
        typed_call(url, "Hello.", speaks=True) as call,
    ):
        turns = [await call.turn("How much is a latte?") for _ in range(N_TURNS)]
    is_kept_out = SECRET not in str(service.bodies) and all(SECRET not in t.said for t in turns)
    is_aloud = all(SECRET.encode() not in body for body in service.asked("/audio/speech"))
    n_spoken = len(service.asked("/audio/speech"))
    return is_kept_out and is_aloud and n_spoken > 0 and all(t.said == ANSWER for t in turns)
