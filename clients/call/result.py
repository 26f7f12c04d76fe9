"""The figures of one call, computed from its record.

Definitions (DESIGN.md section 5): the gap runs from the caller's last speech sample *sent*
(waveform truth) to the arrival of the first agent sample above -45 dBFS; ``audible_ms`` runs to
when the 40 ms buffer lets it out of the loudspeaker. An agent that is audible before the caller has
ended cut in: that turn has no gap, it counts as a failure. A server that fades its first sound in
is heard at half of the fade, 6 dB down, and not at the -45 dBFS that a fade passes long before: the
gap runs to there. A reply belongs to the turn in which it was created, so the rest of an
interrupted answer is never taken for the next one; a silence is ended by any that was first heard
in its turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from clients.call.record import Arrived, CallRecord, Reply, Spoken
from clients.call.script import missing_words
from clients.connection import RATE_HZ
from clients.playout import BUFFER_MS
from clients.report.waterfall import Waterfall, waterfall_of
from clients.report.waveform import FRAME_MS as LEVEL_MS
from clients.report.waveform import first_audible, frame_levels_db, speech_frames
from clients.uplink import N_FRAME

# A server ducks by some 10 dB: within this of the loudest sound so far nothing was ducked. Softer
# sounds tell nothing: a figure may be too small by the time between two syllables, and where the
# agent was not loud any more after the onset (a pause, a soft syllable) there is none.
FULL_WITHIN_DB = 9.0
# A cut is soft where no more of the agent was heard over the caller than this, and the server says
# that nothing it said then counts. Chosen: a syllable or two.
SOFT_CUT_MS = 250.0
STILL_TALKING_S = 0.5  # a pause of the agent between two words; what ended before was no barge-in


@dataclass(frozen=True, slots=True)
class BargeIn:
    """The time from the caller's onset to silence; None where the agent had finished by itself.

    ``heard_ms``: of the item, where the client had something to flush. ``ducked_ms``: until the
    last sound as loud as the agent had been before, in a client without a buffer that does not
    flush; what follows is quieter, or nothing. ``ducked_buffered_ms``: the same in a client with
    a buffer of 40 ms. Both are None where no sound after the onset was that loud: when the agent
    was ducked cannot be told then.
    """

    wire_ms: float
    audible_ms: float
    heard_ms: float | None
    ducked_ms: float | None
    ducked_buffered_ms: float | None


@dataclass(frozen=True, slots=True)
class Ahead:
    """How much of a turn the server had done before it was over, in its own words.

    ``turn_tokens``: of what the caller said; ``resident``: those in the cache when the turn ended;
    ``left``: prompt tokens that were not. ``discarded``: reply tokens drafted and not used.
    ``unheard``: those of a reply that the caller interrupted which were not heard any more.
    ``clause_was_held``: the first clause was ready when the turn ended, as far as it can be heard
    at least, and stands in the reply: of the sound held then, what the reply kept reaches past the
    first audible sample. ``draft``: "released" as it was made, "salvaged" where words had changed,
    else "none". ``prefetched``: calls and searches that had begun before the turn was over.
    """

    turn_tokens: int
    resident: int
    left: int
    reply_tokens: int
    discarded: int
    unheard: int
    clause_was_held: bool
    draft: str = "none"
    prefetched: int = 0


@dataclass(frozen=True, slots=True)
class TurnResult:
    """One turn of the caller. Times in ms; ``*_at`` in seconds from the start of the call.

    ``endpoint``: on what evidence the server ended it, in its own words; where it was cut, at the
    first cut.
    """

    name: str
    said: str
    heard: str
    answer: str
    expect: tuple[tuple[str, ...], ...]
    missing: tuple[str, ...]
    onset_at: float
    end_at: float
    answer_at: float | None
    answer_end_at: float | None
    gap_ms: float | None
    audible_ms: float | None
    cut_in: bool
    hesitates: bool
    hesitation_cut: bool
    answered: bool
    barge_in: BargeIn | None
    waterfall: Waterfall | None
    ahead: Ahead | None = None
    cut_is_soft: bool = False  # what was said before the caller's end was short, and taken back
    heard_over_ms: float | None = None  # of the agent, from where a caller who was cut goes on
    interrupts: bool = False  # the script has the caller speak over the agent here
    silent_ms: float | None = None  # from the caller's end to any sound; None: none before the next
    endpoint: Mapping[str, Any] | None = None

    @property
    def n_words_lost(self) -> int:
        """Count the spoken words for which the transcript has none, not even another one."""
        return words_lost(self.said, self.heard)


@dataclass(frozen=True, slots=True)
class CallResult:
    """One call: the agent's greeting, the turns, and what the server complained about."""

    voice: str
    greeting: str
    turns: tuple[TurnResult, ...]
    errors: tuple[str, ...]
    spurious_speech: int
    underruns: int

    @property
    def unanswered(self) -> tuple[str, ...]:
        return tuple(turn.name for turn in self.turns if not turn.answered)


