"""The knowledge of `Endpointing` at every moment of every pause of a turn.

Owns the join of pauses, words and end-of-turn (EOT) probability on the audio clock, as the listener
and the anticipation make it live: words come late, the probability later, and both only while the
pause lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from voiceloop.listening.evidence import REMEMBERED_PAUSES, Evidence
from voiceloop.listening.recipes.end_probability import ENGINE_LAG_MS
from voiceloop.listening.recipes.endpointing_set import CallerTurn
from voiceloop.listening.recipes.heard_turn import (
    CHUNK_MS,
    WINDOW_MS,
    HeardWords,
    Pause,
    pauses_of,
    returns_of,
)
from voiceloop.listening.recipes.voice_reading import Reading
from voiceloop.slots.question import asked_in

AskEnd = Callable[[tuple[str, ...]], float]
AskVoice = Callable[[Reading, Reading], float]


@dataclass(frozen=True, slots=True)
class Step:
    """From from_ms on, until the next step or the end of the pause, this is known."""

    from_ms: float
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class HeardPause:
    """A pause as heard, and what is known while it lasts; steps begin at its first low window.

    returns_ms: by the end of a chunk of the client's, for how long a sound that has just begun may
    be the caller again.
    """

    since_ms: float
    detected_ms: float
    resumed_ms: float | None
    steps: tuple[Step, ...]
    returns_ms: Mapping[float, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HeardTurn:
    turn: CallerTurn
    pauses: tuple[HeardPause, ...]


def heard_turn(
    turn: CallerTurn,
    words: Sequence[HeardWords],
    ask_end: AskEnd | None,
    readings: Sequence[Reading] = (),
    ask_voice: AskVoice | None = None,
) -> HeardTurn:
    """One turn with its evidence; ask_end: EOT probability after words, ask_voice: log-odds of the
    end by each of the readings of the voice and the first of its pause. None: to do without.
    """
    slot = asked_in(turn.history[-1][1]) if turn.history else None
    found = []
    returns_ms = returns_of(turn)
    before_ms: tuple[float, ...] = ()  # how long the pauses before were
    for pause in pauses_of(turn):
        base = Evidence(
            speech_ms=pause.speech_ms,
            tail_level_db=pause.tail_level_db,
            tail_semitones=pause.tail_semitones,
            slot=slot,
            turn_pauses_ms=before_ms,
        )
        steps = _with_voice(pause, _steps(pause, base, words, ask_end), readings, ask_voice)
        until_ms = pause.resumed_ms if pause.resumed_ms is not None else float("inf")
        here_ms = {
            at_ms: longest_ms
            for at_ms, longest_ms in returns_ms.items()
            if pause.detected_ms - CHUNK_MS < at_ms <= until_ms + WINDOW_MS
        }
        found.append(
            HeardPause(pause.since_ms, pause.detected_ms, pause.resumed_ms, steps, here_ms)
        )
        if pause.resumed_ms is not None:
            paused_ms = pause.resumed_ms - pause.since_ms
            before_ms = (*before_ms, paused_ms)[-REMEMBERED_PAUSES:]
    return HeardTurn(turn, tuple(found))


def _steps(
    pause: Pause,
    base: Evidence,
    words: Sequence[HeardWords],
    ask_end: AskEnd | None,
) -> tuple[Step, ...]:
    until_ms = pause.resumed_ms if pause.resumed_ms is not None else float("inf")
    before = [heard for heard in words if heard.at_ms <= pause.detected_ms]
    known = replace(base, words=before[-1].words if before else ())
    steps = [Step(pause.detected_ms, known)]
    flushed = False
    for heard in words:
        if not pause.detected_ms < heard.at_ms < until_ms:
            continue
        flushed = flushed or heard.flushed
        if heard.words == known.words and flushed == known.words_are_full:
            continue
        same = heard.words == known.words
        known = replace(
            known,
            words=heard.words,
            words_are_full=flushed,
            p_end=known.p_end if same else None,
        )
        steps.append(Step(heard.at_ms, known))
        if flushed and ask_end is not None and heard.words:
            told_ms = heard.at_ms + ENGINE_LAG_MS
            later = [h.at_ms for h in words if h.at_ms > heard.at_ms and h.words != heard.words]
            if told_ms < min([until_ms, *later[:1]]):
                known = replace(known, p_end=ask_end(heard.words))
                steps.append(Step(told_ms, known))
    return tuple(steps)


def _with_voice(
    pause: Pause,
    steps: tuple[Step, ...],
    readings: Sequence[Reading],
    ask_voice: AskVoice | None,
) -> tuple[Step, ...]:
    """The steps with what each reading of the voice before this pause told: the first of them comes
    with the words of the flush, and the latest counts.
    """
    until_ms = pause.resumed_ms if pause.resumed_ms is not None else float("inf")
    full = [step.from_ms for step in steps if step.evidence.words_are_full]
    asked = [r for r in readings if pause.detected_ms <= r.asked_ms < until_ms]
    if ask_voice is None or not asked or not full:
        return steps
    told = [(full[0], asked[0]), *((max(r.told_ms, full[0]), r) for r in asked[1:])]
    found = list(steps)
    for from_ms, reading in told:
        if from_ms >= until_ms:
            break
        p_voice = ask_voice(reading, asked[0])
        known = [step for step in found if step.from_ms <= from_ms][-1].evidence
        later = (
            replace(s, evidence=replace(s.evidence, p_voice=p_voice))
            for s in found
            if s.from_ms > from_ms
        )
        here = Step(from_ms, replace(known, p_voice=p_voice))
        found = [*(step for step in found if step.from_ms < from_ms), here, *later]
    return tuple(found)
