"""The history is what was said and heard, to the word."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.tables import each_row
from voiceloop.backends import SpokenWord, Tool
from voiceloop.errors import InvalidRequest
from voiceloop.realtime.items import FunctionCall, FunctionCallOutput, McpCall, Message, Part
from voiceloop.realtime.protocol import Protocol
from voiceloop.realtime.settings import SessionSettings
from voiceloop.realtime.shown import NOT_OVER
from voiceloop.realtime.window import TokenCount, Window

TEXT = "We close at six on Saturday."
WORDS = [
    SpokenWord("We", 0, 200, 2),
    SpokenWord("close", 200, 500, 8),
    SpokenWord("at", 500, 600, 11),
    SpokenWord("six", 600, 1000, 15),
    SpokenWord("on", 1000, 1100, 18),
    SpokenWord("Saturday", 1100, 1800, len(TEXT)),
]


def protocol_with(window: Window | None = None, *, keeps_facts: bool = False) -> Protocol:
    protocol = Protocol(SessionSettings(), keeps_facts=keeps_facts)
    protocol.shown.window = window
    return protocol


def said(*words: SpokenWord) -> Protocol:
    protocol = protocol_with()
    part = Part(type="output_audio", transcript=TEXT)
    protocol.conversation.insert(Message(id="reply", role="assistant", content=(part,)))
    protocol.spoken.append_text("reply", TEXT[:10])
    protocol.spoken.append_text("reply", TEXT[10:])
    protocol.spoken.add_words("reply", words)
    protocol.spoken.add_audio("reply", 1800.0)
    return protocol


@each_row(("heard_ms", "kept"), [
    (0, ""), (99, ""), (100, "We"), (340, "We"), (360, "We close"), (790, "We close at"),
    (810, "We close at six"), (1800, TEXT), (99_999, TEXT),
])  # fmt: skip
def test_a_word_half_heard_is_kept(heard_ms: float, kept: str) -> None:
    protocol = said(*WORDS)
    assert protocol.spoken.cut("reply", heard_ms) == kept
    contents = [message.content for message in protocol.shown.messages()]
    assert contents == ([kept] if kept else [])


def test_a_later_cut_is_of_the_full_reply() -> None:
    protocol = said(*WORDS)
    protocol.spoken.cut("reply", 150)
    assert protocol.spoken.cut("reply", 850) == "We close at six"
    item = protocol.conversation.get("reply")
    assert isinstance(item, Message) and item.text == "We close at six"


def test_of_a_retracted_reply_nothing_was_said_whatever_was_heard() -> None:
    protocol = said(*WORDS)
    protocol.spoken.cut("reply", 850)
    protocol.spoken.retract("reply")
    assert protocol.spoken.cut("reply", 850) == ""  # a client that flushed tells what it had played
    item = protocol.conversation.get("reply")
    assert isinstance(item, Message) and item.text == ""
    assert protocol.shown.messages() == ()
    assert protocol.spoken.audio_ms("reply") == 1800.0


def test_a_voice_without_word_times_is_cut_at_a_word_by_its_share() -> None:
    protocol = said()
    assert protocol.spoken.cut("reply", 900) == "We close at"
    assert protocol.spoken.cut("reply", 1800) == TEXT


def test_items_without_words_are_not_shown_to_the_model() -> None:
    protocol = protocol_with()
    protocol.conversation.insert(Message(id="a", role="assistant", status="in_progress"))
    protocol.conversation.insert(
        Message(id="u", role="user", content=(Part(type="input_audio", transcript=None),))
    )
    broken = FunctionCall(id="f", call_id="c", name="x", arguments="{", status="incomplete")
    protocol.conversation.insert(broken)
    assert protocol.shown.messages("Be kind.")[1:] == ()
    protocol.conversation.set_transcript("u", "hello")
    assert [message.content for message in protocol.shown.messages()] == ["hello"]


def test_words_and_calls_of_one_turn_are_one_message() -> None:
    protocol = said(*WORDS)
    for n in (1, 2):
        protocol.conversation.insert(
            FunctionCall(id=f"f{n}", call_id=f"c{n}", name="x", arguments="{}")
        )
    protocol.conversation.insert(FunctionCallOutput(id="o", call_id="c1", output="ok"))
    messages = protocol.shown.messages()
    assert [message.role for message in messages] == ["assistant", "tool", "tool"]
    assert messages[0].content == TEXT and len(messages[0].tool_calls) == 2
    assert [message.content for message in messages[1:]] == ["ok", NOT_OVER]


def call(n: int) -> FunctionCall:
    return FunctionCall(id=f"f{n}", call_id=f"c{n}", name="x", arguments="{}")


def output(item_id: str, n: int, text: str = "ok") -> FunctionCallOutput:
    return FunctionCallOutput(id=item_id, call_id=f"c{n}", output=text)


def test_a_call_that_comes_before_its_words_is_one_message_with_them() -> None:
    protocol = protocol_with()
    protocol.conversation.insert(call(1))
    for n in (1, 2):
        part = Part(type="output_audio", transcript=f"Words {n}.")
        protocol.conversation.insert(Message(id=f"m{n}", role="assistant", content=(part,)))
    protocol.conversation.insert(output("o", 1))
    messages = protocol.shown.messages()
    assert [message.role for message in messages] == ["assistant", "tool"]
    assert messages[0].content == "Words 1. Words 2." and len(messages[0].tool_calls) == 1


def test_an_output_goes_behind_the_turn_that_made_the_call_and_its_other_outputs() -> None:
    protocol = said(*WORDS)
    for item in (call(1), call(2), output("o2", 2)):
        protocol.conversation.insert(item)
    protocol.conversation.insert(Message(id="u", role="user"))
    assert protocol.conversation.place_of_output("c1") == "o2"
    older = FunctionCall(id="older", call_id="c1", name="x", arguments="{}")
    protocol.conversation.insert(older, "root")
    assert protocol.conversation.place_of_output("c1") == "o2"
    assert protocol.conversation.place_of_output("c3") is None
    assert protocol.conversation.is_answered("c2") and not protocol.conversation.is_answered("c1")


def test_of_several_outputs_of_a_call_the_model_is_shown_the_last() -> None:
    protocol = protocol_with()
    for item in (call(1), output("a", 1, "no answer"), output("b", 1, "nine"), call(2)):
        protocol.conversation.insert(item)
    protocol.conversation.insert(FunctionCall(id="again", call_id="c1", name="x", arguments="{}"))
    protocol.conversation.insert(output("c", 1, "ten"))
    shown = [message.content for message in protocol.shown.messages() if message.role == "tool"]
    assert shown == ["nine", NOT_OVER, "ten"]


def test_a_call_under_way_has_a_result_in_the_prompt_and_its_own_once_that_is_there() -> None:
    """Services refuse a prompt in which something else follows a call."""
    protocol = protocol_with()
    protocol.conversation.insert(call(1))
    part = Part(type="input_text", text="And a tea.")
    protocol.conversation.insert(Message(id="u", role="user", content=(part,)))
    before = [(message.role, message.content) for message in protocol.shown.messages()]
    assert before == [("assistant", ""), ("tool", NOT_OVER), ("user", "And a tea.")]
    protocol.conversation.insert(output("late", 1, "done"))
    after = [(message.role, message.content) for message in protocol.shown.messages()]
    assert after == [("assistant", ""), ("tool", "done"), ("user", "And a tea.")]


def test_a_result_whose_call_was_deleted_is_not_shown_and_its_call_not_open() -> None:
    protocol = protocol_with()
    for item in (call(1), output("o1", 1, "nine"), call(2), output("o2", 2, "ten"), call(3)):
        protocol.conversation.insert(item)
    assert [protocol.conversation.is_open(f"c{n}") for n in (1, 2, 3)] == [False, False, True]
    for n in (1, 3):
        protocol.delete_item(f"f{n}")
    assert [message.content for message in protocol.shown.messages()] == ["", "ten"]
    assert not protocol.conversation.is_open("c3")


def test_a_later_calls_result_is_not_that_of_an_earlier_call_with_its_id() -> None:
    protocol = protocol_with()
    protocol.conversation.insert(call(1))
    part = Part(type="input_text", text="And a tea.")
    protocol.conversation.insert(Message(id="u", role="user", content=(part,)))
    protocol.conversation.insert(FunctionCall(id="again", call_id="c1", name="x", arguments="{}"))
    protocol.conversation.insert(output("o", 1, "done"))
    shown = [message.content for message in protocol.shown.messages() if message.role == "tool"]
    assert shown == [NOT_OVER, "done"]


def test_ids_are_unique_and_places_known() -> None:
    protocol = said(*WORDS)
    with pytest.raises(InvalidRequest):
        protocol.conversation.insert(Message(id="reply", role="user"))
    with pytest.raises(InvalidRequest):
        protocol.conversation.insert(Message(id="u", role="user"), "nobody")
    assert protocol.conversation.insert(Message(id="u", role="user"), "root") is None
    assert protocol.conversation.previous_id("reply") == "u"


def test_a_deleted_reply_is_gone_for_good() -> None:
    protocol = said(*WORDS)
    protocol.delete_item("reply")
    protocol.delete_item("reply")
    protocol.conversation.replace(Message(id="reply", role="assistant"))
    assert protocol.spoken.cut("reply", 500) == "" and len(protocol.conversation) == 0


# --- the window of a long conversation ---


def talk(protocol: Protocol, n_turns: int) -> None:
    for n in range(n_turns):
        for role, text in (("user", f"question {n} " + "x" * 40), ("assistant", "y" * 48)):
            part = Part(type="input_text" if role == "user" else "output_text", text=text)
            item_id = f"{role}{len(protocol.conversation)}"
            protocol.conversation.insert(Message(id=item_id, role=role, content=(part,)))  # type: ignore[arg-type]


def test_a_long_conversation_keeps_its_instructions_and_its_latest_turns() -> None:
    protocol = protocol_with(Window(n_tokens=400, retention_ratio=0.5))
    talk(protocol, 40)
    messages = protocol.shown.messages("Be kind.")
    assert messages[0].content == "Be kind." and messages[1].role == "user"
    assert messages[-1].role == "assistant" and messages[-2].content.startswith("question 39")
    assert sum(len(message.content) // 3 + 6 for message in messages) <= 200


def test_a_clients_own_bound_holds_for_what_follows_the_instructions() -> None:
    asked = {
        "type": "retention_ratio",
        "retention_ratio": 0.5,
        "token_limits": {"post_instructions": 200},
    }
    for n_tokens in (0, 5000):
        protocol = protocol_with(Window.of(asked, n_tokens))
        talk(protocol, 40)
        messages = protocol.shown.messages("Be kind. " * 100)[1:]
        assert 0 < sum(len(message.content) // 3 + 6 for message in messages) <= 100


def test_tools_take_their_room_from_the_conversation() -> None:
    tool = Tool("hours", "The opening hours of a day. " * 20, {"type": "object"})
    shown = []
    for tools in ((), (tool,)):
        protocol = protocol_with(Window.of("auto", 600, tools))
        talk(protocol, 40)
        shown.append(len(protocol.shown.messages("Be kind.")))
    assert 1 < shown[1] < shown[0]


@given(
    n_tokens=st.integers(1, 3000),
    n_characters=st.lists(st.integers(0, 9000), max_size=4),
    n_instructions=st.integers(0, 20_000),
    n_tool=st.integers(0, 9000),
)
@example(n_tokens=1792, n_characters=[], n_instructions=6000, n_tool=0)
def test_instructions_tools_and_history_of_any_length_give_a_prompt_or_a_refusal(
    n_tokens: int, n_characters: list[int], n_instructions: int, n_tool: int
) -> None:
    tools = (Tool("look_up", "d" * n_tool, {"type": "object"}),) if n_tool else ()
    window = Window.of("auto", n_tokens, tools)
    assert window is not None
    instructions = "i" * n_instructions
    try:
        window.check(instructions)
    except InvalidRequest as refused:
        assert "expected instructions and tools that fit" in refused.message
        return
    protocol = protocol_with(window)
    for n, length in enumerate(n_characters):
        part = Part(type="input_text", text="x" * length)
        protocol.conversation.insert(Message(id=f"u{n}", role="user", content=(part,)))
        shown = protocol.shown.messages(instructions)
        assert not length or shown[-1].content == "x" * length  # the newest turn is always there
    assert len(protocol.shown.messages(instructions)) <= 1 + len(n_characters)


def test_the_window_stands_still_between_its_moves() -> None:
    protocol = protocol_with(Window(n_tokens=400, retention_ratio=0.5))
    talk(protocol, 10)
    first = protocol.shown.messages("Be kind.")
    assert len(first) < 21
    talk(protocol, 1)
    assert protocol.shown.messages("Be kind.")[: len(first)] == first
    oldest = protocol.conversation.items()[len(protocol.conversation) - len(first) - 1].id
    protocol.delete_item(oldest)
    assert protocol.shown.messages("Be kind.")[1:] == (*first[2:], *protocol.shown.messages()[-2:])


# --- slides ---


def words(protocol: Protocol, role: str, text: str) -> None:
    item_id = f"{role}{len(protocol.conversation)}"
    part = Part(type="input_text" if role == "user" else "output_text", text=text)
    protocol.conversation.insert(Message(id=item_id, role=role, content=(part,)))  # type: ignore[arg-type]


def fill(protocol: Protocol, share: float) -> None:
    """Talk until this share of the window's room is taken."""
    window = protocol.shown.window
    assert window is not None
    while sum(len(m.content) // 3 + 6 for m in protocol.shown.messages()) < share * window.n_tokens:
        talk(protocol, 1)


def test_a_window_that_is_nearly_full_slides_before_it_must_and_then_stands_still() -> None:
    protocol = protocol_with(Window(n_tokens=1000))
    fill(protocol, 0.8)
    assert not protocol.shown.slide_ahead("")
    assert protocol.shown.take_slide() is None
    fill(protocol, 0.87)
    n_before = len(protocol.shown.messages())
    assert protocol.shown.slide_ahead("")
    shown = protocol.shown.messages()
    assert len(shown) < n_before and shown[0].role == "user"
    assert not protocol.shown.slide_ahead("")
    slide = protocol.shown.take_slide()
    assert slide is not None and slide.is_ahead and slide.n_items == n_before - len(shown)
    talk(protocol, 1)
    assert protocol.shown.messages()[: len(shown)] == shown  # the cache of it stands


def test_who_asks_for_less_of_the_history_keeps_less_ahead_too() -> None:
    kept = []
    for ratio in (0.3, 0.8):
        asked = {"type": "retention_ratio", "retention_ratio": ratio}
        protocol = protocol_with(Window.of(asked, 1000))
        fill(protocol, 0.87)
        assert protocol.shown.slide_ahead("")
        kept.append(len(protocol.shown.messages()))
    assert kept[0] < kept[1]


def test_what_has_left_the_window_is_told_behind_the_first_words_that_are_shown() -> None:
    protocol = protocol_with(Window(n_tokens=1000), keeps_facts=True)
    words(protocol, "user", "My name is Maria Lopez.")
    call = FunctionCall(id="c", call_id="call", name="order", arguments='{"item": "latte"}')
    protocol.conversation.insert(call)
    protocol.conversation.insert(
        FunctionCallOutput(id="o", call_id="call", output='{"ready_in": "5 min"}')
    )
    fill(protocol, 0.87)
    assert "Maria" not in protocol.shown.messages("Be kind.")[1].behind
    assert protocol.shown.slide_ahead("Be kind.")
    system, first, *rest = protocol.shown.messages("Be kind.")
    assert system.content == "Be kind."
    assert first.role == "user" and "Maria Lopez" in first.behind and "5 min" in first.behind
    assert "Maria" not in first.content and not any("Maria" in one.content for one in rest)
    assert protocol.shown.messages("Be kind.")[1] == first
    protocol.delete_item("user0")
    assert "Maria" not in protocol.shown.messages("Be kind.")[1].behind


def test_what_a_tool_of_an_mcp_server_did_is_told_too_and_its_failure_is_not() -> None:
    protocol = protocol_with(Window(n_tokens=1000), keeps_facts=True)
    for name, came in (("order", {"output": "5 min"}), ("cancel", {"error": {"message": "gone"}})):
        protocol.conversation.insert(
            McpCall(id=name, server_label="shop", name=name, arguments="{}", **came)  # type: ignore[arg-type]
        )
    fill(protocol, 0.87)
    assert protocol.shown.slide_ahead("")
    behind = protocol.shown.messages()[0].behind
    assert "Done: order () gave 5 min" in behind and "cancel" not in behind


def test_a_turn_that_overfills_the_window_makes_it_slide_at_once() -> None:
    protocol = protocol_with(Window(n_tokens=1000), keeps_facts=True)
    words(protocol, "user", "My name is Maria Lopez.")
    fill(protocol, 0.84)
    talk(protocol, 10)
    assert "Maria Lopez" in protocol.shown.messages()[0].behind
    slide = protocol.shown.take_slide()
    assert slide is not None and not slide.is_ahead and slide.n_facts >= 1


def test_tokens_are_counted_where_the_tokenizer_is_here() -> None:
    def one_each(text: str) -> int:
        return len(text)

    guessed, counted = (
        protocol_with(Window.of("auto", 1000, count=TokenCount(count)))
        for count in (None, one_each)
    )
    for protocol in (guessed, counted):
        talk(protocol, 10)
    assert len(counted.shown.messages()) < len(guessed.shown.messages()) == 20
    window = Window.of("auto", 100, count=TokenCount(one_each))
    assert window is not None
    with pytest.raises(InvalidRequest, match="found about 126"):
        window.check("i" * 120)


def test_settings_of_any_length_have_little_counted() -> None:
    counted: list[str] = []

    def exact(text: str) -> int:
        counted.append(text)
        return len(text) // 4

    tools = [Tool(f"t{n}", "looks", {"pattern": "a" * 9000}) for n in range(32)]
    window = Window.of("auto", 4096, tools, TokenCount(exact))
    assert window is not None and window.n_tools > 4096
    small = Window.of("auto", 4096, (), TokenCount(exact))
    assert small is not None
    small.check("Be kind to all. " * 100)
    assert not counted
    with pytest.raises(InvalidRequest):
        window.check("Be kind.")
