"""Which sounds over the agent take the floor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voiceloop.agent import BargeIn
from voiceloop.call.barge_in import BargeInJudge

MISHEARING = BargeIn(least_words=3)


def judge_speech(judge: BargeInJudge, until_ms: int, soon: bool = False) -> list[str]:
    found = []
    for ms in range(32, until_ms + 1, 32):
        if (action := judge.judge(ms, 0, reply_ends_soon=soon)) is not None:
            found.append(action)
    return found


def test_speech_that_goes_on_ducks_holds_and_stops() -> None:
    judge = BargeInJudge(BargeIn())
    assert judge_speech(judge, 960) == ["duck", "hold"]  # silent, and undecided
    assert judge.judge(1008, 0, reply_ends_soon=False) == "stop"


@pytest.mark.parametrize(
    ("led_in_ms", "expected"),
    [
        (0.0, [(64, "duck"), (128, "hold")]),
        (40.0, [(64, "duck"), (96, "hold")]),
        (70.0, [(64, "hold")]),
    ],
)
def test_sound_that_led_into_the_voice_hastens_duck_and_hold_and_nothing_else(
    led_in_ms: float, expected: list[tuple[int, str]]
) -> None:
    judge = BargeInJudge(BargeIn())
    found = []
    for ms in range(64, 1056, 32):  # speech begins with two windows
        action = judge.judge(ms, 0, reply_ends_soon=False, led_in_ms=led_in_ms)
        if action is not None:
            found.append((ms, action))
    assert found == [*expected, (1024, "stop")]


def test_a_sound_that_is_over_is_not_held_for_what_led_into_it() -> None:
    judge = BargeInJudge(BargeIn())
    assert judge.judge(64, 32, reply_ends_soon=False, led_in_ms=200.0) is None


def test_a_word_stops_at_once() -> None:
    judge = BargeInJudge(BargeIn())
    judge_speech(judge, 96)
    judge.observe_words(("wait",))
    assert judge.judge(100, 0, reply_ends_soon=False) == "stop"
    assert judge.judge(200, 0, reply_ends_soon=False) is None


@pytest.mark.parametrize("said", ["yeah", "Mm-hmm", "uh huh", "uh", "okay yeah", "I see"])
def test_a_backchannel_gives_the_floor_back(said: str) -> None:
    judge = BargeInJudge(BargeIn())
    judge.observe_words(tuple(said.split()))
    assert judge_speech(judge, 500) == ["duck", "hold"]
    assert judge.judge(500, 250, reply_ends_soon=False) == "resume"


@pytest.mark.parametrize("said", ["no", "yeah but", "right now", "not yet"])
def test_more_than_a_backchannel_is_none(said: str) -> None:
    judge = BargeInJudge(BargeIn())
    judge.observe_words(tuple(said.split()))
    assert "stop" in judge_speech(judge, 100)


def test_a_backchannel_at_the_very_end_is_an_answer() -> None:
    judge = BargeInJudge(BargeIn())
    judge.observe_words(("yeah",))
    assert judge_speech(judge, 64, soon=True) == ["stop"]


def test_a_click_resumes_without_a_hold() -> None:
    judge = BargeInJudge(BargeIn())
    assert judge_speech(judge, 96) == ["duck"]
    assert judge.judge(96, 224, reply_ends_soon=False) == "resume"
    assert judge.state == "idle"


def test_switched_off_it_never_acts() -> None:
    assert judge_speech(BargeInJudge(BargeIn(speakers="nobody")), 2000) == []


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2000), st.integers(0, 400), st.sampled_from(["", "yeah", "no", "uh"])
        ),
        max_size=30,
    ),
    st.integers(0, 300),
)
def test_every_state_is_left_by_speech_or_by_silence(
    steps: list[tuple[int, int, str]], led_in_ms: int
) -> None:
    judge = BargeInJudge(BargeIn())
    for speech_ms, silence_ms, words in steps:
        judge.observe_words(tuple(words.split()))
        judge.judge(speech_ms, silence_ms, reply_ends_soon=False, led_in_ms=led_in_ms)
    before = judge.state
    if before == "stopped":
        return
    action = judge.judge(100, 1000, reply_ends_soon=False)
    assert judge.state in ("idle", "stopped")
    assert (action is None) == (before == "idle" and judge.state == "idle")


@pytest.mark.parametrize("heard", ["them", "have a", "by she", "m m h m m", "okay book"])
def test_a_hum_misheard_as_a_word_or_two_does_not_stop_where_three_are_wanted(heard: str) -> None:
    judge = BargeInJudge(MISHEARING)
    judge.observe_words(heard.split())
    assert judge_speech(judge, 800) == ["duck", "hold"]
    assert judge.judge(800, 224, reply_ends_soon=False) == "resume"


@pytest.mark.parametrize("heard", ["stop please", "wait", "hold on", "how much is that"])
def test_a_plain_request_for_the_floor_stops(heard: str) -> None:
    judge = BargeInJudge(MISHEARING)
    judge.observe_words(heard.split())
    assert judge_speech(judge, 480)[-1] == "stop"


def judge_doubtful(judge: BargeInJudge, until_ms: int) -> list[tuple[int, str]]:
    found = []
    for ms in range(32, until_ms + 1, 32):
        if (action := judge.judge(ms, 0, reply_ends_soon=False, voice=0.6)) is not None:
            found.append((ms, action))
    return found


def test_a_long_sound_that_is_hardly_a_voice_is_talked_over_after_two_seconds() -> None:
    judge = BargeInJudge(BargeIn())
    assert judge_doubtful(judge, 8000) == [(64, "duck"), (128, "hold"), (2016, "go_on")]
    assert judge.judge(8000, 224, reply_ends_soon=False, voice=0.6) == "resume"
    assert judge_doubtful(judge, 200) == [(64, "duck"), (128, "hold")]  # the next is a new one


@pytest.mark.parametrize("heard", ["stop", "a plain voice"])
def test_a_sound_that_is_talked_over_still_takes_the_floor_by_what_it_turns_out_to_be(
    heard: str,
) -> None:
    judge = BargeInJudge(BargeIn())
    judge_doubtful(judge, 3000)
    judge.observe_words(heard.split() if heard == "stop" else ())
    voice = 0.6 if heard == "stop" else 0.9
    assert judge.judge(3100, 0, reply_ends_soon=False, voice=voice) == "stop"


def test_words_of_a_doubtful_voice_stop_within_two_seconds() -> None:
    judge = BargeInJudge(MISHEARING)
    judge.observe_words(["latte"])
    assert judge_doubtful(judge, 4000)[-1] == (2016, "stop")


kinds_of_sound = st.tuples(
    st.sampled_from(["", "yeah", "no", "uh", "m h m", "the latte", "two lattes please"]),
    st.sampled_from([0.5, 0.79, 0.8, 1.0]),
)


@given(
    st.lists(st.tuples(st.integers(1, 100), kinds_of_sound), min_size=1, max_size=3),
    st.sampled_from([BargeIn(), MISHEARING]),
)
def test_no_sound_keeps_a_held_agent_silent_for_longer_than_two_seconds(
    parts: list[tuple[int, tuple[str, float]]], options: BargeIn
) -> None:
    judge = BargeInJudge(options)
    judge.observe_agent("the latte is four fifty")
    speech_ms, held_from_ms = 0, None
    for n_windows, (words, voice) in parts:
        judge.observe_words(words.split())
        for _ in range(n_windows):
            speech_ms += 32
            judge.judge(speech_ms, 0, reply_ends_soon=False, voice=voice)
            if judge.state != "held":
                held_from_ms = None
            elif held_from_ms is None:
                held_from_ms = speech_ms
            assert held_from_ms is None or speech_ms - held_from_ms <= 2000


def test_the_agents_own_words_are_its_echo_and_the_next_echo_is_not_even_a_hold() -> None:
    judge = BargeInJudge(BargeIn())
    judge.observe_agent("The latte is four fifty. Anything else?")
    assert judge_speech(judge, 160) == ["duck", "hold"]
    judge.observe_words(["latte", "is", "for", "fifty"])
    assert judge.judge(1500, 0, reply_ends_soon=False) is None
    assert judge.judge(1500, 250, reply_ends_soon=False) == "resume"
    assert judge_speech(judge, 400) == []
    judge.observe_words(["no", "wait"])
    assert judge.judge(400, 0, reply_ends_soon=False) == "stop"


def test_a_long_hum_that_is_heard_as_letters_is_given_more_time() -> None:
    judge = BargeInJudge(MISHEARING)
    judge.observe_words("im im h m".split())
    assert judge_speech(judge, 1200) == ["duck", "hold"]
    assert judge.judge(1650, 0, reply_ends_soon=False) == "stop"


def judged(for_agent: float | None, *words: str) -> list[tuple[int, str]]:
    """What is done about a plain voice of 1.5 s whose words are known from the beginning on."""
    judge = BargeInJudge(BargeIn())
    judge.observe_words(words)
    judge.observe_sound(for_agent)
    found = []
    for ms in range(32, 2000, 32):
        action = judge.judge(min(ms, 1504), max(0.0, ms - 1504.0), reply_ends_soon=False)
        if action is not None:
            found.append((ms, action))
        if action in ("stop", "resume"):
            break
    return found


def test_words_of_a_sound_that_may_be_a_bystanders_wait_for_as_long_as_a_voice() -> None:
    assert judged(None, "two", "lattes") == [(32, "stop")]
    assert judged(0.5, "two", "lattes") == [(32, "stop")]
    assert judged(-1.0, "two", "lattes") == [(64, "duck"), (128, "hold"), (1024, "stop")]


@pytest.mark.parametrize("for_agent", [-1.0, -9.0])
def test_a_callers_words_count_when_the_sound_is_over_whatever_it_sounded_like(
    for_agent: float,
) -> None:
    judge = BargeInJudge(BargeIn())
    judge_speech(judge, 400)
    judge.observe_words(("lattes",))
    judge.observe_sound(for_agent)
    assert judge.judge(400, 100, reply_ends_soon=False) is None
    assert judge.judge(400, 250, reply_ends_soon=False) == "stop"


@pytest.mark.parametrize("for_agent", [-1.0, -9.0])
def test_a_callers_words_count_where_the_end_comes_before_that_is_judged(for_agent: float) -> None:
    judge = BargeInJudge(BargeIn())
    judge_speech(judge, 400)
    judge.observe_sound(for_agent)
    assert judge.takes_floor_late(("lattes",), 400, reply_ends_soon=False, voice=0.9)


@pytest.mark.parametrize("for_agent", [-1.0, -9.0])
def test_a_caller_who_goes_on_is_let_in_after_two_seconds_at_the_latest(for_agent: float) -> None:
    judge = BargeInJudge(BargeIn())
    judge.observe_words(("two", "lattes"))
    judge.observe_sound(for_agent)
    assert judge_speech(judge, 2100)[-1] == "stop"


def test_a_voice_plainly_not_for_the_agent_is_talked_over_and_its_words_still_count() -> None:
    assert judged(-5.0)[-1] == (1728, "resume")
    judge = BargeInJudge(BargeIn())
    judge.observe_sound(-5.0)
    assert judge_speech(judge, 2400) == ["duck", "hold", "go_on"]
    judge.observe_words(("fire",))
    assert judge.judge(2432, 0, reply_ends_soon=False) == "stop"


def test_a_stop_word_counts_whatever_it_sounds_like() -> None:
    assert judged(-5.0, "stop") == [(32, "stop")]


def test_what_is_plainly_a_caller_takes_the_floor_sooner() -> None:
    later_ms, sooner_ms = judged(0.5)[-1][0], judged(3.0)[-1][0]
    assert (later_ms, sooner_ms) == (1024, 608)
    assert judged(3.0, "mm", "hmm")[-1][1] == "resume"  # but not for what a listener says


def test_what_one_sound_was_like_says_nothing_of_the_next() -> None:
    judge = BargeInJudge(BargeIn())
    judge.observe_sound(-5.0)
    judge_speech(judge, 200)
    assert judge.judge(200, 250, reply_ends_soon=False) == "resume"
    judge.observe_words(("lattes",))
    assert judge.judge(64, 0, reply_ends_soon=False) == "stop"


# --- a sound that is too soft for this caller ---


def soft(by_level: float, for_agent: float | None, *words: str) -> BargeInJudge:
    judge = BargeInJudge(BargeIn())
    judge.observe_words(words)
    judge.observe_sound(for_agent)
    judge.observe_level(by_level)
    return judge


@pytest.mark.parametrize(
    ("by_level", "for_agent", "counts"),
    [
        (-4.0, None, False),
        (-1.5, -2.5, False),
        (-4.0, 1.0, False),  # until the second try
        (-4.0, 2.6, True),  # plainly for the agent, however far the caller has gone
        (-2.0, 1.0, True),
        (-3.0, None, True),
        (-0.9, -4.0, True),  # the sound of it alone keeps nobody out
    ],
)
def test_words_of_somebody_elsewhere_never_count(
    by_level: float, for_agent: float | None, counts: bool
) -> None:
    judge = soft(by_level, for_agent, "two", "lattes")
    said = judge_speech(judge, 2500)
    assert ("stop" in said) == counts
    assert judge.takes_floor_late(("two", "lattes"), 2500, reply_ends_soon=True, voice=1.0) == (
        counts
    )


def test_over_somebody_elsewhere_the_agent_talks_on_after_half_a_second() -> None:
    assert judge_speech(soft(-4.0, None), 2500) == ["duck", "hold", "go_on"]


def test_a_word_that_asks_for_the_floor_counts_however_soft() -> None:
    assert judge_speech(soft(-4.0, -3.0, "stop"), 64) == ["stop"]


def test_a_voice_elsewhere_does_not_take_back_an_answer() -> None:
    judge = soft(-4.0, None)
    judge_speech(judge, 200)
    assert not judge.is_paused_by_voice(200)
