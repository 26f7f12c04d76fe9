"""What leaves when, and what of it was heard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voiceloop.backends import SpokenWord
from voiceloop.reply.playout import (
    CHUNK_MS,
    DUCK_GAIN,
    KEPT_MS,
    REDUCED_LEAD_CHUNK_MS,
    Chunk,
    Pacer,
    Playout,
)

RATE_HZ = 8000
FLAT = 1000  # a constant signal shows every gain


def flat(ms: float) -> np.ndarray:
    return np.full(int(RATE_HZ * ms / 1000), FLAT, np.int16)


def ramp(ms: float) -> np.ndarray:
    return np.arange(int(RATE_HZ * ms / 1000)).astype(np.int16)


def sent_until(pacer: Pacer, now_s: float, until_s: float) -> tuple[list[Chunk], float]:
    chunks = []
    while now_s <= until_s:
        while (chunk := pacer.next_chunk(now_s)) is not None:
            chunks.append(chunk)
        now_s += 0.005
    return chunks, now_s


def test_never_more_than_the_lead_ahead_of_the_client() -> None:
    pacer = Pacer(RATE_HZ, lead_ms=160)
    pacer.push(flat(2000))
    now_s = 10.0
    while now_s < 11.0:
        while pacer.next_chunk(now_s) is not None:
            assert pacer.sent_ms - 1000 * (now_s - 10.0) <= 160 + 1e-6
        now_s += 0.007
    assert pacer.sent_ms >= 1000
    assert pacer.heard_ms(now_s) == pytest.approx(1000 * (now_s - 10.0), abs=20)


def test_a_voice_that_falls_behind_is_heard_late_not_at_once() -> None:
    pacer = Pacer(RATE_HZ)
    pacer.push(flat(100))
    sent_until(pacer, 0.0, 0.5)
    pacer.push(flat(100))
    sent_until(pacer, 0.5, 0.5)
    assert pacer.heard_ms(0.55) == pytest.approx(150, abs=6)


def test_ducking_lowers_the_level_and_resuming_restores_it() -> None:
    pacer = Pacer(RATE_HZ, lead_ms=40)
    pacer.push(flat(1000))
    sent_until(pacer, 0.0, 0.1)
    pacer.duck()
    chunks, _ = sent_until(pacer, 0.1, 0.2)
    assert chunks[-1].samples[-1] == round(FLAT * DUCK_GAIN)
    pacer.resume()
    chunks, _ = sent_until(pacer, 0.2, 0.3)
    assert chunks[-1].samples[-1] == FLAT


def test_a_client_that_plays_at_once_has_something_left_while_a_sound_is_judged() -> None:
    pacer = Pacer(RATE_HZ)
    pacer.push(flat(1000))
    _, now_s = sent_until(pacer, 0.0, 0.1)
    pacer.reduce_lead()
    left_ms = []
    while now_s < 0.5:
        play_end_s = pacer.play_end_s
        if pacer.next_chunk(now_s) is not None:
            left_ms.append(1000 * (play_end_s - now_s))
        now_s += 0.005
    assert len(left_ms) >= 30 and 5 <= min(left_ms) <= max(left_ms) <= REDUCED_LEAD_CHUNK_MS + 1e-6


def test_pause_then_resume_loses_and_repeats_no_sample() -> None:
    pacer = Pacer(RATE_HZ, lead_ms=40)
    pacer.push(ramp(600))
    pacer.finish()
    before, now_s = sent_until(pacer, 0.0, 0.2)
    fade = pacer.pause()
    assert fade is not None and abs(int(fade.samples[-1])) < 0.05 * abs(ramp(600)).max()
    assert sent_until(pacer, now_s, now_s + 1.0)[0] == []
    pacer.resume()
    after, _ = sent_until(pacer, now_s + 1.0, now_s + 3.0)
    chunks = [*before, fade, *after]
    assert sum(len(c.samples) for c in chunks) == len(ramp(600))
    # Beyond the 5 ms fade-in the samples are those that would have come without the pause.
    n_before = sum(len(c.samples) for c in [*before, fade])
    tail = np.concatenate([c.samples for c in after])
    assert np.array_equal(tail[40:], ramp(600)[n_before + 40 :])


@pytest.mark.parametrize("ducks_before", [True, False])
def test_a_pause_without_a_duck_before_is_as_quiet_as_soon(ducks_before: bool) -> None:
    pacer = Pacer(RATE_HZ, lead_ms=40)
    pacer.push(flat(600))
    _, now_s = sent_until(pacer, 0.0, 0.2)
    pacer.duck()
    if ducks_before:
        now_s = pacer.play_end_s
        assert pacer.next_chunk(now_s) is not None
    fade = pacer.pause()
    assert fade is not None and len(fade.samples) == 120
    assert np.abs(fade.samples[40:]).max() <= FLAT * DUCK_GAIN  # within the ramp of a duck
    pacer.resume()
    chunks, _ = sent_until(pacer, now_s, now_s + 0.2)
    assert chunks[-1].samples[-1] == FLAT


def test_after_a_stop_comes_one_fade_and_then_nothing_ever() -> None:
    pacer = Pacer(RATE_HZ)
    pacer.push(flat(1000))
    sent_until(pacer, 0.0, 0.3)
    fade = pacer.stop()
    assert fade is not None and fade.duration_ms == pytest.approx(15)
    assert (np.diff(fade.samples) <= 0).all() and fade.samples[-1] < 20
    pacer.push(flat(500))
    pacer.resume()
    assert pacer.next_chunk(9.0) is None and pacer.stop() is None and pacer.is_drained


def test_a_word_is_reported_with_the_chunk_in_which_it_begins() -> None:
    pacer = Pacer(RATE_HZ, lead_ms=1000)
    words = (SpokenWord("one", 0, 50, 3), SpokenWord("two", 70, 100, 7))
    pacer.push(flat(100), words)
    pacer.finish()
    chunks, _ = sent_until(pacer, 0.0, 0.1)
    found = [[word.text for word in chunk.words] for chunk in chunks]
    assert found == [["one"], [], ["two"], []]  # 40 ms, then 20 each


def test_nothing_leaves_beyond_the_limit_whether_paused_faded_or_resumed() -> None:
    pacer = Pacer(RATE_HZ)
    pacer.push(ramp(400))
    pacer.finish()
    pacer.send_until(0.0)
    pacer.resume()
    assert sent_until(pacer, 0.0, 1.0)[0] == [] and not pacer.is_drained
    pacer.send_until(110.0)
    sent_until(pacer, 1.0, 2.0)
    assert pacer.sent_ms == 110.0 and pacer.remaining_ms(2.0) is None
    assert pacer.pause() is None  # nothing that may leave is there to fade
    pacer.send_until(None)
    assert sent_until(pacer, 2.0, 3.0)[0] == []  # paused for a sound all the same
    pacer.resume()
    sent_until(pacer, 3.0, 4.0)
    assert pacer.sent_ms == 400.0 and pacer.is_drained


def test_a_client_that_threw_away_what_it_had_is_sent_that_again_to_the_sample() -> None:
    pacer = Pacer(RATE_HZ, lead_ms=60)
    whole = ramp(600)
    pacer.push(whole)
    pacer.finish()
    _, now_s = sent_until(pacer, 0.0, 0.2)
    pacer.duck()
    pacer.pause()
    sent_ms = pacer.sent_ms
    pacer.rewind(150.0, now_s)  # it had played so much
    assert pacer.sent_ms == pacer.heard_ms(now_s) == 150.0 < sent_ms
    assert pacer.remaining_ms(now_s) == 450.0
    pacer.resume()
    again = np.concatenate([chunk.samples for chunk in sent_until(pacer, now_s, now_s + 1.0)[0]])
    assert np.array_equal(again[40:], whole[1240:])  # at full loudness, but for the fade-in
    assert pacer.is_drained


def test_more_is_not_sent_again_than_is_kept_or_was_sent() -> None:
    pacer = Pacer(RATE_HZ)
    pacer.push(ramp(3000))
    _, now_s = sent_until(pacer, 0.0, 2.9)
    sent_ms = pacer.sent_ms
    pacer.rewind(sent_ms + 50.0, now_s)
    assert pacer.sent_ms == sent_ms
    pacer.rewind(0.0, now_s)
    assert KEPT_MS <= sent_ms - pacer.sent_ms <= KEPT_MS + CHUNK_MS


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("push duck pause resume wait".split()),
                          st.integers(1, 120)), max_size=40))  # fmt: skip
def test_heard_never_exceeds_sent_nor_goes_back(acts: list[tuple[str, int]]) -> None:
    pacer = Pacer(RATE_HZ)
    now_s, heard_ms, total = 5.0, 0.0, 0
    for act, n in acts:
        match act:
            case "push":
                pacer.push(flat(n))
                total += len(flat(n))
            case "duck":
                pacer.duck()
            case "pause":
                pacer.pause()
            case "resume":
                pacer.resume()
            case "wait":
                now_s += n / 1000
        while pacer.next_chunk(now_s) is not None:
            pass
        assert heard_ms - 1e-9 <= pacer.heard_ms(now_s) <= pacer.sent_ms + 1e-9
        heard_ms = pacer.heard_ms(now_s)
    assert pacer.sent_ms <= 1000 * total / RATE_HZ


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("push duck pause resume wait back".split()),
                          st.integers(1, 120)), max_size=40))  # fmt: skip
def test_whatever_was_thrown_away_each_sample_is_heard_once_and_in_order(
    acts: list[tuple[str, int]],
) -> None:
    """A client that throws away all it has not played, and says so, hears every sample once."""
    pacer = Pacer(RATE_HZ)
    now_s, n_pushed = 5.0, 0
    for act, n in acts:
        match act:
            case "push":
                pushed = np.arange(n_pushed, n_pushed + n * 8).astype(np.int16)
                pacer.push(pushed)
                n_pushed += len(pushed)
            case "duck":
                pacer.duck()
            case "pause":
                pacer.pause()
            case "resume":
                pacer.resume()
            case "back":
                heard_ms = pacer.heard_ms(now_s)
                pacer.pause()
                pacer.rewind(heard_ms, now_s)
                assert pacer.sent_ms == pytest.approx(heard_ms, abs=1000 / RATE_HZ)
            case "wait":
                now_s += n / 1000
        position = round(pacer.sent_ms * 8)
        while (chunk := pacer.next_chunk(now_s)) is not None:
            assert round(pacer.sent_ms * 8) == position + len(chunk.samples)
            position += len(chunk.samples)
        assert position + round(pacer.buffered_ms * 8) == n_pushed  # nothing is lost or doubled
    position = round(pacer.sent_ms * 8)
    pacer.resume()
    pacer.finish()
    chunks, _ = sent_until(pacer, now_s, now_s + n_pushed / RATE_HZ + 0.2)
    rest = np.concatenate([chunk.samples for chunk in chunks] or [np.zeros(0, np.int16)])
    n_fade = 40 + 40  # to full loudness and in
    assert np.array_equal(rest[n_fade:], np.arange(position, n_pushed).astype(np.int16)[n_fade:])


@pytest.mark.virtual_time
async def test_a_full_playout_makes_the_voice_wait(clock: Callable[[], float]) -> None:
    playout = Playout(lambda chunk: None, clock, RATE_HZ)
    start_s = clock()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(playout.run())
        for _ in range(30):
            await playout.take(flat(1000))
        waited_s = clock() - start_s
        playout.finish()
    assert 8 <= waited_s <= 11  # 30 s of audio, 20 s of them fit
    assert 29.5 <= clock() - start_s <= 30


@pytest.mark.virtual_time
async def test_stopping_ends_the_run_at_once(clock: Callable[[], float]) -> None:
    emitted: list[Chunk] = []
    playout = Playout(emitted.append, clock, RATE_HZ)
    await playout.take(flat(5000))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(playout.run())
        await asyncio.sleep(0.5)
        playout.stop()
        count = len(emitted)
        await running
    assert len(emitted) == count
    assert playout.heard_ms(clock()) == pytest.approx(500, abs=20)


@pytest.mark.virtual_time
async def test_a_chunk_that_falls_due_while_it_is_asked_for_is_not_waited_for_without_end(
    clock: Callable[[], float],
) -> None:
    n_asked = 0

    def creeping() -> float:  # a busy machine: time goes on between any two questions
        nonlocal n_asked
        n_asked += 1
        return clock() + 0.0006 * CHUNK_MS * n_asked

    playout = Playout(lambda chunk: None, creeping, RATE_HZ)
    await playout.take(flat(2000))
    playout.finish()
    async with asyncio.timeout(10):
        await playout.run()
    assert playout.sent_ms == 2000
