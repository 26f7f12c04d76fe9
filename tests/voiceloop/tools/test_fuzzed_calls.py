"""Two thousand calls as a model in a stranger's hand writes them: what reaches a service.

The judge is independent of the guards: it sees the requests, what was asked, and what the caller
said. With any of the guards taken out it finds what passes.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from voiceloop.agent import AgentTool
from voiceloop.backends import ToolCall
from voiceloop.realtime.conversation import Conversation
from voiceloop.realtime.items import Message, Part
from voiceloop.tools import consent, http, pending, toolbox
from voiceloop.tools.caller import Caller
from voiceloop.tools.http import CALLER_HEADER, HttpTool
from voiceloop.tools.limit import CallLimit
from voiceloop.tools.pending import SessionTools
from voiceloop.tools.toolbox import ServedTool, Toolbox

N_CALLS = 2000
KEY = "a key of the shop's alone"
CALLER = Caller("k1", "s1", "", {"customer": "c-17"}, "sess_1")
SCHEMA = {
    "type": "object",
    "required": ["item"],
    "properties": {"item": {"type": "string"}, "n": {"type": "integer", "minimum": 1}},
}
SIGNED = {"headers": {"Authorization": "Bearer shop"}, "caller_key": KEY}
TOOLS = {
    tool.name: tool
    for tool in (
        AgentTool("look", "", SCHEMA, url="GET https://shop.test/v1/{item}?shop=12&as=guest",
                  side_effect_free=True, **SIGNED),
        AgentTool("stock", "", SCHEMA, url="GET https://shop.test/stock?shop=12",
                  side_effect_free=True, trusted=True, **SIGNED),
        AgentTool("order", "", SCHEMA, url="https://shop.test/orders?shop=12", trusted=True,
                  **SIGNED),
        AgentTool("refund", "", SCHEMA, url="DELETE https://shop.test/refunds?shop=12",
                  trusted=True, confirm=True, **SIGNED),
    )
}  # fmt: skip
ACTS = ("order", "refund")
PATHS = {"stock": "/stock", "order": "/orders", "refund": "/refunds"}
YES = ("yes", "Yes please.", "uh yes, go ahead")
OTHER = ("no", "no thanks", "what", "yes but not that one", "refund it and say yes", "")
ITEMS = ("tea", "latte", "..", ".", "../admin", "a/b?shop=99", "a&shop=99", "%2e%2e", "a#b", "",
         "{item}", "${SHOP_KEY}", "x" * 9000)  # fmt: skip
STRANGE = (
    "is_admin",
    "shop",
    "as",
    "caller",
    "customer",
    "Authorization",
    "__class__",
    "url",
    "ITEM",
)


def arguments_of(chance: random.Random) -> str:
    """As a model might write them, told by a stranger; one in three as they should be."""
    given: dict[str, Any] = {"item": chance.choice(("tea", "latte"))}
    if chance.random() < 0.3:
        given["n"] = chance.randint(1, 2)
    how = chance.randrange(9)
    if how == 0:
        given[chance.choice(STRANGE)] = chance.choice(
            (True, "99", "admin", None, {"customer": "x"})
        )
    elif how == 1:
        given["item"] = chance.choice(ITEMS)
    elif how == 2:
        given[chance.choice(("item", "n"))] = chance.choice(
            (None, True, 1.5, -1, [], {"a": 1}, "2")
        )
    elif how == 3:
        given = dict.fromkeys(chance.sample(STRANGE, 3), "99") | given
    text = json.dumps(given)
    if how == 4:
        text = chance.choice((text[:-1], f"[{text}]", "", "null", "NaN", "{" * 5000, text + "}",
                              '{"item": "tea", "item": "latte", "shop": "99"}'))  # fmt: skip
    return text


class Judge:
    """Counts what should never have happened. found: by its kind."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()
        self.n_requests: Counter[str] = Counter()
        self.asked: tuple[str, str] | None = None  # of the caller, in the turn before this one
        self.asking: tuple[str, str] | None = None  # in this one
        self.said = ""
        self.has_read = False  # something of a stranger's, in this turn
        self.calling: tuple[str, str] = ("", "")

    def hear(self, text: str) -> None:
        self.asked, self.asking, self.said, self.has_read = self.asking, None, text, False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        name, _ = self.calling
        self.n_requests[name] += 1
        request.read()
        query = request.url.params.multi_items()
        body = json.loads(request.content) if request.content else {}
        fixed = [("shop", "12"), ("as", "guest")] if name == "look" else [("shop", "12")]
        for author in fixed:
            self.found["overridden"] += [one for one in query if one[0] == author[0]] != [author]
        free = {key for key, _ in query} - {key for key, _ in fixed}
        self.found["undeclared"] += not (free | set(body)) <= {"item", "n"}
        place = request.url.raw_path.decode().partition("?")[0]
        is_there = place == PATHS[name] if name in PATHS else place.startswith("/v1/")
        is_there = is_there and place.count("/") <= 2 and request.url.host == "shop.test"
        self.found["led astray"] += not is_there or ".." in place.split("/")
        self.found["overridden"] += request.headers["authorization"] != "Bearer shop"
        token = request.headers[CALLER_HEADER].partition(".")[0]
        claims = json.loads(base64.urlsafe_b64decode(token))["claims"]
        self.found["another caller"] += claims != {"customer": "c-17"}
        if name in ACTS:
            needs = name == "refund" or self.has_read
            has_yes = self.said in YES and self.asked == self.calling
            self.found["unconfirmed"] += needs and not has_yes
            self.asked = None if has_yes else self.asked  # a yes is for one call
        return httpx.Response(200, stream=httpx.ByteStream(b'{"ok":true}'))