def call_result(record: CallRecord, voice: str, n_turns: int | None = None) -> CallResult:
    """Measure a finished call, or the first ``n_turns`` of one that is not."""
    begins = [_sent_at(record, spoken, spoken.utterance.onset) for spoken in record.spoken]
    ends = [*begins[1:], float("inf")][: len(begins)]
    turns = tuple(
        _turn(record, spoken, begin, end)
        for spoken, begin, end in list(zip(record.spoken, begins, ends, strict=True))[:n_turns]
    )
    first = begins[0] if begins else float("inf")
    greeting = " ".join(r.text.strip() for r in record.replies if r.created_at < first)
    return CallResult(
        voice,
        greeting,
        turns,
        tuple(record.errors),
        _spurious_speech(record),
        _underruns(record),
    )


def _sent_at(record: CallRecord, spoken: Spoken, sample: int) -> float:
    """Return when the frame with that sample of the utterance was sent; the newest where it was
    not.
    """
    frame = (spoken.position + sample) // N_FRAME
    return record.sent_at[min(frame, len(record.sent_at) - 1)]


def _turn(record: CallRecord, spoken: Spoken, onset_at: float, next_at: float) -> TurnResult:
    utterance = spoken.utterance
    end_at = _sent_at(record, spoken, utterance.end - 1)
    replies = record.replies_between(onset_at, next_at)
    audible = [
        (at, reply) for reply in replies if (at := _first_audible_arrival(reply)) is not None
    ]
    early = [reply for at, reply in audible if at < end_at]
    heard_over_ms = _heard_over_ms(record, spoken, early) if early else None
    is_taken_back = all(one.is_soft for one in early)
    # What an agent says where its reply failed ("could you say that again?") is no answer, nor is
    # one that it took back.
    told = [(at, reply) for at, reply in audible if reply.status != "failed" and not reply.is_soft]
    answers = [(at, reply) for at, reply in told if at >= end_at]
    first_at, first_reply = answers[0] if answers else (None, None)
    silent_ms = _silent_ms(record, onset_at, end_at, next_at)
    items = frozenset(reply.item_id for _, reply in told if reply.item_id)
    heard_at = record.playout.first_audible_at(end_at, items) if first_at is not None else None
    gap_ms = audible_ms = None
    if first_at is not None and first_reply is not None and not early:
        faded_ms = _faded_ms(first_reply)
        gap_ms = 1000.0 * (first_at - end_at) + faded_ms
        audible_ms = None if heard_at is None else 1000.0 * (heard_at - end_at) + faded_ms
    # Neither is it what the caller was told: it is begun anew, and the history holds it once.
    answer = " ".join(reply.text.strip() for _, reply in audible if not reply.is_soft)
    waterfall = None
    if gap_ms is not None and first_reply is not None:
        waterfall = waterfall_of(
            first_reply.timeline, end_at, first_reply.audio[0].at, end_at + gap_ms / 1000.0
        )
    start = record.starts_at
    answer_end_at = record.playout.last_audible_at(items) if items else None
    return TurnResult(
        name=utterance.turn.name,
        said=utterance.turn.text.replace(" |", " ..."),
        heard=" ".join(text for at, text in record.transcripts if onset_at <= at < next_at),
        answer=answer,
        expect=utterance.turn.expect,
        missing=tuple(missing_words(utterance.turn.expect, answer)),
        onset_at=onset_at - start,
        end_at=end_at - start,
        answer_at=heard_at - start if heard_at is not None else None,
        answer_end_at=answer_end_at - start if answer_end_at is not None else None,
        gap_ms=gap_ms,
        audible_ms=audible_ms,
        cut_in=bool(early),
        cut_is_soft=heard_over_ms is not None and heard_over_ms <= SOFT_CUT_MS and is_taken_back,
        heard_over_ms=heard_over_ms,
        hesitates=bool(utterance.hesitations),
        hesitation_cut=bool(early) and bool(utterance.hesitations),
        answered=bool(told),
        barge_in=_barge_in(record, onset_at, next_at),
        waterfall=waterfall,
        ahead=_ahead(first_reply) if first_reply is not None else None,
        interrupts=utterance.turn.after == "barge_in",
        silent_ms=silent_ms,
        endpoint=_endpoint([*early, *([first_reply] if first_reply else [])]),
    )


