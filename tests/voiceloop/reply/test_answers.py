"""What is said without the model: which file answers, and in which order they are asked."""

from __future__ import annotations

from pathlib import Path

from tests.answers import heard
from voiceloop.agent import AgentConfig, Crisis
from voiceloop.knowledge.answers import ApprovedAnswer
from voiceloop.reply import answerers
from voiceloop.reply.answers import answer, crisis, slots
from voiceloop.slots.form import Form

AGENT = AgentConfig(
    "Be brief.",
    crisis=Crisis(("gas leak",), "Leave the building."),
    answer=(ApprovedAnswer(("do you deliver",), "We do."),),
)


def test_words_of_danger_count_in_a_piece_of_the_turn_too() -> None:
    turn = heard("there is a gas leak", AGENT, "there is a gas", "leak")
    assert crisis.answer(turn) == "Leave the building."
    assert crisis.answer(heard("the gas", AGENT, "gas leak")) == "Leave the building."
    assert crisis.answer(heard("a leak of gas", AGENT)) is None


def test_a_value_is_said_back_and_an_approved_question_answered() -> None:
    assert slots.answer(heard("four two", AGENT, form=Form(line="Four two?"))) == "Four two?"
    assert slots.answer(heard("four two", AGENT)) is None
    assert answer.answer(heard("Do you deliver?", AGENT)) == "We do."
    assert answer.answer(heard("Do you deliver today?", AGENT)) is None


def test_each_file_of_the_folder_is_asked_and_danger_first() -> None:
    folder = Path(answerers.answers.__path__[0])
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert set(answerers.answerers()) == files
    assert tuple(answerers.answerers())[: len(answerers.FIRST)] == answerers.FIRST
