"""Whole calls against the mock server on a virtual clock: the figures of a call are the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from clients.call.open_call import CallOptions
from clients.call.record import Arrived, CallRecord, Reply, Spoken
from clients.call.result import CallResult, TurnResult, call_result, ducked_ms, words_lost
from clients.call.script import After, ScriptedTurn, Utterance, utterance_of
from clients.call.simulated_call import SimulatedCall
from clients.connection import RATE_HZ, Received
from clients.errors import ConnectionFailed
from clients.recording import Recording, Samples
from clients.report.call_summary import turn_json
from tests.clients.mock_server import MockSession, memory_call

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]


def voice(*parts_ms: float) -> Samples:
    """Alternating speech and silence, beginning with speech."""
    pieces = []
    for index, ms in enumerate(parts_ms):
        n = int(RATE_HZ * ms / 1000)
        tone = (6000 * np.sin(2 * np.pi * 220 * np.arange(n) / RATE_HZ)).astype(np.int16)
        pieces.append(tone if index % 2 == 0 else np.zeros(n, dtype=np.int16))
    return np.concatenate(pieces)


def says(samples: Samples, after: After = "agent", wait_ms: float = 600.0) -> Utterance:
    turn = ScriptedTurn("turn", "words", "x.flac", after, wait_ms, 0.0, (("latte",),))
    return utterance_of(turn, Recording(samples, RATE_HZ))


async def play(
    clock: Clock, *utterances: Utterance, silence_ms: float = 200.0, reply_ms: float = 400.0
) -> tuple[CallResult, SimulatedCall, MockSession]:
    async with memory_call(clock, silence_ms, reply_ms) as (connection, session):
        call = SimulatedCall(connection, utterances, voice="test", clock=clock)
        return await call.run(), call, session


async def test_the_gap_is_the_servers_silence_wait(clock: Clock) -> None:
    result, _, _ = await play(clock, says(voice(1000, 100)), silence_ms=200)
    [turn] = result.turns
    assert turn.gap_ms == pytest.approx(200, abs=0.5)
    assert turn.audible_ms == pytest.approx(240, abs=0.5)
    assert turn.answered
    assert not turn.cut_in
    assert turn.missing == ()
    assert turn.heard == "words"
    assert result.greeting == "Hello, Juniper Cafe."
    assert result.unanswered == ()


async def test_the_waterfall_adds_up_to_the_gap(clock: Clock) -> None:
    result, _, _ = await play(clock, says(voice(1000, 100)))
    waterfall = result.turns[0].waterfall
    assert waterfall is not None
    assert waterfall.total_ms == pytest.approx(result.turns[0].gap_ms)
    assert abs(waterfall.sum_error_ms) < 0.01


async def test_an_answer_into_a_hesitation_is_a_cut_in_and_has_no_gap(clock: Clock) -> None:
    result, _, _ = await play(clock, says(voice(800, 700, 800, 100)), silence_ms=300)
    [turn] = result.turns
    assert turn.cut_in
    assert turn.hesitates
    assert turn.hesitation_cut
    assert turn.gap_ms is None
    assert turn.answered


async def test_a_patient_server_leaves_the_hesitation_alone(clock: Clock) -> None:
    result, _, _ = await play(clock, says(voice(800, 700, 800, 100)), silence_ms=800)
    [turn] = result.turns
    assert turn.hesitates
    assert not turn.cut_in
    assert turn.gap_ms == pytest.approx(800, abs=0.5)


async def test_a_barge_in_flushes_truncates_and_is_measured_from_the_onset(clock: Clock) -> None:
    result, call, session = await play(
        clock,
        says(voice(800, 100)),
        says(voice(600, 100), "barge_in", wait_ms=500.0),
        reply_ms=3000,
    )
    first, second = result.turns
    assert first.barge_in is None
    assert not first.interrupts
    assert second.barge_in is not None
    assert second.interrupts
    assert 0 <= second.barge_in.audible_ms <= 20
    assert second.barge_in.wire_ms <= second.barge_in.audible_ms
    assert second.gap_ms == pytest.approx(200, abs=0.5)
    [truncate] = [e for e in session.client_events if e["type"] == "conversation.item.truncate"]
    assert truncate["audio_end_ms"] == int(second.barge_in.heard_ms)
    assert 500 <= truncate["audio_end_ms"] <= 540


async def test_a_turn_without_an_answer_is_counted_and_the_call_goes_on(clock: Clock) -> None:
    result, _, _ = await play(
        clock, says(voice(500, 100)), says(voice(500, 100)), silence_ms=60_000
    )
    assert result.unanswered == ("turn", "turn")
    assert all(turn.gap_ms is None and not turn.cut_in for turn in result.turns)


async def test_conversation_has_both_voices_in_true_timing(clock: Clock) -> None:
    result, call, _ = await play(clock, says(voice(1000, 100)))
    caller, agent = call.record.channels(call.uplink.recorded())
    assert len(caller) == len(agent)
    [turn] = result.turns
    assert turn.answer_at is not None
    starts = round(turn.answer_at * RATE_HZ)
    assert abs(int(agent[starts + 100])) + abs(int(agent[starts + 130])) > 0
    between = slice(round(turn.end_at * RATE_HZ), starts - 1)
    assert not agent[between].any()
    assert np.abs(caller[between]).max() < 400  # the room, not the caller


async def test_a_server_that_hangs_up_breaks_the_call_with_a_sentence(clock: Clock) -> None:
    async with memory_call(clock) as (connection, session):
        call = SimulatedCall(connection, (says(voice(500, 100)),), clock=clock)
        await session.socket.close()
        with pytest.raises(ConnectionFailed):
            await call.run()


class Watch:
    """Tells when the caller begins to speak for the second time."""

    def __init__(self) -> None:
        self.n_spoken = 0
        self.second = asyncio.Event()

    def received(self, received: Received) -> None: ...

    def speaks(self, utterance: Utterance) -> None:
        self.n_spoken += 1
        if self.n_spoken == 2:
            self.second.set()

    def finished(self, turn: TurnResult) -> None: ...


async def test_a_call_that_is_cut_short_keeps_its_recording_and_the_turns_that_were_over(
    clock: Clock,
) -> None:
    async with memory_call(clock) as (connection, _):
        utterances = [says(voice(500, 100)) for _ in range(3)]
        watch = Watch()
        call = SimulatedCall(
            connection, tuple(utterances), voice="test", clock=clock, observer=watch
        )
        assert call.so_far() is None
        running = asyncio.create_task(call.run())
        await watch.second.wait()
        await asyncio.sleep(0.2)
        running.cancel()
        await asyncio.wait([running])
        result = call.so_far()
        ended_at = clock()
    assert result is not None
    [turn] = result.turns  # the second was being said
    assert turn.answered
    assert turn.gap_ms == pytest.approx(200, abs=0.5)
    caller, agent = call.record.channels(call.uplink.recorded())
    assert len(caller) == len(agent)
    assert len(caller) / RATE_HZ == pytest.approx(ended_at - call.record.starts_at, abs=0.05)
    assert np.abs(agent).max() > 1000


async def test_what_a_cut_short_call_had_not_played_yet_is_not_in_its_recording(
    clock: Clock,
) -> None:
    async with memory_call(clock) as (connection, _):
        call = SimulatedCall(connection, (says(voice(500, 100)),), clock=clock)
        running = asyncio.create_task(call.run())
        await asyncio.sleep(0.1)
        running.cancel()
        await asyncio.wait([running])
        call.record.playout.push("item", np.full(5 * RATE_HZ, 8000, np.int16), clock())
        call.so_far()
    caller, _ = call.record.channels(call.uplink.recorded())
    assert len(caller) < RATE_HZ


async def test_requested_turn_detection_reaches_the_server(clock: Clock) -> None:
    detection = {"type": "server_vad", "silence_duration_ms": 250}
    async with memory_call(clock) as (connection, session):
        options = CallOptions(turn_detection=detection)
        await SimulatedCall(connection, (), options=options, clock=clock).run()
    [update] = [e for e in session.client_events if e["type"] == "session.update"]
    assert update["session"]["audio"]["input"]["turn_detection"] == detection


def test_the_duck_is_read_from_what_is_played() -> None:
    """Full loudness up to 60 ms after the onset, then -10 dB, then a fade: pieces of 20 ms."""
    tone = np.full(480, 8000, np.int16)
    gains = [1.0] * 8 + [0.3] * 4 + [0.05]
    pieces = [
        Arrived(10.0 + 0.02 * index, (tone * gain).astype(np.int16))
        for index, gain in enumerate(gains)
    ]
    assert ducked_ms(pieces, onset_at=10.1) == pytest.approx(60.0)
    assert ducked_ms(pieces, onset_at=10.1, buffer_ms=40.0) == pytest.approx(100.0)
    early = [Arrived(min(piece.at, 10.06), piece.samples) for piece in pieces]  # what is sent ahead
    assert ducked_ms(early, onset_at=10.1) == pytest.approx(60.0)


def test_where_the_agent_was_not_loud_after_the_onset_no_duck_can_be_told() -> None:
    tone = np.full(480, 8000, np.int16)
    loud = [Arrived(10.0 + 0.02 * index, tone) for index in range(4)]
    soft = [Arrived(10.08 + 0.02 * index, tone // 10) for index in range(4)]
    assert ducked_ms([*loud, *soft], onset_at=10.1) is None
    assert ducked_ms(loud, onset_at=10.1) is None
    assert ducked_ms(loud, onset_at=9.9) is None
    assert ducked_ms([], onset_at=10.1) is None


def test_a_reply_that_runs_dry_counts_unless_it_was_held_for_the_caller() -> None:
    record = CallRecord(sent_at=[10.0 + 0.02 * index for index in range(100)])
    record.spoken.append(Spoken(says(voice(1000)), position=RATE_HZ // 2))  # from 10.5 to 11.5 s
    record.playout.dry_at = [10.4, 10.7, 11.7]
    assert call_result(record, "test").underruns == 2


@pytest.mark.parametrize("retried", [False, True])
def test_what_is_said_where_a_reply_failed_is_no_answer(retried: bool) -> None:
    record = CallRecord(sent_at=[10.0 + 0.02 * index for index in range(100)])
    record.spoken.append(Spoken(says(voice(1000)), position=0))
    for index, status in enumerate(["failed", "completed"][: 1 + retried]):
        audio = [Arrived(11.3 + index, voice(100)[1:])]
        reply = Reply(f"r{index}", 11.1 + index, f"i{index}", status=status, audio=audio)
        record.replies.append(reply)
        record.playout.push(reply.item_id, audio[0].samples, audio[0].at)
    [turn] = call_result(record, "test").turns
    assert turn.answered is retried and not turn.cut_in
    assert turn.gap_ms == (pytest.approx(1320.0, abs=25.0) if retried else None)


@pytest.mark.parametrize(("facts", "held"), [({}, False), ({"held_ms": 0.0}, False),
    ({"held_ms": 50.0}, False), ({"held_ms": 51.0}, True)])  # fmt: skip
def test_a_clause_was_held_where_what_was_kept_of_it_can_be_heard(
    facts: dict[str, float], held: bool
) -> None:
    """The reply begins with 50 ms of silence, in a piece of its own and in the next one."""
    record = CallRecord(sent_at=[10.0 + 0.02 * index for index in range(100)])
    record.spoken.append(Spoken(says(voice(1000)), position=0))
    counts = ("n_turn_tokens", "n_turn_resident", "n_left_to_prefill", "n_reply_tokens",
              "n_discarded_tokens", "n_unheard_tokens")  # fmt: skip
    anticipation = {"draft": "salvaged", **dict.fromkeys(counts, 1)}
    silence, tone = np.zeros(RATE_HZ * 40 // 1000, np.int16), voice(100)[1:]
    audio = [Arrived(11.2, silence), Arrived(11.24, np.concatenate([silence[:240], tone]))]
    timeline = {"anticipation": anticipation, "draft_buffered_ms": 90.0, "marks": {}, **facts}
    record.replies.append(Reply("r", 11.1, "i", done_at=12.0, audio=audio, timeline=timeline))
    [turn] = call_result(record, "test").turns
    assert turn.ahead is not None
    assert turn.ahead.clause_was_held is held


def test_a_turn_tells_on_what_evidence_it_was_ended_at_its_first_cut_where_it_was_cut() -> None:
    record = CallRecord(sent_at=[10.0 + 0.02 * index for index in range(100)])
    record.spoken.append(Spoken(says(voice(1000)), position=0))
    sound = voice(100)
    for reply_id, at, facts in (("a", 11.2, {"p_end": 0.9}), ("b", 11.6, {"p_end": 0.8})):
        audio = [Arrived(at, sound)]
        timeline = {"marks": {}, "endpoint": facts}
        record.replies.append(
            Reply(reply_id, at - 0.1, reply_id, done_at=at + 1, audio=audio, timeline=timeline)
        )
    [whole] = call_result(record, "test").turns
    assert whole.endpoint == {"p_end": 0.9} and turn_json(whole)["endpoint"] == {"p_end": 0.9}
    record.replies[0].audio = [Arrived(10.5, sound)]
    record.replies[0].timeline, record.replies[1].timeline = None, {"endpoint": {"p_end": 0.7}}
    [cut] = call_result(record, "test").turns
    assert cut.cut_in and cut.endpoint == {"p_end": 0.7}


def test_a_reply_that_a_broken_line_took_away_is_not_waited_for() -> None:
    record = CallRecord()
    created = {"type": "response.created", "response": {"id": "resp_1"}}
    record.receive(Received(created, 1.0))
    assert record.answering
    record.receive(Received({"type": "voiceloop.resumed"}, 2.0))
    assert not record.answering and record.replies[0].status == "lost"


@pytest.mark.parametrize(("heard_ms", "told", "over_ms", "is_soft"), [
    (300, {"cut": "soft"}, 100.0, True),
    (300, {}, 100.0, False),  # it stays in the history
    (600, {"cut": "soft"}, 400.0, False),  # too long to be called soft, whatever the server says
    (150, {"cut": "soft"}, 0.0, True),  # over before the caller went on
])  # fmt: skip
def test_a_cut_is_soft_by_what_was_heard_of_it_and_what_the_server_took_back(
    heard_ms: float, told: dict[str, str], over_ms: float, is_soft: bool
) -> None:
    """The caller pauses from 10.8 to 11.5 s; the agent is heard from 11.3 s on (40 ms buffer)."""
    record = CallRecord(sent_at=[10.02 + 0.02 * index for index in range(200)])
    record.spoken.append(Spoken(says(voice(800, 700, 800)), position=0))
    sound = voice(heard_ms)
    early = Reply("a", 11.2, "early", audio=[Arrived(11.26, sound)], timeline={"marks": {}, **told})
    late = Reply("b", 12.6, "late", audio=[Arrived(12.6, sound)], timeline={"marks": {}})
    for reply in (early, late):
        record.replies.append(reply)
        record.playout.push(reply.item_id, sound, reply.audio[0].at)
    [turn] = call_result(record, "test").turns
    assert turn.cut_in and turn.cut_is_soft is is_soft and turn.gap_ms is None
    assert turn.heard_over_ms == pytest.approx(over_ms, abs=21.0)  # a frame of the line
    assert turn_json(turn)["heard_over_ms"] == turn.heard_over_ms


@pytest.mark.parametrize(("silent_ms", "fade_in_ms", "later_ms"), [
    (0, None, 0.0), (0, 100, 50.0), (30, 100, 20.0), (80, 100, 0.0),
])  # fmt: skip
def test_a_first_sound_that_fades_in_counts_from_half_of_its_fade(
    silent_ms: int, fade_in_ms: int | None, later_ms: float
) -> None:
    record = CallRecord(sent_at=[10.02 + 0.02 * index for index in range(100)])
    record.spoken.append(Spoken(says(voice(1000)), position=0))
    sound = np.concatenate((np.zeros(RATE_HZ * silent_ms // 1000, np.int16), voice(400)[1:]))
    facts = {} if fade_in_ms is None else {"fade_in_ms": fade_in_ms}
    timeline = {"marks": {}, **facts}
    record.replies.append(Reply("a", 11.2, "i", audio=[Arrived(11.2, sound)], timeline=timeline))
    record.playout.push("i", sound, 11.2)
    [turn] = call_result(record, "test").turns
    assert turn.gap_ms == pytest.approx(200.0 + later_ms, abs=0.5)
    assert turn.audible_ms == pytest.approx(240.0 + silent_ms + later_ms, abs=0.5)


def test_the_answer_to_a_turn_is_not_one_that_was_taken_back() -> None:
    record = CallRecord(sent_at=[10.02 + 0.02 * index for index in range(150)])
    record.spoken.append(Spoken(says(voice(1000)), position=0))
    for name, at, facts in (("a", 11.2, {"cut": "soft"}), ("b", 11.9, {})):
        sound, timeline = voice(100)[1:], {"marks": {}, **facts}
        audio = [Arrived(at, sound)]
        record.replies.append(Reply(name, at, name, f"One {name}", audio=audio, timeline=timeline))
        record.playout.push(name, sound, at)
    [turn] = call_result(record, "test").turns
    assert not turn.cut_in and turn.gap_ms == pytest.approx(900.0, abs=0.5)
    assert turn.answer == "One b"  # its beginning was said once, as the history has it


@pytest.mark.parametrize(("first_at", "silent_ms"), [
    (11.8, 300.0),  # the answer to the turn before was under way, and comes now
    (11.3, 20.0),  # it began over the caller's word, and goes on behind it
    (10.9, None),  # the rest of what the caller has heard
    (12.9, None),  # in the next turn
])  # fmt: skip
def test_a_silence_ends_with_any_sound_that_was_first_heard_in_its_turn(
    first_at: float, silent_ms: float | None
) -> None:
    """The caller says a word from 11 to 11.5 s and the next thing from 12.5 s on."""
    record = CallRecord(sent_at=[10.02 + 0.02 * index for index in range(200)])
    for begins_s, ms in ((0.0, 500), (1.0, 500), (2.5, 500)):
        record.spoken.append(Spoken(says(voice(ms)), position=round(RATE_HZ * begins_s)))
    pieces = [Arrived(first_at + 0.02 * index, voice(20)) for index in range(12)]
    record.replies.append(Reply("a", 10.8, "i", audio=pieces))
    turn = call_result(record, "test").turns[1]
    assert turn.silent_ms == (None if silent_ms is None else pytest.approx(silent_ms, abs=21.0))
    assert not turn.answered  # it was created before


@pytest.mark.parametrize(("heard", "n_lost"), [
    ("A latte with oat milk, please.", 0),
    ("a lot with goat milk please", 0),  # heard wrong, but heard
    ("a latte please", 3),
    ("", 6),
    ("a latte with oat milk and please", 0),
])  # fmt: skip
def test_a_word_is_lost_where_the_transcript_has_none_in_its_place(heard: str, n_lost: int) -> None:
    assert words_lost("A latte ... with oat milk please.", heard) == n_lost