def _silent_ms(record: CallRecord, onset_at: float, end_at: float, next_at: float) -> float | None:
    """Return the time from the caller's end to a sound before the next turn, of a reply not heard
    before.

    So also of an answer to the turn before that was still under way.
    """
    unheard = (
        reply
        for reply in record.replies
        if reply.audio
        and reply.audio[-1].at >= end_at
        and (first_at := _first_audible_arrival(reply)) is not None
        and first_at >= onset_at
    )
    sounds = (_first_audible_arrival(reply, end_at) for reply in unheard)
    return min(
        (1000.0 * (at - end_at) for at in sounds if at is not None and at < next_at), default=None
    )


def words_lost(said: str, heard: str) -> int:
    """How many words of a text have nothing in their place in what was heard of it.

    A word that was heard as another is not lost: that is the recognizer's error, and no cut's.
    """
    told, known = (re.findall(r"[\w']+", text.lower()) for text in (said, heard))
    edits = SequenceMatcher(None, told, known, autojunk=False).get_opcodes()
    return sum(max(0, (i2 - i1) - (j2 - j1)) for tag, i1, i2, j1, j2 in edits if tag != "equal")


def _endpoint(replies: Sequence[Reply]) -> Mapping[str, Any] | None:
    """Return what the first of the replies whose server told it says of the turn's end."""
    told = ((reply.timeline or {}).get("endpoint") for reply in replies)
    return next((facts for facts in told if facts is not None), None)


def _ahead(reply: Reply) -> Ahead | None:
    timeline = reply.timeline
    facts = (timeline or {}).get("anticipation")
    if timeline is None or facts is None:
        return None
    return Ahead(
        turn_tokens=facts["n_turn_tokens"],
        resident=facts["n_turn_resident"],
        left=facts["n_left_to_prefill"],
        reply_tokens=facts["n_reply_tokens"],
        discarded=facts["n_discarded_tokens"],
        unheard=facts["n_unheard_tokens"],
        clause_was_held=_lead_in_ms(reply) < timeline.get("held_ms", 0.0),
        draft=facts.get("draft", "none"),
        prefetched=_prefetched(timeline),
    )


def _prefetched(timeline: Mapping[str, Any]) -> int:
    """Return the turn's calls and searches that had begun before it was over."""
    calls = sum(call["hidden_ms"] > 0.0 for call in timeline.get("tools") or ())
    return calls + ((timeline.get("retrieval") or {}).get("fate") == "hidden")


def _lead_in_ms(reply: Reply) -> float:
    """How much of its sound lies before the first sample above -45 dBFS."""
    n_before = 0
    for piece in reply.audio:
        position = first_audible(piece.samples)
        if position is not None:
            return 1000.0 * (n_before + position) / RATE_HZ
        n_before += len(piece.samples)
    return 1000.0 * n_before / RATE_HZ


def _faded_ms(reply: Reply) -> float:
    """Return the time from its first sample above -45 dBFS to half of the fade-in that its
    server told of.
    """
    half_ms = (reply.timeline or {}).get("fade_in_ms", 0.0) / 2.0
    return max(0.0, half_ms - _lead_in_ms(reply)) if half_ms else 0.0


