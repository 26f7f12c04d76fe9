"""Callers play scenarios to a real server: typed, spoken, with tools, and with a judge."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from clients.connection import Received
from clients.errors import ConnectionFailed, EndpointError, ScenarioError
from clients.evaluate import command, judge, offered_tools
from clients.evaluate.judge import Judge
from clients.evaluate.outcome import Called, Played, PlayedTurn, failures
from clients.evaluate.report import has_passed, report_of
from clients.evaluate.scenario import (
    Budgets,
    Expectation,
    ExpectedCall,
    ScenarioFile,
    load_scenarios,
)
from clients.evaluate.typed_caller import play_typed
from tests.fakes import EnergyVad, FakeLanguageModel, FakeRecognizer, Reply, instant_backends
from tests.serving import serving
from voiceloop.agent import AgentConfig, AgentTool
from voiceloop.agent_file import shipped_agent
from voiceloop.agents.clinic_service import Diary
from voiceloop.agents.clinic_service import build_app as clinic_app
from voiceloop.backends import Cascade, ChatMessage, NamedModel, ToolCall
from voiceloop.config import Config, Limits
from voiceloop.server.app import Gateway, build_app

SCENARIOS = Path(__file__).resolve().parents[3] / "voiceloop" / "agents" / "scenarios"


@asynccontextmanager
async def agent_server(
    agent: AgentConfig, model: FakeLanguageModel, heard: tuple[str, ...] = ()
) -> AsyncIterator[str]:
    config = Config(limits=Limits(admit_by_load=False))
    backends = instant_backends(recognizer=FakeRecognizer(heard), language_model=model)
    gateway = Gateway(config, agent, backends)
    gateway.calls.new_vad = EnergyVad
    await gateway.calls.toolbox.start()
    try:
        async with serving(build_app(gateway), config) as port:
            yield f"ws://127.0.0.1:{port}"
    finally:
        await gateway.calls.toolbox.close()


async def played(url: str, file: ScenarioFile, *only: str, spoken: bool = False) -> list[Played]:
    chosen = argparse.Namespace(
        agent=url, config=None, preset=None, key=None, spoken=spoken, voice="default",
        compare=(),
    )  # fmt: skip
    scenarios = command.chosen_of(file, list(only))
    found: list[Played] = []
    await command._play_all(chosen, file, scenarios, None, lambda done: None, found)
    return found


def file_of(tmp_path: Path, text: str) -> ScenarioFile:
    path = tmp_path / "scenarios.toml"
    path.write_text(text, encoding="utf-8")
    return load_scenarios(path)


def calling(tool: str, /, **arguments: str) -> Reply:
    return Reply("", (ToolCall(f"call_{tool}", tool, json.dumps(arguments)),))


def iris(prompt: tuple[ChatMessage, ...]) -> str | Reply:
    """A model that does what the clinic's instructions ask."""
    last = prompt[-1]
    if last.role == "tool":
        return f"The diary says {last.content}. Shall I book it?"
    match last.content.lower():
        case text if "free on" in text or "and on" in text:
            return calling("find_free_slots", day=text.rstrip("?").split()[-1])
        case text if "okafor" in text:
            return calling("book_appointment", day="Tuesday", time="11 am", name="Teresa Okafor")
        case text if "call me back" in text:
            return "Of course. What is your phone number?"
        case text if "that's right" in text:
            return "Somebody will call." if "phone = 5550142116" in last.behind else "Who are you?"
        case text if "yes" in text:
            return "It is done."
        case _:
            return "Do not eat for eight hours before it."


async def clinic(call: Callable[[str], Any]) -> tuple[Diary, Any]:
    """The agent that ships, its service beside it, and what `call` does with its address."""
    diary = Diary()
    async with serving(clinic_app(diary), Config()) as port:
        agent = shipped_agent("clinic")
        tools = tuple(
            replace(tool, url=(tool.url or "").replace("127.0.0.1:8090", f"127.0.0.1:{port}"))
            for tool in agent.tools
        )
        agent = replace(agent, greeting="", tools=tools, knowledge=())
        async with agent_server(agent, FakeLanguageModel(iris)) as url:
            return diary, await call(url)