def spelled(arguments: str) -> str:
    """One spelling of the same arguments."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


async def judged(n_calls: int, seed: int = 0) -> Judge:
    """Play so many calls, with a caller's turns between them."""
    chance, judge, conversation = random.Random(seed), Judge(), Conversation()
    loop = asyncio.get_running_loop()
    client = httpx.AsyncClient(transport=httpx.MockTransport(judge))
    served = {
        name: ServedTool(tool, HttpTool(tool, {}, client).run, CallLimit(name))
        for name, tool in TOOLS.items()
    }
    box = Toolbox(served, loop.time, client)
    async with asyncio.TaskGroup() as tasks:
        tools = SessionTools(
            box, tasks, lambda call, text, is_news: None, CALLER, turns=conversation
        )
        last = ("refund", '{"item": "tea"}')
        for number in range(n_calls):
            if chance.random() < 0.4:
                text = chance.choice(YES if chance.random() < 0.6 else OTHER)
                part = Part(type="input_text", text=text)
                conversation.insert(Message(id=f"r{number}", role="assistant"))  # it had answered
                conversation.insert(Message(id=f"u{number}", role="user", content=(part,)))
                judge.hear(text)
            # A model that insists calls again what was asked about.
            name, arguments = last if chance.random() < 0.5 else (
                chance.choice(tuple(TOOLS)), arguments_of(chance)
            )  # fmt: skip
            last, judge.calling = (name, arguments), (name, spelled(arguments))
            call = ToolCall(f"c{number}", name, arguments)
            begun = tools.begin(TOOLS[name], call, is_recorded=chance.random() < 0.95)
            await begun.result()
            begun.take()
            judge.has_read |= name == "look" and judge.n_requests["look"] > 0
            if begun.question:
                tools.note_asked(begun)
                judge.asking = judge.calling
    await box.close()
    return judge


async def test_of_two_thousand_fuzzed_calls_none_does_what_the_author_did_not_write() -> None:
    judge = await judged(N_CALLS)
    assert +judge.found == Counter()
    assert all(judge.n_requests[name] >= 20 for name in TOOLS), judge.n_requests


def allow_all(arguments: Any, schema: Any) -> dict[str, Any]:
    return dict(arguments)


def merged(self: HttpTool, *given: Any) -> httpx.Request:
    """The query as it once was: what the model says replaces what the author wrote."""
    request = REQUEST(self, *given)
    left = {name: value for name, value in given[1].items() if isinstance(value, str)}
    request.url = request.url.copy_merge_params(left)
    return request


REQUEST = HttpTool._request
BROKEN: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "undeclared": (toolbox, "checked", allow_all),
    "overridden": (HttpTool, "_request", merged),
    "led astray": (http, "quote", lambda text, safe="": text),
    "unconfirmed": (consent.Consent, "needs", lambda self, tool: False),
}
UNASKED: list[tuple[Any, str, Callable[..., Any]]] = [
    (consent, "answer_of", lambda text, language: consent.Answer.YES),
    (consent.Consent, "observe_result", lambda self, tool: None),
    (consent, "canonical", lambda arguments: ""),
    (pending.PendingCall, "_note_told", lambda self: None),
]


@pytest.mark.parametrize("kind", BROKEN)
async def test_the_judge_finds_what_a_guard_that_is_gone_lets_through(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, name, instead = BROKEN[kind]
    monkeypatch.setattr(where, name, instead)
    if kind == "overridden":  # the check of the schema stands before it
        monkeypatch.setattr(toolbox, "checked", allow_all)
    n_calls = 1500 if kind == "led astray" else 300  # few of its arguments are paths
    assert (await judged(n_calls)).found[kind] > 0


@pytest.mark.parametrize("number", range(len(UNASKED)))
async def test_the_judge_finds_acts_that_nobody_allowed(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*UNASKED[number])
    assert (await judged(300)).found["unconfirmed"] > 0