def _heard_over_ms(record: CallRecord, spoken: Spoken, early: Sequence[Reply]) -> float:
    """Return for how long an agent that began too early was heard once the caller went on."""
    items = frozenset(reply.item_id for reply in early)
    begins_at = record.playout.first_audible_at(0.0, items)
    ends_at = record.playout.last_audible_at(items)
    if begins_at is None or ends_at is None:  # flushed before any of it was played
        return 0.0
    utterance = spoken.utterance
    loud = speech_frames(utterance.recording.samples[: utterance.end], RATE_HZ)
    said_at = [_sent_at(record, spoken, int(frame) * RATE_HZ * LEVEL_MS // 1000) for frame in loud]
    goes_on_at = next((at for at in said_at if at >= begins_at), None)
    last_at = _sent_at(record, spoken, utterance.end - 1)
    if goes_on_at is None:
        return 0.0
    return 1000.0 * max(0.0, min(ends_at, last_at) - goes_on_at)


def _first_audible_arrival(reply: Reply, since: float = 0.0) -> float | None:
    """Return when the message with the reply's first sample above -45 dBFS arrived, of those
    ``since``.
    """
    for piece in reply.audio:
        if piece.at >= since and first_audible(piece.samples) is not None:
            return piece.at
    return None


def _barge_in(record: CallRecord, onset_at: float, next_at: float) -> BargeIn | None:
    """How fast the agent fell silent, if the caller's speech interrupted it."""
    older = [reply for reply in record.replies if reply.created_at < onset_at]
    items = frozenset(reply.item_id for reply in older if reply.item_id)
    flushes = [
        flush.interrupted.played_ms
        for flush in record.flushes
        if onset_at <= flush.at < next_at and flush.interrupted.item_id in items
    ]
    # A server that held its tongue before it decided leaves the client nothing to flush.
    cancelled = any(
        reply.status == "cancelled" and onset_at <= (reply.done_at or 0.0) < next_at
        for reply in older
    )
    if not flushes and not cancelled:
        return None
    pieces = [piece for reply in older for piece in reply.audio]
    arrivals = [piece.at for piece in pieces if first_audible(piece.samples) is not None]
    interrupted = max((r for r in older if r.audio), key=lambda r: r.audio[-1].at, default=None)
    heard_until = record.playout.last_audible_at(items)
    if interrupted is None or not arrivals or heard_until is None:
        return None
    if max(arrivals) < onset_at - STILL_TALKING_S:
        return None
    return BargeIn(
        wire_ms=max(0.0, 1000.0 * (max(arrivals) - onset_at)),
        audible_ms=max(0.0, 1000.0 * (heard_until - onset_at)),
        heard_ms=flushes[0] if flushes else None,
        ducked_ms=ducked_ms(interrupted.audio, onset_at),
        ducked_buffered_ms=ducked_ms(interrupted.audio, onset_at, BUFFER_MS),
    )


def ducked_ms(pieces: Sequence[Arrived], onset_at: float, buffer_ms: float = 0.0) -> float | None:
    """Return the time from the onset until a client plays no more sound as loud as what it played
    before it.

    None where it played nothing before the onset, or nothing that loud after it.
    """
    levels: list[tuple[float, float]] = []  # when 10 ms have been played, and their dBFS
    play_at = 0.0
    for piece in pieces:
        if piece.at > play_at:  # nothing is left to be played: the buffer fills anew
            play_at = piece.at + buffer_ms / 1000.0
        for level_db in frame_levels_db(piece.samples, RATE_HZ):
            play_at += LEVEL_MS / 1000.0
            levels.append((play_at, float(level_db)))
    before = [db for at, db in levels if at < onset_at]
    if not before:
        return None
    full_db = max(before) - FULL_WITHIN_DB
    loud_ms = [1000.0 * (at - onset_at) for at, db in levels if at >= onset_at and db >= full_db]
    return max(loud_ms, default=None)


def _underruns(record: CallRecord) -> int:
    """How often the loudspeaker ran dry in mid-reply; an agent held for its caller did not."""
    spans = _speaking(record)
    return sum(not any(begin <= at <= end for begin, end in spans) for at in record.playout.dry_at)


def _spurious_speech(record: CallRecord) -> int:
    """How often the server reported speech while the caller was silent (and had been, 600 ms)."""
    spans = _speaking(record)
    return sum(
        not any(begin <= at <= end + 0.6 for begin, end in spans) for at in record.speech_started_at
    )


def _speaking(record: CallRecord) -> list[tuple[float, float]]:
    """Return from when until when the caller spoke, turn by turn."""
    return [
        (
            _sent_at(record, spoken, spoken.utterance.onset),
            _sent_at(record, spoken, spoken.utterance.end - 1),
        )
        for spoken in record.spoken
    ]