async def test_each_part_of_two_models_is_played_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small, large = FakeLanguageModel(["It is four."]), FakeLanguageModel(["It is five."])
    backends = instant_backends(
        language_model=small,
        models={"": NamedModel(small), "big": NamedModel(large)},
        cascade=Cascade("", "big"),
    )
    file = tmp_path / "scenarios.toml"
    text = "[[scenarios]]\nname = 'price'\nlines = ['How much is a latte?']\ncontains = ['five']\n"
    file.write_text(text, encoding="utf-8")
    gateway = Gateway(Config(), AgentConfig(), backends)
    async with serving(build_app(gateway), gateway.config) as port:
        chosen = argparse.Namespace(
            agent=f"ws://127.0.0.1:{port}/v1/realtime", config=None, preset=None, key=None,
            spoken=False, judge=None, only=[], compare=("small", "large"), scenarios=file,
            json=None,
        )  # fmt: skip
        code = await asyncio.to_thread(command.run_evaluate, chosen)
    said = capsys.readouterr().out
    assert code == 1 and "price [small]" in said
    rows = {line.split()[0]: line.split()[1:3] for line in said.splitlines() if "  " in line}
    assert rows["small"] == ["0", "1"] and rows["large"] == ["1", "0"]


async def test_the_clinic_passes_its_scenarios_with_its_service_beside_it() -> None:
    file = load_scenarios(SCENARIOS / "clinic.toml")
    diary, found = await clinic(lambda url: played(url, file))
    assert [failures(one) for one in found] == [[], [], [], []]
    free, booked, called_back, documents = found
    assert free.turns[0].calls == [Called("find_free_slots", {"day": "friday"})]
    assert "10 am" in free.turns[0].answer and free.turns[0].wait_ms is not None
    assert [one.turn.say for one in booked.turns][-1] == "Yes, please."  # where it asks
    assert len(booked.turns) == 2 and '"status": "booked"' in booked.turns[0].answer
    assert diary.free("tuesday") == "none"
    assert called_back.turns[-1].answer == "Somebody will call."
    assert not documents.turns[0].calls


async def test_what_the_agent_does_wrong_is_found() -> None:
    def wrong(prompt: tuple[ChatMessage, ...]) -> str | Reply:
        return "I do not know." if prompt[-1].role != "tool" else "Well."

    file = load_scenarios(SCENARIOS / "clinic.toml")
    agent = replace(shipped_agent("clinic"), knowledge=())
    async with agent_server(agent, FakeLanguageModel(wrong)) as url:
        [free] = await played(url, file, "what is free")
    assert any("expected a call of find_free_slots" in one for one in failures(free))


async def test_a_tool_that_is_left_to_the_client_gets_the_result_of_the_file(
    tmp_path: Path,
) -> None:
    def model(prompt: tuple[ChatMessage, ...]) -> str | Reply:
        if prompt[-1].role == "tool":
            return f"Ready {json.loads(prompt[-1].content)['ready']}."
        return calling("place_order", item="latte")

    agent = AgentConfig(tools=(AgentTool("place_order"),))
    file = file_of(
        tmp_path,
        "results = { place_order = { ready = 'in ten minutes' } }\n"
        "[[scenarios]]\nname = 'order'\nlines = ['A latte, please.']\n"
        "contains = ['ready in ten minutes']\ncalls = [{ name = 'place_order' }]\n",
    )
    async with agent_server(agent, FakeLanguageModel(model)) as url:
        [one] = await played(url, file)
    assert failures(one) == []


@pytest.mark.parametrize(
    ("tools", "named", "found"),
    [
        (("place_order", "cancel"), "place_oder", "'place_oder'; the nearest is 'place_order'"),
        ((), "place_order", r"\(none\), found 'place_order'$"),
    ],
)
async def test_a_tool_that_the_agent_does_not_offer_is_told_before_anything_is_played(
    tmp_path: Path, tools: tuple[str, ...], named: str, found: str
) -> None:
    agent = AgentConfig(tools=tuple(AgentTool(name) for name in tools))
    file = file_of(
        tmp_path,
        "[[scenarios]]\nname = 'hi'\nlines = ['hi']\n"
        "[[scenarios]]\nname = 'order'\n[[scenarios.turns]]\nsay = 'A latte.'\n"
        f"calls = [{{ name = '{named}' }}]\n",
    )
    async with agent_server(agent, FakeLanguageModel(["Well."])) as url:
        with pytest.raises(ScenarioError, match=f"^scenario 'order': .*{found}"):
            await played(url, file)
        assert len(await played(url, file, "hi")) == 1


