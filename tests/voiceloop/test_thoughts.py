"""A model's thoughts never reach the caller, however they are marked and cut into pieces."""

from __future__ import annotations

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tables import each_row
from voiceloop.thoughts import CHANNEL, MARKS, MESSAGE, PAIRS, START, Thoughts

SECRET = "zxq"  # stands in every thought, and in nothing else
MARKED = [
    ("<think>zxq zxq</think>A latte.", "A latte."),
    ("<THINK>\nzxq\n</Think>\n\nA latte.", "A latte."),
    ("<think>zxq</think>\n\nA latte.\n<think>zxq</think>\nA tea.", "A latte.\n\nA tea."),
    ("Sure. <thinking>zxq</thinking>A latte.", "Sure. A latte."),
    ("[THINK]zxq[/THINK]A latte.", "A latte."),
    ("<think>zxq <think>zxq</think> zxq</think>A latte.", "A latte."),
    ("<think>zxq [THINK] zxq</think>A latte.", "A latte."),
    ("<think>zxq and it never ends", ""),
    ("<|channel|>analysis<|message|>zxq<|end|><|start|>assistant<|channel|>final<|message|>A latte."
     "<|return|>", "A latte."),
    ("<|channel|>commentary to=functions.order<|message|>{\"zxq\": 1}<|call|>", ""),
    ("analysisThe zxq wants coffee.assistantfinalA latte.", "A latte."),
    ("◁think▷zxq◁/think▷A latte.", "A latte."),
    ("<seed:think>zxq</seed:think>A latte.", "A latte."),
]  # fmt: skip
PLAIN = [
    "A latte costs four dollars.",
    "I think so. <3 and a < b, [sic], <b>bold</b>.",
    "Analysis shows that it is so.",
    "analysis of your order: one latte",
    "İstanbul <thin",
    "",
]


def passed(text: str, sizes: list[int], *, begins_inside: bool = False) -> tuple[str, Thoughts]:
    """What is passed on of a text that is fed in pieces of these sizes, again and again."""
    thoughts, out, at, turn = Thoughts(begins_inside=begins_inside), "", 0, 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        out += thoughts.feed(text[at : at + size])
        at, turn = at + size, turn + 1
    return out + thoughts.finish(), thoughts


@each_row("size", [1, 2, 3, 5, 7, 1000])
@each_row(("text", "answer"), MARKED)
def test_a_thought_is_left_out_however_it_is_cut(text: str, answer: str, size: int) -> None:
    out, thoughts = passed(text, [size])
    assert (out, thoughts.has_thought) == (answer, True)


@each_row("size", [1, 4, 1000])
@each_row("text", PLAIN)
def test_a_text_without_thoughts_passes_whole(text: str, size: int) -> None:
    out, thoughts = passed(text, [size])
    assert (out, thoughts.has_thought) == (text, False)


def test_a_thought_that_the_prompt_opened_is_noticed_where_it_closes() -> None:
    thoughts = Thoughts()
    assert thoughts.feed("zxq") == "zxq"  # nothing shows yet that this is a thought
    assert thoughts.feed(" zxq</think>A latte.") == "A latte."
    assert thoughts.closes_unopened


def test_of_a_model_known_for_that_the_first_thought_is_left_out() -> None:
    assert passed("zxq</think>A latte.", [3], begins_inside=True)[0] == "A latte."
    assert (
        passed("A latte, and no thought.", [3], begins_inside=True)[0] == "A latte, and no thought."
    )


N_REPLIES = min(int(os.environ.get("VOICELOOP_FUZZ", "150")), 5000)  # `.ci/run` asks for more
words = st.sampled_from(["A latte. ", "four", " ", "<", "[", "<|", "a<b", "think", "\n"])
thought = st.lists(st.sampled_from([SECRET, " ", "<", "[/", "\n", *PAIRS, "maybe"]), max_size=6)


@st.composite
def replies(draw: st.DrawFn) -> tuple[str, bool]:
    """A reply of answers and thoughts, and whether its last thought stays open."""
    text = ""
    for _ in range(draw(st.integers(0, 4))):
        text += "".join(draw(st.lists(words, max_size=4)))
        opener = draw(st.sampled_from([*PAIRS, CHANNEL + "analysis" + MESSAGE]))
        inner = "".join(draw(thought))
        if opener in PAIRS:
            closer = PAIRS[opener]
            opener = draw(st.sampled_from([opener, opener.upper()]))
        else:
            closer = f"<|end|>{START}assistant{CHANNEL}final{MESSAGE}"
        if draw(st.booleans()) and draw(st.booleans()):
            return text + opener + inner, True
        text += opener + inner + closer
    return text + "A latte.", False


@settings(max_examples=N_REPLIES)
@given(replies(), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_no_thought_leaks_in_any_stream(reply: tuple[str, bool], sizes: list[int]) -> None:
    text, _ = reply
    out, _ = passed(text, sizes)
    assert SECRET not in out
    assert out == passed(text, [len(text) or 1])[0]
    assert not any(mark in out.lower() for mark in MARKS)
