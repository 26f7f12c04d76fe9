"""No order of events leaves a pure state machine in a state without an exit."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tables import each_row
from voiceloop.agent import BargeIn
from voiceloop.backends import SpokenWord
from voiceloop.call.barge_in import BargeInJudge
from voiceloop.listening.endpointing import Continue, End, Endpointing
from voiceloop.listening.release import PATIENCE
from voiceloop.realtime.conversation import Conversation, SpokenReplies
from voiceloop.realtime.items import Message
from voiceloop.realtime.settings import SemanticVad, ServerVad
from voiceloop.reply.playout import Pacer

RATE_HZ = 8000
WORDS = ("yes", "uh", "and", "four", "latte", "stop", "mhm", "the")

hearings = st.lists(
    st.one_of(
        st.tuples(st.just("speech"), st.integers(1, 2000)),
        st.tuples(st.just("silence"), st.integers(1, 3000)),
        st.tuples(st.just("words"), st.lists(st.sampled_from(WORDS), max_size=5)),
        st.tuples(st.just("p_end"), st.sampled_from([None, 0.0, 0.02, 0.5, 1.0])),
        st.tuples(st.just("reply"), st.sampled_from(["Anything else?", "Which number?", "Ok."])),
    ),
    max_size=30,
)


@settings(max_examples=80)
@given(hearings, st.sampled_from(["auto", "low", "medium", "high", "server_vad"]))
def test_silence_ends_every_turn_within_the_longest_wait(hearing: list, kind: str) -> None:
    detection = ServerVad() if kind == "server_vad" else SemanticVad(eagerness=kind)
    longest_ms = 500.0 if kind == "server_vad" else PATIENCE[kind].longest_ms
    endpointing, now_ms = Endpointing(detection), 0.0
    for act, value in hearing:
        match act:
            case "speech":
                endpointing.observe_speech(now_ms)
                now_ms += value
            case "silence":
                endpointing.observe_silence(now_ms, None)
                now_ms += value
            case "words":
                endpointing.observe_words(tuple(value), full=len(value) % 2 == 0)
            case "p_end":
                endpointing.observe_p_end(value)
            case "reply":
                endpointing.observe_replies(value)
        assert isinstance(endpointing.decide(now_ms), End | Continue)
    endpointing.observe_speech(now_ms)
    assert endpointing.decide(now_ms + 60_000) == Continue(None)  # nobody is cut off in mid-word
    endpointing.observe_silence(now_ms, None)
    assert isinstance(endpointing.decide(now_ms + longest_ms), End)


sounds = st.lists(
    st.tuples(
        st.integers(0, 2500),
        st.sampled_from([0, 0, 60, 240]),
        st.lists(st.sampled_from(WORDS), max_size=4),
        st.booleans(),
        st.sampled_from([0.5, 0.9]),
    ),
    max_size=25,
)


@settings(max_examples=80)
@given(sounds, st.sampled_from([BargeIn(), BargeIn(least_words=3)]))
def test_a_sound_over_the_agent_ends_in_its_stop_or_in_its_going_on(
    heard: list, options: BargeIn
) -> None:
    judge, pacer = BargeInJudge(options), Pacer(RATE_HZ)
    judge.observe_agent("the latte is four dollars")
    pacer.push(np.ones(RATE_HZ, np.int16))
    pacer.finish()
    for speech_ms, silence_ms, words, soon, voice in heard:
        judge.observe_words(words)
        match judge.judge(speech_ms, silence_ms, reply_ends_soon=soon, voice=voice):
            case "duck":
                pacer.duck()
            case "hold":
                pacer.pause()
            case "resume":
                pacer.resume()
            case "stop":
                pacer.stop()
        if judge.state == "stopped":
            assert pacer.is_drained
            return
    if judge.judge(100, 1000, reply_ends_soon=False) in ("resume", None):
        pacer.resume()
        now_s = 10.0
        while not pacer.is_drained:  # the rest of it leaves, in its own time
            assert now_s < 13
            now_s += 0.02
            pacer.next_chunk(now_s)
    else:
        assert judge.state == "stopped"


@each_row("seed", range(200))
def test_the_history_of_a_reply_cut_short_is_what_was_heard_to_a_word(seed: int) -> None:
    random = np.random.default_rng(seed)
    texts = [f"word{i}" for i in range(30)]
    conversation, pacer = Conversation(), Pacer(RATE_HZ)
    spoken = SpokenReplies(conversation)
    conversation.insert(Message(id="a", role="assistant", status="in_progress"))
    spoken.append_text("a", " ".join(texts))
    end_ms, n_chars, words = 0.0, 0, []
    for text in texts:
        start_ms, end_ms = end_ms, end_ms + float(random.integers(120, 600))
        n_chars += len(text) + (1 if words else 0)
        words.append(SpokenWord(text, start_ms, end_ms, n_chars))
    pacer.push(np.ones(int(end_ms * RATE_HZ / 1000), np.int16), tuple(words))
    now_s, cut_s = 5.0, 5.0 + random.uniform(0.05, end_ms / 1000.0)
    while now_s < cut_s:
        while (chunk := pacer.next_chunk(now_s)) is not None:
            spoken.add_words("a", chunk.words)
        now_s = min(cut_s, now_s + random.uniform(0.001, 0.03))
    kept = spoken.cut("a", pacer.heard_ms(cut_s)).split()
    # A client that plays what comes as it comes has played this much of it by then.
    n_heard = sum(word.end_ms <= 1000 * (cut_s - 5.0) for word in words)
    assert abs(len(kept) - n_heard) <= 1