@pytest.mark.parametrize("session", [{}, {"tools": [{"type": "mcp", "server_label": "shop"}]}])
def test_a_session_that_does_not_name_all_its_tools_is_no_reason_to_refuse(session: Any) -> None:
    assert offered_tools._named_in(session) is None


async def test_a_scenario_that_cannot_be_played_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_of(
        tmp_path, "".join(f"[[scenarios]]\nname = '{n}'\nlines = ['hi']\n" for n in "abc")
    )
    opened, real = [], command.RealtimeConnection.open

    async def open_(*arguments: Any, **options: Any) -> Any:
        opened.append(arguments)
        if len(opened) == 2:
            raise ConnectionFailed("expected room for a call, found none")
        return await real(*arguments, **options)

    monkeypatch.setattr(command.RealtimeConnection, "open", open_)
    async with agent_server(AgentConfig(), FakeLanguageModel(["Hello."])) as url:
        found = await played(url, file)
    assert [bool(failures(one)) for one in found] == [False, True, False]
    assert "found none" in found[1].broken


class Wire:
    """A server that says something by itself before it answers, with what was said before."""

    ended_by = ""

    def __init__(self) -> None:
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._n_responses = 0

    async def send(self, event: dict[str, Any]) -> None:
        if event["type"] == "response.create":
            self._respond("Are you still there?", None)
            self._respond(f"Answer {self._n_responses // 2}.", event["response"]["metadata"])

    def _respond(self, text: str, metadata: Any) -> None:
        self._n_responses += 1
        id_ = f"resp_{self._n_responses}"
        response = {"id": id_, "metadata": metadata}
        self._events.put_nowait({"type": "response.created", "response": response})
        said = {"type": "response.output_text.delta", "response_id": id_, "delta": text}
        self._events.put_nowait(said)
        self._events.put_nowait({"type": "response.done", "response": response})

    async def events(self) -> AsyncIterator[Received]:
        while True:
            yield Received(await self._events.get(), 0.0)

    async def close(self) -> None: ...


def test_an_interruption_leaves_the_report_of_what_was_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(f'[[scenarios]]\nname = "{name}"\nlines = ["hi"]\n' for name in "abc")
    file_of(tmp_path, text)
    done: list[str] = []

    async def play(chosen: Any, scenario: Any, *_: Any) -> Played:
        if done:
            raise KeyboardInterrupt
        done.append(scenario.name)
        return Played(scenario)

    monkeypatch.setattr(command, "_play", play)
    chosen = argparse.Namespace(
        agent="ws://127.0.0.1:9", config=None, preset=None, key=None, spoken=False,
        judge=None, only=[], compare=(), scenarios=tmp_path / "scenarios.toml",
        json=tmp_path / "report.json",
    )  # fmt: skip
    assert command.run_evaluate(chosen) == 130
    report = json.loads(chosen.json.read_text())
    assert [one["name"] for one in report["scenarios"]] == ["a"]
    with pytest.raises(KeyboardInterrupt):  # nothing was played
        command.run_evaluate(chosen)


async def test_a_typed_turn_is_answered_by_the_response_that_it_asked_for(tmp_path: Path) -> None:
    file = file_of(tmp_path, "[[scenarios]]\nname = 'x'\nlines = ['one', 'two', 'three']\n")
    one = await play_typed(cast(Any, Wire()), file.scenarios[0], {})
    assert [turn.answer for turn in one.turns] == ["Answer 0.", "Answer 1.", "Answer 2."]


def test_a_cut_a_missing_answer_and_a_call_of_no_turns_are_failures(tmp_path: Path) -> None:
    [scenario] = file_of(tmp_path, "[[scenarios]]\nname = 'x'\nlines = ['hi']\n").scenarios
    cut = PlayedTurn(scenario.turns[0], "Hello.", heard="hi", is_cut=True)
    mute = PlayedTurn(scenario.turns[0], calls=[Called("order", {})])
    good = PlayedTurn(scenario.turns[0], "Hello.")
    found = [failures(Played(scenario, turns)) for turns in ([cut], [mute], [], [good])]
    assert ["cut in" in found[0][0], "an answer" in found[1][0], "a turn" in found[2][0]] == [
        True
    ] * 3
    assert [len(one) for one in found] == [1, 1, 1, 0]
    report = report_of([Played(scenario, [cut, good])], Budgets(), "spoken")
    assert report["cut_ins"] == 1 and not has_passed(report)


