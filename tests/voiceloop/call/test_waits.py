"""Who asks the agent to wait, or speaks to somebody else, is left alone until they speak again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, instant_backends
from tests.tables import each_row
from voiceloop.agent import AgentConfig, BargeIn
from voiceloop.call.addressed import asks_to_wait, is_aside, offers_to_wait
from voiceloop.call.barge_in import BargeInJudge
from voiceloop.call.turn_taking import ASKS_BACK_MS

Clock = Callable[[], float]
HOLD_WORDS = BargeIn().hold_words
BACK = "Are you still there?"


@each_row(
    "said",
    [
        "hold on",
        "oh wait hang on",
        "could you hold on for a second please",
        "one moment please",
        "one moment honey",
        "hold on i need to find my card",
        "let me check",
        "give me one second",
        "sure one moment",
        "hold on while i get my card please",
        "wait a second i'll ask my wife",
        "let me check my calendar",
    ],
)
def test_a_request_to_wait_is_known_by_its_words(said: str) -> None:
    assert asks_to_wait(said.split(), HOLD_WORDS)


@each_row(
    "said",
    [
        "wait what",
        "hold on what about gluten",
        "let me see pizza please",
        "wait for the check",
        "hold on can i get a large instead",
        "wait i think it's tuesday",
        "wait i want to check my balance",
        "hold on i didn't ask for that",
        "let me see i'll get the soup",
        "",
    ],
)
def test_who_says_more_than_that_is_answered(said: str) -> None:
    assert not asks_to_wait(said.split(), HOLD_WORDS)
    assert not asks_to_wait(said.split(), ())


@each_row(
    ("said", "over_agent", "in_silence"),
    [
        ("not now i'm on the phone", True, True),
        ("i will be right there", True, True),
        ("ask your mother", True, True),
        ("ask your mother if she wants fries", True, True),
        ("i'm on the phone with the bank", True, True),
        ("i'll be right there in a minute honey", True, True),
        ("i'll be right there what's the address", False, False),
        ("i'm on the phone with my bank about a letter", False, False),
        ("no the other one darling", True, False),
        ("not now", True, False),  # "Would you like to hear our specials?"
        ("can i order on the phone", False, False),
        ("leave it at the door", False, False),
        ("mom i'm talking to somebody", True, True),
        ("honey come here", True, False),
        ("mom i'm coming", True, False),
        ("mom is ill", False, False),
        ("the appointment is for my dad", False, False),
        ("dad needs an appointment", False, False),
        ("no extra honey", False, False),
        ("can i come here tomorrow", False, False),
        ("kids", False, False),  # "For adults, or for kids?"
        ("tell her i called", False, False),
        ("", False, False),
    ],
)
def test_an_aside_is_known_by_its_words(said: str, over_agent: bool, in_silence: bool) -> None:
    assert is_aside(said.split(), over_agent=True) == over_agent
    assert is_aside(said.split(), over_agent=False) == in_silence


@pytest.mark.parametrize(
    ("said", "while_it_sounds", "when_over"),
    [
        ("one moment", None, "stop"),
        ("one moment please", None, "stop"),
        ("one moment honey", None, "resume"),
        ("not now honey", None, "resume"),
        ("hold on", "stop", None),
        ("one moment i want tea", "stop", None),
    ],
)
def test_an_aside_over_the_agent_gives_the_floor_back(
    said: str, while_it_sounds: str | None, when_over: str | None
) -> None:
    judge = BargeInJudge(BargeIn())
    for ms in range(32, 700, 32):
        judge.judge(ms, 0, reply_ends_soon=False)
    judge.observe_words(said.split())
    assert judge.judge(700, 0, reply_ends_soon=False) == while_it_sounds
    if when_over is not None:
        assert judge.judge(700, 250, reply_ends_soon=False) == when_over


@pytest.mark.parametrize(
    ("language", "said", "waits", "gives_back"),
    [
        ("de", "einen moment bitte", True, False),
        ("de-AT", "warten sie kurz", True, False),
        ("de", "einen moment haben sie auch tee", False, False),
        ("de", "ich bin gerade am telefon schatz", True, True),
        ("de", "jetzt nicht mama", False, True),
        ("de", "das ist für meine mama", False, False),
        ("es", "un momento por favor", True, False),
        ("es", "estoy al teléfono cariño", True, True),
        ("es", "quiero dos cafés para mi mamá", False, False),
        ("fr", "ne quittez pas", True, False),
        ("fr", "j'arrive maman", True, True),
        ("fr", "j'arrive pas à payer", False, False),
        ("it", "un momento", False, False),  # nobody knows its words
        ("", "i'm on the phone", True, True),
    ],
)
def test_hold_words_and_asides_are_known_in_three_languages_more(
    language: str, said: str, waits: bool, gives_back: bool
) -> None:
    judge = BargeInJudge(BargeIn(), language=language)
    assert judge.asks_to_wait(said.split()) == waits
    judge.observe_words(said.split())
    assert judge.takes_floor(700, is_over=True) != gives_back


def test_a_files_own_words_are_all_there_are() -> None:
    judge = BargeInJudge(BargeIn(hold_words=("Einen Moment",)), language="de")
    assert not judge.asks_to_wait(["Warte"])


def test_english_asides_are_none_in_another_language() -> None:
    judge = BargeInJudge(BargeIn(), language="de")
    for ms in range(32, 700, 32):
        judge.judge(ms, 0, reply_ends_soon=False)
    judge.observe_words("milch und brei für mein baby".split())
    assert judge.judge(700, 250, reply_ends_soon=False) == "stop"


def test_a_file_writes_its_words_as_its_language_does() -> None:
    options = BargeIn(
        hold_words=("Einen Moment, bitte",), stop_words=("Halt!",), backchannels=("Ja", "M-hm")
    )
    judge = BargeInJudge(options, language="de")
    assert judge.asks_to_wait(["Einen", "Moment,", "bitte."])
    judge.observe_words(["Ja", "m-hm"])
    assert not judge.takes_floor(700)
    judge.observe_words(["halt", "bitte"])
    assert judge.takes_floor(100)


def caller(clock: Clock, *words: str, agent: AgentConfig | None = None) -> Caller:
    backends = instant_backends(
        recognizer=FakeRecognizer(list(words), ms_per_word=200),
        language_model=FakeLanguageModel(["Two lattes.", "Anything else?"]),
    )
    return Caller(clock, backends, agent)


@pytest.mark.virtual_time
async def test_who_asked_to_wait_is_not_answered_and_asked_back_once(clock: Clock) -> None:
    async with caller(clock, "hold on a second") as line:
        await line.say(900)
        await line.listen_until("input_audio_buffer.committed")
        await line.wait_quietly(ASKS_BACK_MS - 1000)
        assert not line.of("response.created")
        await line.listen_until("response.done", limit_ms=ASKS_BACK_MS)
        assert line.transcript() == BACK
        await line.wait_quietly(3 * ASKS_BACK_MS)
    assert len(line.of("response.created")) == 1


@pytest.mark.parametrize(
    ("asked", "offers"),
    [
        ("All are busy. Would you like to wait?", True),
        ("Can you hold on for a moment?", True),
        ("Shall I put you on hold, or call you back?", True),
        ("Would you like me to wait?", False),
        ("Shall I wait?", False),
        ("Please wait. What is your name?", False),
        ("You have to wait for ten minutes.", False),
    ],
)
def test_a_question_whether_they_wait_is_known(asked: str, offers: bool) -> None:
    assert offers_to_wait(asked, HOLD_WORDS) is offers


@pytest.mark.virtual_time
async def test_who_is_asked_whether_they_wait_is_answered(clock: Clock) -> None:
    backends = instant_backends(
        recognizer=FakeRecognizer(["a person please", "wait please"], ms_per_word=200),
        language_model=FakeLanguageModel(["Would you like to wait?", "I will ask them."]),
    )
    async with Caller(clock, backends) as line:
        for count in (1, 2):
            await line.say(900)
            await line.listen_until("response.done", count=count)
            await line.wait_quietly(3000)
    assert line.transcript().endswith("I will ask them.")


@pytest.mark.virtual_time
async def test_who_speaks_again_is_answered_and_not_asked_back(clock: Clock) -> None:
    async with caller(clock, "i'm on the phone", "two lattes please") as line:
        await line.say(900)
        await line.wait_quietly(5000)
        assert not line.of("response.created")
        await line.say(900)
        await line.listen_until("response.done")
        await line.wait_quietly(2 * ASKS_BACK_MS)
    assert line.transcript() == "Two lattes."
    assert line.services.metrics.registry.get_sample_value("voiceloop_waits_total") == 1


@pytest.mark.virtual_time
async def test_without_hold_words_every_turn_is_answered(clock: Clock) -> None:
    agent = AgentConfig(barge_in=BargeIn(hold_words=()))
    async with caller(clock, "hold on", agent=agent) as line:
        await line.say(600)
        await line.listen_until("response.done")
    assert line.transcript() == "Two lattes."
