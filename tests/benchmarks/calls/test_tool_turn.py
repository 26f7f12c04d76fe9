"""What a tool adds to the gap: the agents that are compared, the service, and which turns count."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from benchmarks.tool_turn import ANSWERS, added_ms, agent_file, gaps_ms, slow_service
from clients.call.result import TurnResult
from voiceloop.agent_file import load_agent

TURN = TurnResult(
    "price", "How much?", "how much", "Four.", (), (), 0.0, 1.0, 1.4, 2.0, 400.0, 440.0,
    cut_in=False, hesitates=False, hesitation_cut=False, answered=True, barge_in=None,
    waterfall=None,
)  # fmt: skip


def test_both_agents_look_up_the_same_things_and_differ_in_where(tmp_path: Path) -> None:
    agents = []
    for index, url in enumerate((None, "http://127.0.0.1:9")):
        path = tmp_path / f"{index}.toml"
        path.write_text(agent_file(url), encoding="utf-8")
        agents.append(load_agent(path))
    table, service = agents
    for own, asked in zip(table.tools, service.tools, strict=True):
        assert json.loads(own.result or "") == ANSWERS[own.name] and own.side_effect_free
        assert replace(own, result=None, url=asked.url) == asked and asked.url is not None
        assert asked.url.endswith(own.name)


async def test_the_service_answers_each_call_with_what_its_tool_knows() -> None:
    async with slow_service(0) as url, httpx.AsyncClient() as client:
        for name, answer in ANSWERS.items():
            told = await client.post(f"{url}/{name}", json={"item": "carrot cake"})
            assert told.json() == answer


def test_only_turns_that_were_answered_with_what_the_tool_knows_count() -> None:
    slower = replace(TURN, gap_ms=500.0)
    others = [
        replace(TURN, gap_ms=9.0, missing=("four",)),
        replace(TURN, gap_ms=9.0, cut_in=True),
        replace(TURN, gap_ms=None),
    ]
    turns = {"none": [TURN, *others], "tool": [slower, *others], "table": others}
    assert gaps_ms(turns["none"]) == [400.0]
    assert added_ms(turns, "tool") == pytest.approx(100.0)
    assert added_ms(turns, "table") is None