@pytest.mark.parametrize(
    ("heard", "wait_ms", "calls", "missed"),
    [
        (None, None, (), ["chat"]),  # and not voice: nobody spoke
        ("hi", None, (), ["voice"]),
        (None, 90.0, (), []),
        (None, 110.0, (), ["chat"]),
        (None, 90.0, (ExpectedCall("order", {}),), ["tool"]),
    ],
)
def test_a_budget_that_nothing_was_held_against_is_missed(
    tmp_path: Path, heard: str | None, wait_ms: float | None, calls: Any, missed: list[str]
) -> None:
    [scenario] = file_of(tmp_path, "[[scenarios]]\nname = 'x'\nlines = ['hi']\n").scenarios
    scenario = replace(scenario, expected=Expectation(calls=calls))
    one = Played(scenario, [PlayedTurn(scenario.turns[0], "Hello.", heard, wait_ms=wait_ms)])
    assert report_of([one], Budgets(100.0, 100.0, 100.0), "x")["budgets_missed"] == missed


@pytest.mark.call
async def test_a_spoken_caller_is_heard_and_answered_and_leaves_out_what_nobody_asked(
    tmp_path: Path,
) -> None:
    file = file_of(
        tmp_path,
        "[[scenarios]]\nname = 'x'\n"
        "[[scenarios.turns]]\nsay = 'When do you open?'\ncontains = ['at nine']\n"
        "[[scenarios.turns]]\nwhen = ['which day']\nsay = 'On Friday.'\n"
        "[[scenarios.turns]]\nsay = 'Thank you.'\n",
    )
    model = FakeLanguageModel(("We open at nine.",), p_end_of_turn=lambda text: 1.0)
    heard = ("when do you open", "thank you")
    async with agent_server(AgentConfig(), model, heard) as url:
        [one] = await played(url, file, spoken=True)
    assert failures(one) == []
    assert [turn.heard for turn in one.turns] == list(heard)
    assert all(turn.wait_ms is not None and turn.wait_ms > 0 for turn in one.turns)


class Service:
    """A chat endpoint that answers with this."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, status: int, body: Any) -> None:
        self.asked: list[dict[str, Any]] = []

        def answer(request: httpx.Request) -> httpx.Response:
            self.asked.append(json.loads(request.content))
            return httpx.Response(status, json=body)

        real = httpx.AsyncClient
        transport = httpx.MockTransport(answer)
        monkeypatch.setattr(
            judge.httpx, "AsyncClient", lambda **options: real(transport=transport, **options)
        )


async def test_the_judge_is_asked_one_question_of_the_transcript(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = {"choices": [{"message": {"content": " Yes. It was polite."}}]}
    service = Service(monkeypatch, 200, body)
    verdict = await Judge("http://localhost:1/v1").verdict("Polite?", "Caller: hi\nAgent: hello")
    assert verdict == "Yes. It was polite."
    [asked] = service.asked
    assert asked["temperature"] == 0
    assert asked["messages"][1]["content"].startswith("Question: Polite?")


@pytest.mark.parametrize(("status", "body"), [(500, {}), (200, {}), (200, {"choices": []})])
async def test_a_judge_that_does_not_answer_has_not_said_yes(
    monkeypatch: pytest.MonkeyPatch, status: int, body: Any, tmp_path: Path
) -> None:
    Service(monkeypatch, status, body)
    asked = Judge("http://localhost:1/v1")
    with pytest.raises(EndpointError, match="expected http://localhost:1/v1/chat/completions"):
        await asked.verdict("Polite?", "")
    text = "[[scenarios]]\nname = 'x'\nlines = ['hi']\njudge = 'Polite?'\n"
    [scenario] = file_of(tmp_path, text).scenarios
    one = Played(scenario)
    one.verdict = await command._verdict(asked, one)
    assert any("the judge: expected" in failure for failure in failures(one))


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_scenarios_that_ship_are_of_agents_that_ship(path: Path) -> None:
    file = load_scenarios(path)
    tools = {tool.name for tool in shipped_agent(path.stem).tools}
    named = {
        call.name
        for scenario in file.scenarios
        for expected in (scenario.expected, *(turn.expected for turn in scenario.turns))
        for call in expected.calls
    }
    assert named <= tools and set(file.results) <= tools
