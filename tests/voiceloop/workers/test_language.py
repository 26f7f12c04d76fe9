"""How chat messages and revised partials become engine branches, on an engine that only records.

Its tokens are letters: a turn reads "<u:hello>", the assistant's header "<a:".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast

import pytest

import engine.types as engine_types
from engine.engine import Engine
from engine.types import CheckpointError, IntegrityError, InvalidRequest, TemplateError
from voiceloop.backends import (
    ChatMessage,
    Generated,
    GenerateParams,
    PreemptiveCall,
    PreemptiveDelta,
    PreemptiveDone,
    Staged,
    TextDelta,
    Thinks,
    Tool,
    ToolCall,
    Verified,
)
from voiceloop.config import CascadeSettings, Config, EngineSettings
from voiceloop.models.engine_options import KEYS
from voiceloop.workers.messages import (
    BeginPreemptive,
    Commit,
    Draft,
    OpenBranch,
    Stage,
    StreamEvent,
    StreamFailed,
    Verify,
)
from voiceloop.workers.roles import language
from voiceloop.workers.roles.language import LanguageRole
from voiceloop.workers.roles.role import RoleBroken, RoleError, StreamError

PARAMS = GenerateParams(max_tokens=7, seed=3)
HI = (ChatMessage("user", "hi"),)
SYSTEM = ChatMessage("system", "be brief")


class LetterText:
    """Writes a conversation as letters; ``tidy`` drops the line feed after the last message.

    n_written: messages that the template was given; n_encoded: letters made tokens.
    """

    tidy = False
    is_strict = False
    takes_tools = True
    joins_marks = False  # a question mark and the line feeds behind it are one token
    n_written = 0
    n_encoded = 0
    tokenizer = SimpleNamespace(to_str=lambda: "letters")
    template_source = "<role:content>"

    def encode_chat(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] = (),
        *,
        open_user: str | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        if open_user is not None:
            return self.encode(self.render_open(messages, tools, open_user))
        text = self._written(messages, tools)
        if add_generation_prompt:
            text += "<a:"
        elif self.tidy:
            text = text.rstrip("\n") + "!"
        return self.encode(text)

    def render_open(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], open_user: str
    ) -> str:
        text = self._written(messages, tools, ("user",))
        return f"{text}<u:{self.spoken(open_user)}"

    def _written(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]],
        behind: tuple[str, ...] = (),
    ) -> str:  # fmt: skip
        self.n_written += len(messages)
        text = "".join(f"[{tool['function']['name']}]" for tool in tools)
        if self.is_strict:
            roles = [*(message["role"] for message in messages), *behind]
            if roles != ["user", "assistant"] * (len(roles) // 2) + ["user"] * (len(roles) % 2):
                raise TemplateError(f"expected user and assistant in turn, found {roles}")
        for message in messages:
            if message["content"] == "refused":
                raise TemplateError("expected messages the template takes, found 'refused'")
            calls = "".join(
                f"{call['function']['name']}({call['function']['arguments']['n']})"
                for call in message.get("tool_calls", ())
            )
            text += f"<{message['role'][0]}:{message['content']}{calls}>\n"
        return text

    def spoken(self, words: str) -> str:
        return words.rstrip()

    def last_seam(self, text: str) -> int:
        return text.rindex("<")

    def check_length(self, n_characters: int) -> None: ...

    def encode(self, text: str) -> list[int]:
        self.n_encoded += len(text)
        if self.joins_marks:
            text = text.replace("?\n\n", "\N{INTERROBANG}")
        return [ord(letter) for letter in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))


class RecordingBranch:
    def __init__(self, engine: RecordingEngine, branch_id: str, history: Sequence[int]) -> None:
        self.branch_id = branch_id
        self._engine = engine
        self.takes_words_along = not engine.reads[-1]
        self._log("branch", history)

    def _log(self, call: str, tokens: Sequence[int] = (), *rest: object) -> None:
        number = self.branch_id.rpartition("#")[2]
        text = "".join(map(chr, tokens))
        self._engine.calls.append((f"{number} {call}", text, *rest))

    def stage(self, tokens: Sequence[int]) -> None:
        self._log("stage", tokens)
        self._engine.now += self._engine.ms_a_stage / 1000
        self._engine.due.append(engine_types.Staged(self.branch_id, len(tokens), 1, 0.25))

    def begin_preemptive(
        self, tail: Sequence[int], params: engine_types.SamplingParams, n_cut: int = 0
    ) -> int:
        self._log("begin_preemptive", tail, *([n_cut] if n_cut else []))
        return 1

    def verify(self, attempt: int, tokens: Sequence[int]) -> None:
        self._log("verify", tokens, attempt)

    def stop_preemptive(self) -> None:
        self._log("stop")

    def commit(
        self, tokens: Sequence[int], params: engine_types.SamplingParams, attempt: int | None = None
    ) -> None:
        if params.max_tokens == 99:
            raise InvalidRequest("max_tokens: expected fewer, found 99")
        self._log("commit", tokens, attempt)
        self._engine.params.append(params)
        self._engine.due += self._engine.reply(self.branch_id)

    def close(self) -> None:
        self._log("close")


class RecordingEngine:
    def __init__(self) -> None:
        self.text = LetterText()
        self.calls: list[tuple[object, ...]] = []
        self.params: list[engine_types.SamplingParams] = []
        self.due: list[engine_types.Event] = []
        self.answer: list[engine_types.Event] = []
        self.now = 0.0
        self.ms_a_stage = 0.0
        self.serving = frozenset[str]()  # branches of its next step
        self.adapters: object | None = None
        self.adapted: list[str] = []  # what each branch was opened with
        self.reads: list[bool] = []
        self.gave_way = False

    def clock(self) -> float:
        return self.now

    def branch(
        self,
        branch_id: str,
        history_tokens: Sequence[int] = (),
        salt: str = "",
        session: str | None = None,
        adapter: str = "",
        *,
        reads_end: bool = True,
    ) -> RecordingBranch:
        self.adapted.append(adapter)
        self.reads.append(reads_end)
        return RecordingBranch(self, branch_id, history_tokens)

    def reply(self, branch_id: str) -> list[engine_types.Event]:
        return [
            engine_types.TextDelta(branch_id, "yes", 1),
            engine_types.Done(branch_id, "stop"),
        ]

    def has_work(self) -> bool:
        return bool(self.due)

    def step(self, interrupted: Callable[[], bool] | None = None) -> list[engine_types.Event]:
        due, self.due = self.due, []
        self.gave_way = interrupted is not None and interrupted()
        return due


@pytest.fixture
def model() -> RecordingEngine:
    return RecordingEngine()


@pytest.fixture
def role(model: RecordingEngine) -> LanguageRole:
    return LanguageRole(cast(Engine, model), "letters")


def user(text: str) -> tuple[ChatMessage, ...]:
    return (ChatMessage("user", text),)


def answers(role: LanguageRole) -> list[object]:
    found: list[object] = []
    while role.has_work():
        for message in role.step():
            found.append(message.event if isinstance(message, StreamEvent) else message)
    return found


def test_the_whole_turn_is_committed_behind_what_was_staged(
    model: RecordingEngine, role: LanguageRole
) -> None:
    role.receive(OpenBranch("s", (SYSTEM,)))
    role.receive(Stage("s", 1, "he"))
    assert answers(role) == [Staged(1, 5, 1, 0.25)]
    role.receive(Commit("s", user("hello"), PARAMS))
    assert model.calls == [
        ("1 branch", "<s:be brief>\n"),
        ("1 stage", "<u:he"),
        ("1 commit", "<u:hello>\n<a:", None),
    ]
    delta, generated = answers(role)
    assert delta == TextDelta("yes")
    assert isinstance(generated, Generated) and generated.finish_reason == "stop"


def test_every_turn_of_an_agent_is_answered_by_its_adapter(
    model: RecordingEngine, role: LanguageRole
) -> None:
    """What stands in for a model that failed has none, and answers all the same."""
    for held, expected in ((object(), "folder"), (None, "")):
        model.adapters, model.adapted = held, []
        role.receive(OpenBranch("s", (SYSTEM,), adapter="folder", reads_end=False))
        for _ in range(2):
            role.receive(Commit("s", HI, PARAMS))
            answers(role)
        assert not any(model.reads), "another model reads the end"
        assert model.adapted == [expected] * 2
        role.close("s")


@pytest.mark.parametrize("n_messages", [2, 120])
def test_later_words_cost_what_they_are_long_however_long_the_call_is(
    model: RecordingEngine, role: LanguageRole, n_messages: int
) -> None:
    said = [ChatMessage(("user", "assistant")[i % 2], f"line {i}") for i in range(n_messages)]
    role.receive(OpenBranch("s", tuple(said)))
    role.receive(Stage("s", 0, "I"))
    answers(role)
    n_written, n_encoded = model.text.n_written, model.text.n_encoded
    words = "would like a table for two"
    for i in range(len(words)):
        role.receive(Stage("s", 1 + i, f"I {words[: i + 1]}"))
        answers(role)
    assert model.calls[-1] == ("1 stage", f"<u:I {words}")
    assert model.text.n_written == n_written
    n_spoken = sum(len(f"<u:I {words[: i + 1]}".rstrip()) for i in range(len(words)))
    assert model.text.n_encoded - n_encoded == n_spoken


def test_words_behind_a_reply_follow_all_that_was_said(
    model: RecordingEngine, role: LanguageRole
) -> None:
    """What was read of the turn before is no part of the next one."""
    role.receive(OpenBranch("s", (SYSTEM,)))
    for stage_id, words in enumerate(("h", "he")):
        role.receive(Stage("s", stage_id, words))
        answers(role)
    role.receive(Commit("s", user("hello"), PARAMS))
    answers(role)
    role.receive(Commit("s", user("and"), PARAMS))
    answers(role)
    assert model.calls[-2:] == [
        ("2 branch", "<s:be brief>\n<u:hello>\n<a:yes>\n"),
        ("2 commit", "<u:and>\n<a:", None),
    ]


def test_a_pass_stages_for_five_milliseconds_and_who_waits_longest_is_next(
    model: RecordingEngine, role: LanguageRole
) -> None:
    names = [f"s{i}" for i in range(7)]
    for name in names:
        role.receive(OpenBranch(name, ()))
        role.receive(Stage(name, 1, "hi"))
    model.ms_a_stage = 2.0
    staged = list[list[str]]()
    while role.has_work():
        events = role.step()
        staged.append([event.stream_id for event in events])
        if len(staged) == 1:  # the first speaks on, behind those who still wait
            role.receive(Stage("s0", 2, "hi there"))
    assert staged == [names[:3], names[3:6], ["s6", "s0"]]


@pytest.mark.parametrize(("serving", "commits", "gives_way"), [
    (["s#1"], [], False),
    (["s#1"], [("s", "hello")], False),  # it would only be made again
    (["s#1"], [("s", "hello there")], True),
    (["s#1"], [("other", "hello")], True),
    (["s#1"], [("s", "hello"), ("other", "hello")], True),
    (["s#1", "other#1"], [("s", "hello")], True),  # the rest of it is in the way
    ([], [("s", "hello")], True),
    (["s#1"], [("not open yet", "hello")], True),
])  # fmt: skip
def test_a_step_gives_way_to_a_reply_that_it_is_not_made_for(
    model: RecordingEngine,
    role: LanguageRole,
    serving: list[str],
    commits: list[tuple[str, str]],
    gives_way: bool,
) -> None:
    for name in ("s", "other"):
        role.receive(OpenBranch(name, ()))
        role.receive(Stage(name, 1, "hello"))
    model.serving = frozenset(serving)
    role.step(lambda: [Commit(name, user(words), PARAMS) for name, words in commits])
    assert model.gave_way is gives_way


@pytest.mark.parametrize(("reads_end", "serving", "gives_way"), [
    (False, ["s#1"], True),
    (False, ["other#1"], False),
    (False, ["s#1", "other#1"], False),
    (True, ["s#1"], False),  # the words are to be judged
])  # fmt: skip
def test_a_step_of_words_alone_gives_way_to_a_reply_that_takes_them_along(
    model: RecordingEngine, role: LanguageRole, reads_end: bool, serving: list[str], gives_way: bool
) -> None:
    for name in ("s", "other"):
        role.receive(OpenBranch(name, (), reads_end=reads_end))
        role.receive(Stage(name, 1, "hello"))
    model.serving = frozenset(serving)
    role.step(lambda: [BeginPreemptive("s", 1, user("hello there"), PARAMS)])
    assert model.gave_way is gives_way


def test_words_of_a_stream_that_closes_are_not_waited_for(role: LanguageRole) -> None:
    role.receive(OpenBranch("s", ()))
    role.receive(Stage("s", 1, "hi"))
    role.close("s")
    assert not role.has_work()


def test_words_that_end_in_a_mark_have_their_reply_made_ahead_with_notes_behind_them(
    model: RecordingEngine, role: LanguageRole
) -> None:
    model.text.joins_marks = True
    turn = (ChatMessage("user", "open?", behind="\n\n[notes]"),)
    role.receive(OpenBranch("s", ()))
    role.receive(Stage("s", 1, "open?"))
    role.receive(BeginPreemptive("s", 1, turn, PARAMS))
    role.receive(Commit("s", turn, PARAMS))
    assert model.calls[1:] == [
        ("1 stage", "<u:open?"),
        ("1 begin_preemptive", "\N{INTERROBANG}[notes]>\n<a:", 1),
        ("1 commit", "<u:open\N{INTERROBANG}[notes]>\n<a:", 1),
    ]


def test_the_round_behind_a_tools_result_is_made_ahead_and_committed_with_its_call(
    model: RecordingEngine, role: LanguageRole
) -> None:
    call = ToolCall("call_1", "order", '{"n": 2}')
    tail = (*user("two"), ChatMessage("assistant", "", (call,)), ChatMessage("tool", "ok"))
    role.receive(OpenBranch("s", (), (Tool("order", "orders", {"type": "object"}),)))
    role.receive(Stage("s", 1, "two"))
    role.receive(BeginPreemptive("s", 1, tail, PARAMS))
    role.receive(Commit("s", tail, PARAMS))
    behind = ">\n<a:order(2)>\n<t:ok>\n<a:"
    assert model.calls[1:] == [
        ("1 stage", "[order]<u:two"),
        ("1 begin_preemptive", behind),
        ("1 commit", "[order]<u:two" + behind, 1),
    ]


def test_tool_results_follow_the_reply_that_called_the_tool(
    model: RecordingEngine, role: LanguageRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call_a_tool(branch_id: str) -> list[engine_types.Event]:
        return [
            engine_types.ToolCall(branch_id, "call_1", "order", '{"n": 2}'),
            engine_types.Done(branch_id, "stop"),
        ]

    monkeypatch.setattr(model, "reply", call_a_tool)
    tools = (Tool("order", "orders", {"type": "object"}),)
    role.receive(OpenBranch("s", (), tools))
    role.receive(Commit("s", user("two"), PARAMS))
    call, generated = answers(role)
    assert call == ToolCall("call_1", "order", '{"n": 2}')
    assert isinstance(generated, Generated) and generated.finish_reason == "tool_calls"
    role.receive(Commit("s", (ChatMessage("tool", "ok", tool_call_id="call_1"),), PARAMS))
    assert model.calls[-3:] == [
        ("1 close", ""),
        ("2 branch", "[order]<u:two>\n<a:order(2)>\n"),
        ("2 commit", "<t:ok>\n<a:", None),
    ]


def test_a_call_lists_what_was_ordered_as_often_as_the_caller_said(
    model: RecordingEngine, role: LanguageRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = '{"n": ["tea", "tea", "tea"]}'

    def miscount(branch_id: str) -> list[engine_types.Event]:
        return [
            engine_types.ToolCall(branch_id, "call_1", "order", written),
            engine_types.Done(branch_id, "stop"),
        ]

    monkeypatch.setattr(model, "reply", miscount)
    properties = {"n": {"type": "array", "items": {"type": "string"}}}
    tools = (Tool("order", "orders", {"type": "object", "properties": properties}),)
    role.receive(OpenBranch("s", (), tools))
    role.receive(Stage("s", 1, "two teas"))
    role.receive(BeginPreemptive("s", 1, user("two teas"), PARAMS))
    model.due.append(engine_types.PreemptiveCall("s#1", 1, "order", written))
    assert answers(role)[-1] == PreemptiveCall(1, "order", '{"n": ["tea", "tea"]}')
    role.receive(Commit("s", user("no, four teas"), PARAMS))
    call, generated = answers(role)
    assert isinstance(call, ToolCall) and json.loads(call.arguments) == {"n": ["tea"] * 4}
    assert isinstance(generated, Generated)
    # What the caller said last holds for the rounds behind a tool's result, too.
    role.receive(Commit("s", (ChatMessage("tool", "full", tool_call_id="call_1"),), PARAMS))
    again = answers(role)[-2]
    assert isinstance(again, ToolCall) and json.loads(again.arguments) == {"n": ["tea"] * 4}


def test_a_model_told_to_call_no_tool_does_not_see_the_tools(
    model: RecordingEngine, role: LanguageRole
) -> None:
    role.receive(OpenBranch("s", (SYSTEM,), (Tool("order", "orders", {"type": "object"}),)))
    role.receive(Commit("s", user("hi"), GenerateParams(tool_choice="none")))
    assert model.calls == [
        ("1 branch", "[order]<s:be brief>\n"),
        ("1 close", ""),
        ("2 branch", ""),
        ("2 commit", "<s:be brief>\n<u:hi>\n<a:", None),
    ]


@pytest.mark.parametrize(
    ("choice", "offers", "forces"),
    [("auto", True, False), ("required", False, True), ("none", False, False)],
)
def test_the_calls_of_a_reply_that_may_speak_are_bound_to_the_tools(
    model: RecordingEngine, role: LanguageRole, choice: str, offers: bool, forces: bool
) -> None:
    role.receive(OpenBranch("s", (), (Tool("order", "orders", {"type": "object"}),)))
    role.receive(Commit("s", user("hi"), GenerateParams(tool_choice=choice)))
    function = {"name": "order", "description": "orders", "parameters": {"type": "object"}}
    (params,) = model.params
    bound = [json.loads(tools or "null") for tools in (params.offered_tools, params.forced_tools)]
    assert bound == [[function] if offers else None, [function] if forces else None]


def test_a_reply_that_may_call_no_tool_is_not_made_ahead_behind_words_staged_with_the_tools(
    model: RecordingEngine, role: LanguageRole
) -> None:
    role.receive(OpenBranch("s", (), (Tool("order", "orders", {"type": "object"}),)))
    role.receive(Stage("s", 1, "hi"))
    role.receive(BeginPreemptive("s", 1, HI, GenerateParams(tool_choice="none")))
    answers(role)
    assert "1 begin_preemptive" not in [call[0] for call in model.calls]


def test_what_an_earlier_attempt_says_is_not_passed_on_as_a_later_one_that_could_not_begin(
    model: RecordingEngine, role: LanguageRole
) -> None:
    role.receive(OpenBranch("s", (), (Tool("order", "orders", {"type": "object"}),)))
    role.receive(Stage("s", 1, "hi"))
    role.receive(BeginPreemptive("s", 1, HI, PARAMS))
    role.receive(BeginPreemptive("s", 2, HI, GenerateParams(tool_choice="none")))
    answers(role)
    assert model.calls[-1] == ("1 stop", "")
    model.due.append(engine_types.PreemptiveDelta("s#1", 1, "yes", 1))
    assert not answers(role)


def test_a_template_that_ends_a_history_differently_starts_from_what_is_common(
    model: RecordingEngine, role: LanguageRole
) -> None:
    model.text.tidy = True
    role.receive(OpenBranch("s", (SYSTEM,)))
    role.receive(Stage("s", 1, "hi"))
    answers(role)
    role.receive(Commit("s", user("hi"), PARAMS))
    assert model.calls == [
        ("1 branch", "<s:be brief>!"),
        ("1 close", ""),
        ("2 branch", "<s:be brief>"),
        ("2 stage", "\n<u:hi"),
        ("2 commit", "\n<u:hi>\n<a:", None),
    ]


def test_a_template_that_wants_speakers_in_turn_is_told_an_agents_greeting_too(
    model: RecordingEngine,
) -> None:
    model.text.is_strict = True
    role = LanguageRole(model, "strict")  # type: ignore[arg-type]
    history = (SYSTEM, ChatMessage("assistant", "welcome"), *user("er"))
    role.receive(OpenBranch("s", history))
    role.receive(Stage("s", 1, "hi"))
    assert not [answer for answer in answers(role) if isinstance(answer, StreamFailed)]
    role.receive(Commit("s", user("hi"), PARAMS))
    said = "".join(call[1] for call in model.calls if "branch" in call[0] or "commit" in call[0])
    assert said.endswith("<u:be brief\n\ner\nhi>\n<a:") and "welcome" in said


def test_an_error_of_one_request_is_an_error_of_its_stream(role: LanguageRole) -> None:
    role.receive(OpenBranch("s", ()))
    with pytest.raises(StreamError, match="found 99"):
        role.receive(Commit("s", user("hi"), GenerateParams(max_tokens=99)))
    with pytest.raises(StreamError, match="refused"):
        role.receive(Commit("s", user("refused"), PARAMS))
    with pytest.raises(StreamError, match="temperature") as caught:
        role.receive(Commit("s", user("hi"), GenerateParams(temperature=-1.0)))
    assert caught.value.is_request


def test_tools_that_the_chat_template_would_leave_out_are_refused(
    model: RecordingEngine, role: LanguageRole
) -> None:
    model.text.takes_tools = False
    role.receive(OpenBranch("s", (), (Tool("add", "", {"type": "object"}),)))
    with pytest.raises(StreamError, match="expected no tools") as caught:
        role.receive(Commit("s", user("hi"), PARAMS))
    assert caught.value.is_request
    role.receive(Commit("s", user("hi"), GenerateParams(max_tokens=7, tool_choice="none")))


@pytest.mark.parametrize("arguments", ["{", "[" * 100_000])
def test_arguments_that_cannot_be_read_fail_their_stream_alone(
    role: LanguageRole, arguments: str
) -> None:
    called = ChatMessage("assistant", "", (ToolCall("call_1", "add", arguments),))
    with pytest.raises(StreamError, match="arguments as JSON"):
        role.receive(OpenBranch("s", (called,)))


def test_a_reply_that_ends_in_an_error_fails_the_stream(
    model: RecordingEngine, role: LanguageRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        model, "reply", lambda branch_id: [engine_types.Done(branch_id, "error", error="too slow")]
    )
    role.receive(OpenBranch("s", ()))
    role.receive(Commit("s", user("hi"), PARAMS))
    assert answers(role) == [StreamFailed("s", "too slow", True)]


def test_kv_that_does_not_add_up_while_words_are_staged_ends_the_worker(
    role: LanguageRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_it_unsound(*_: object) -> None:
        raise IntegrityError("expected a leaf, found a block inside")

    monkeypatch.setattr(RecordingBranch, "stage", find_it_unsound)
    role.receive(OpenBranch("s", ()))
    role.receive(Stage("s", 1, "hello"))
    with pytest.raises(RoleBroken, match="a block inside"):
        role.step()


def test_nothing_comes_from_a_closed_stream(model: RecordingEngine, role: LanguageRole) -> None:
    role.receive(OpenBranch("s", ()))
    role.receive(Commit("s", user("hi"), PARAMS))
    role.close("s")
    role.close("s")
    assert answers(role) == []
    assert model.calls[-1] == ("1 close", "")


@pytest.mark.parametrize(
    "made",
    [
        ["Sure, one ", "latte coming. ", "Anything else?"],
        ["Plants turn the light of the sun ", "and the water of the soil and ", "the air into "],
    ],
)
def test_a_reply_made_ahead_stops_behind_its_first_clause_or_where_it_has_none_after_four_seconds(
    role: LanguageRole, model: RecordingEngine, made: list[str]
) -> None:
    role.receive(OpenBranch("s", ()))
    role.receive(BeginPreemptive("s", 4, (ChatMessage("user", "hello"),), PARAMS))
    model.due += [engine_types.PreemptiveDelta("s#1", 1, text, 3) for text in made[:2]]
    told = [event.event for event in role.step() if isinstance(event, StreamEvent)]
    assert told[-2:] == [PreemptiveDelta(4, text) for text in made[:2]]
    assert not any(call[0] == "1 stop" for call in model.calls)
    model.due.append(engine_types.PreemptiveDelta("s#1", 1, made[2], 3))
    role.step()
    assert model.calls[-1][0] == "1 stop"


def test_of_a_draft_the_tokens_are_told_alone_and_another_model_verifies_them(
    role: LanguageRole, model: RecordingEngine
) -> None:
    role.receive(OpenBranch("s", ()))
    role.receive(Draft("s", 4, HI, PARAMS))
    model.due += [
        engine_types.PreemptiveDelta("s#1", 1, "Sure, one ", 3),
        engine_types.PreemptiveDone("s#1", 1, "cancelled", (7, 8, 9)),
    ]
    assert answers(role)[1:] == [PreemptiveDone(4, "cancelled", (7, 8, 9))]  # behind `Staged`
    role.receive(BeginPreemptive("s", 5, HI, PARAMS))
    role.receive(Verify("s", 4, (65,)))  # of one that was replaced
    role.receive(Verify("s", 5, (66, 67)))
    assert [call for call in model.calls if call[0] == "1 verify"] == [("1 verify", "BC", 1)]
    model.due.append(engine_types.Verified("s#1", 1, 2))
    assert answers(role)[-1] == Verified(5, 2)


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (
            "draft_dir: small: expected the target's tokenizer, found another",
            r"loaded: engine\.drafter: small: expected the target",
        ),
        ("kv_format: expected heads", r"loaded: engine\.kv: expected heads"),
    ],
)
def test_what_the_engine_refuses_is_told_by_the_operators_key(
    monkeypatch: pytest.MonkeyPatch, refused: str, told: str
) -> None:
    def refuse(*_: object) -> None:
        raise CheckpointError(refused)

    monkeypatch.setattr(language.Engine, "load", refuse)
    with pytest.raises(RoleError, match=told):
        language.load("somewhere", keys=KEYS)


def test_every_field_of_the_engine_that_has_another_key_there_is() -> None:
    assert KEYS.keys() <= {field.name for field in fields(engine_types.EngineConfig)}
    for key in KEYS.values():
        table, _, name = key.rpartition(".")
        known = {"engine": EngineSettings, "cascade": CascadeSettings}.get(table, Config)
        assert name in {field.name for field in fields(known)}


def test_no_thought_of_the_model_leaves_the_worker(
    model: RecordingEngine, role: LanguageRole
) -> None:
    pieces = ("<thi", "nk>the caller", " waits</think>", "A latte", ".<")
    role.receive(OpenBranch("s", (SYSTEM,)))
    role.receive(BeginPreemptive("s", 4, HI, PARAMS))
    model.due += [engine_types.PreemptiveDelta("s#1", 1, piece, 1) for piece in pieces]
    model.due.append(engine_types.PreemptiveDone("s#1", 1, "stop", (1,) * 5))
    assert [event for event in answers(role) if isinstance(event, PreemptiveDelta)] == [
        PreemptiveDelta(4, text) for text in ("A latte", ".", "<")
    ]
    model.reply = lambda branch_id: [  # type: ignore[method-assign]
        *(engine_types.TextDelta(branch_id, piece, 1) for piece in pieces),
        engine_types.Done(branch_id, "malformed_call"),
    ]
    role.receive(Commit("s", HI, PARAMS))
    *said, generated = answers(role)
    assert said == [Thinks(), *(TextDelta(text) for text in ("A latte", ".", "<"))]
    assert isinstance(generated, Generated) and generated.finish_reason == "malformed_call"


@pytest.mark.parametrize(
    ("pieces", "reason", "said"),
    [
        (("the caller waits</think>", "A latte."), "stop", ["A latte."]),
        (("the caller wa",), "length", []),
        (("A latte.",), "stop", ["A latte."]),
    ],
)
def test_a_thought_that_the_template_opens_does_not_leave_the_worker(
    model: RecordingEngine,
    role: LanguageRole,
    monkeypatch: pytest.MonkeyPatch,
    pieces: tuple[str, ...],
    reason: Any,
    said: list[str],
) -> None:
    monkeypatch.setattr(model.text, "decode", lambda tokens: "assistant: <think>\n")
    model.reply = lambda branch_id: [  # type: ignore[method-assign]
        *(engine_types.TextDelta(branch_id, piece, 1) for piece in pieces),
        engine_types.Done(branch_id, reason),
    ]
    role.receive(OpenBranch("s", (SYSTEM,)))
    role.receive(Commit("s", HI, PARAMS))
    assert [each.text for each in answers(role) if isinstance(each, TextDelta)] == said
