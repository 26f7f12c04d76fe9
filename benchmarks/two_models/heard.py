"""A chat service that hears: what it is sent of each turn, and what that costs the caller."""

from __future__ import annotations

from benchmarks.any_brain.served import Found
from benchmarks.harness.harness import Bar
from benchmarks.two_models.calls import play, server
from benchmarks.two_models.service import LargeModel, served
from clients.report.percentiles import percentile

TTFT_MS = 150.0
MOST_ADDED_MS = 50.0
LONGEST_S = 30.5  # of one turn's sound


async def measure(found: Found, *, is_quick: bool, n_calls: int, seed: int) -> None:
    """The bundled call on the same service twice: sent words, and sent the sound beside them."""
    gaps: dict[str, list[float]] = {"words": [], "sound": []}
    model = LargeModel(TTFT_MS)
    for name, hears in (("words", "false"), ("sound", "true")):
        model.sounds.clear()
        async with served(model) as url:
            keys = f'llm_url = "{url}"\nllm_hears = {hears}\n'
            async with server(keys=keys) as running:
                for number in range(1 if is_quick else n_calls):
                    result, _ = await play(running, seed + number)
                    gaps[name] += [t.gap_ms for t in result.turns if t.gap_ms is not None]
        if name == "words":
            n_in_words = sum(map(len, model.sounds))
    p50 = {name: percentile(each, 50) if each else None for name, each in gaps.items()}
    sounds = [turn for turn in model.sounds if turn is not None]
    words, sound = p50["words"], p50["sound"]
    found.figures.update({
        "gap_p50_ms": p50, "n": {name: len(each) for name, each in gaps.items()},
        "requests": len(sounds), "parts": [len(turn) for turn in sounds],
        "seconds": [round(sum(turn), 2) for turn in sounds],
    })  # fmt: skip
    found.bars += [
        Bar("heard: gap p50 over words alone",
            sound - words if sound is not None and words is not None else None, MOST_ADDED_MS),
        Bar("requests without the turn's sound", sum(not turn for turn in sounds), 0, ""),
        Bar("parts of sound where words alone are asked for", n_in_words, 0, ""),
        Bar("longest sound of a turn", max(map(sum, sounds), default=0.0), LONGEST_S, "s"),
    ]  # fmt: skip
