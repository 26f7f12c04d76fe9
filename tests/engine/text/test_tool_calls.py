"""Tool calls are recognized alike however the reply is cut into pieces."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.tool_calls import (
    MalformedToolCall,
    Notation,
    ParsedCall,
    ToolCallParser,
    notation_of,
)

HERMES = notation_of("... <tool_call> ...")
LLAMA = notation_of('... {"name": f, "parameters": p} ...')
MISTRAL = notation_of("... [TOOL_CALLS] ...")

BOOK = ParsedCall("book", '{"people": 4}')
REPLIES: list[tuple[Notation | None, str, list[str | ParsedCall]]] = [
    (HERMES, "One moment, please.", ["One moment, please."]),
    (
        HERMES,
        'Sure. <tool_call>\n{"name": "book", "arguments": {"people": 4}}\n</tool_call>',
        ["Sure. ", BOOK],
    ),
    (
        HERMES,
        '<tool_call>{"name": "book", "arguments": {"people": 4}}</tool_call>\n<tool_call>\n'
        '{"name": "book", "arguments": "{\\"people\\": 4}"}</tool_call>\n done',
        [BOOK, BOOK, "done"],
    ),
    (HERMES, "a < b and <tool", ["a < b and <tool"]),
    (LLAMA, '{"name": "book", "parameters": {"people": 4}}', [BOOK]),
    (MISTRAL, '[TOOL_CALLS] [{"name": "book", "arguments": {"people": 4}}]', [BOOK]),
    (None, "<tool_call> is no mark here", ["<tool_call> is no mark here"]),
]


def parse(notation: Notation | None, reply: str, sizes: list[int]) -> list[str | ParsedCall]:
    """Feed in pieces of these sizes; adjacent text is joined."""
    parser, output, rest = ToolCallParser(notation), list[str | ParsedCall](), reply
    for size in [*sizes, len(reply)]:
        output += parser.feed(rest[:size])
        rest = rest[size:]
    joined: list[str | ParsedCall] = []
    for piece in output + parser.finish():
        last = joined[-1] if joined else None
        if isinstance(piece, str) and isinstance(last, str):
            joined[-1] = last + piece
        else:
            joined.append(piece)
    return joined


@settings(max_examples=30, derandomize=True)
@given(st.sampled_from(REPLIES), st.lists(st.integers(1, 9), max_size=60))
def test_every_chunking_gives_the_same(
    case: tuple[Notation | None, str, list[str | ParsedCall]], sizes: list[int]
) -> None:
    notation, reply, expected = case
    assert parse(notation, reply, sizes) == expected


@pytest.mark.parametrize(
    "reply",
    [
        "<tool_call>no JSON</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "book", "arguments": 4}</tool_call>',
        '<tool_call>{"name": "book", "argu',
        "<tool_call>" + 1500 * "[" + "</tool_call>",
        '<tool_call>{"name": "book", "arguments": "' + 1500 * "[" + '"}</tool_call>',
        '<tool_call>{"name": "book", "arguments": '
        + 1500 * '{"a":'
        + "1"
        + 1501 * "}"
        + "</tool_call>",
    ],
)
def test_a_malformed_call_is_an_error_and_never_spoken(reply: str) -> None:
    parser = ToolCallParser(HERMES)
    with pytest.raises(MalformedToolCall, match="expected a tool call") as error:
        assert not [piece for piece in parser.feed(reply) if piece]
        parser.finish()
    assert "book" not in str(error.value)  # it goes into logs, and the caller's words do not


BARE = [
    '{"name": "book", "arguments": {"people": 4}}',
    '{{"name": "book", "arguments": {"people": 4}}}',
    '{{"name": "book", "arguments": {{"people": 4}}}}',
    '\n[{"name": "book", "parameters": {"people": 4}}]',
    '```json\n{"name": "book", "arguments": {"people": 4}}\n```',
]
NO_CALLS = [
    '{"answer": 4}',
    "{ as it says",
    "[sic] so it is",
    "`code`",
    '{"a long key that no call',
    "",
]


@pytest.mark.parametrize("reply", BARE)
def test_a_call_begun_as_text_is_held_back_from_its_first_character(reply: str) -> None:
    parser = ToolCallParser(HERMES, holds_bare=True)
    assert not [piece for character in reply for piece in parser.feed(character)]
    assert parser.is_bare
    assert parser.finish() == [BOOK]
    cut = ToolCallParser(HERMES, holds_bare=True)
    assert not cut.feed(reply[:-3]) and not cut.finish(is_cut_off=True)


@pytest.mark.parametrize("reply", [*NO_CALLS, "One moment, please."])
def test_other_text_passes_whole_however_it_is_cut(reply: str) -> None:
    for size in (1, 2, 3, 100):
        parser = ToolCallParser(HERMES, holds_bare=True)
        pieces = [reply[at : at + size] for at in range(0, len(reply), size)]
        output = [piece for part in pieces for piece in parser.feed(part)] + parser.finish()
        assert "".join(map(str, output)) == reply
        assert not parser.is_bare


RESULT = '<tool_response>\n{"price": "$120"}\n</tool_response>'


@pytest.mark.parametrize(
    "reply", ['{"name": "book"', '{{"name": nonsense}}', '{"arguments": {}}', RESULT]
)
def test_a_bare_call_that_is_none_is_an_error_and_never_spoken(reply: str) -> None:
    parser = ToolCallParser(HERMES, holds_bare=True)
    assert not parser.feed(reply)
    with pytest.raises(MalformedToolCall, match="expected a tool call"):
        parser.finish()
