"""What the scripted services of the command know and say; the command itself on a few replies."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks.any_brain.__main__ import main
from benchmarks.any_brain.memory import REMEMBERS, Forgetful
from benchmarks.any_brain.thoughts import ANSWER, SECRET, stream_of
from benchmarks.long_call.call import ASKED, PLANTED, recalled
from voiceloop.remote.chat_answer import ChatAnswer


def said(service: Forgetful, *messages: tuple[str, str]) -> str:
    asked = {"messages": [{"role": role, "content": text} for role, text in messages]}
    answer = service.answer_to("/v1/chat/completions", json.dumps(asked).encode())
    if answer.status != 200:
        return str(json.loads(answer.pieces[0])["error"]["code"])
    return str(json.loads(answer.pieces[0][6:])["choices"][0]["delta"]["content"])


def test_a_forgetful_model_says_what_its_prompt_holds_and_not_what_it_said_before() -> None:
    service = Forgetful(4096, tells_window=True)
    told, asked = ("user", PLANTED[0].caller), ("user", ASKED[0])
    before = said(service, told, asked)
    assert recalled([PLANTED[0]], before) == [True]
    assert before.startswith(REMEMBERS)
    assert not said(service, ("assistant", before), asked).startswith(REMEMBERS)
    assert said(service, ("user", "talk " * 4096), asked) == "context_length_exceeded"


def test_no_question_gives_its_answer_away() -> None:
    assert len(ASKED) == len(PLANTED)
    for planted, question in zip(PLANTED, ASKED, strict=True):
        assert recalled([planted], question) == [False]


def test_streams_think_and_answer_and_are_the_same_again() -> None:
    streams = [stream_of(random.Random(seed)) for seed in range(200)]
    assert streams == [stream_of(random.Random(seed)) for seed in range(200)]
    assert sum(SECRET in json.dumps(deltas) for deltas, _ in streams) > 100
    for deltas, answers in streams:
        answer = ChatAnswer()
        for delta in deltas:
            answer.add({"choices": [{"delta": delta}]})
        answer.add({"choices": [{"delta": {}, "finish_reason": "stop" if answers else "length"}]})
        answer.finish()
        assert SECRET not in answer.text and (ANSWER in answer.text) is answers


@pytest.mark.call
def test_a_quick_part_runs_in_served_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["any_brain", "--quick", "--check", "--part", "thoughts"])
    assert main() == 0
    assert "streams that let a thought out" in capsys.readouterr().out
