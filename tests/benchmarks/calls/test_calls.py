"""What was heard is read off the wire, word by word, for each way in which a reply is cut."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any, cast, get_args

import httpx
import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection

from audio.frames import RECOGNIZER_HZ
from benchmarks.backchannels import Verdict
from benchmarks.calls.ablation import ABLATIONS, ALL_OFF, ALL_ON, ablation_bars
from benchmarks.calls.human_turns import _onset_ms
from benchmarks.calls.overlapping_sounds import Sound
from benchmarks.calls.told_models import SENTENCES, Told
from benchmarks.calls.typed_call import TypedCall, TypedTurn
from benchmarks.heard_history import Cut, Sentence, bars_of, shares_of
from benchmarks.tool_turn import added_ms, gaps_ms
from clients.call.result import TurnResult
from clients.connection import RealtimeConnection
from tests.clients.mock_server import MemorySocket
from voiceloop.config import AheadPart, load_config

FRUIT = Sentence(("apples", "pears", "plums"), (200.0, 600.0, 1000.0), 1200.0)


def test_words_are_those_whose_middle_was_played_as_often_as_it_was() -> None:
    assert FRUIT.words_in((599.0, 0.0)) == ("apples",)
    assert FRUIT.words_in((600.0, 0.0)) == ("apples", "pears")
    assert FRUIT.words_in((1200.0, 0.0)) == FRUIT.words
    assert FRUIT.words_in((600.0, 600.0)) == FRUIT.words  # taken up where it was cut
    assert FRUIT.words_in((600.0, 700.0)) == ("apples", "pears", "pears", "plums")  # said again
    assert FRUIT.words_in((250.0, 300.0)) == ("apples", "plums")  # left out


def test_every_kind_of_cut_has_its_share_and_its_bars() -> None:
    assert shares_of(200) == {"truncate": 100, "barge_in": 50, "resumed": 50}
    assert min(shares_of(1).values()) == 1
    good = [
        Cut(kind, 1, (600.0, 0.0), ("a",), ("a",))
        for kind, n in shares_of(8).items()
        for _ in range(n)
    ]
    assert all(bar.holds for bar in bars_of(good, shares_of(8)))
    wrong = Cut("resumed", 1, (600.0, 0.0), ("a",), ("b", "c"))
    missed = [bar.name for bar in bars_of([*good, wrong], shares_of(8)) if not bar.holds]
    assert missed == ["history against heard, worst by resumed"]
    without = [cut for cut in good if cut.kind != "barge_in"]
    assert sum(not bar.holds for bar in bars_of(without, shares_of(8))) == 2


async def test_the_model_tells_what_it_was_shown_of_a_reply() -> None:
    told = Told()
    transport = httpx.ASGITransport(told.app())
    asked = [
        {"role": "user", "content": "caller0 0 1"},
        {"role": "assistant", "content": "Apples, pears,"},
        {"role": "assistant", "content": "plums."},
        {"role": "user", "content": "stop\ncaller0 1 0"},
    ]
    async with httpx.AsyncClient(transport=transport, base_url="http://told") as client:
        said = await client.post("/v1/chat/completions", json={"messages": asked})
        await client.post("/v1/chat/completions", json={"messages": asked[:1]})
        spoken = {"messages": [{"role": "user", "content": "how much"}]}
        nothing = await client.post("/v1/chat/completions", json=spoken)
    assert "Monday," in said.text and SENTENCES[0].startswith("Monday,")
    assert '"content"' not in nothing.text
    assert told.remembered("caller0 0 1", "caller0 1 0") == ("apples", "pears", "plums")
    assert told.remembered("caller0 0 1", "caller0 0 1") == ()


HZ = 16_000


TONE = (8000 * np.sin(2 * np.pi * 220 * np.arange(HZ // 2) / HZ)).astype(np.int16)


SOUND = Sound("tone", "interruption", TONE)


def verdict() -> Verdict:
    return Verdict(SOUND, onset_ms=600.0, over_ms=2000.0)


def test_what_was_taken_back_does_not_count() -> None:
    for release in ("resume", "go_on"):
        heard = verdict()
        heard.act("duck", 660.0)
        heard.act("hold", 740.0)
        heard.act(release, 1080.0)  # type: ignore[arg-type]
        assert (heard.ducked_ms, heard.held_ms) == (None, None)
        assert heard.n_ducks == 1 and heard.holds
        heard.act("hold", 1200.0)
        assert heard.n_ducks == 2
        heard.act("stop", 1400.0)
        assert (heard.ducked_ms, heard.held_ms, heard.stopped_ms) == (600.0, 600.0, 800.0)


def test_the_time_in_which_the_agent_is_quieter_is_of_all_its_ducks() -> None:
    heard = verdict()
    heard.act("duck", 660.0)
    heard.act("hold", 700.0)
    heard.act("unhold", 740.0)
    assert (heard.ducked_ms, heard.held_ms, heard.n_ducks) == (60.0, None, 1)
    heard.act("resume", 800.0)
    heard.act("duck", 1000.0)
    heard.end_duck(2000.0)
    assert heard.quieter_ms == 140.0 + 1600.0 and heard.n_ducks == 2


def test_a_server_takes_every_switch_and_every_switch_is_tried() -> None:
    tried = set()
    for variants in ABLATIONS.values():
        for variant in variants.values():
            tried |= set(load_config(environ=dict(variant.environment)).anticipation.off)
    assert tried == set(get_args(AheadPart))


def test_all_four_together_are_held_to_their_share() -> None:
    def summary(p50: float | None) -> dict[str, dict[str, float | None]]:
        return {"gap_ms": {"p50": p50}}

    [bar] = ablation_bars("smollm2", {ALL_ON: summary(300.0), ALL_OFF: summary(600.0)})
    assert bar.value == 0.5 and bar.holds
    [bar] = ablation_bars("smollm2", {ALL_ON: summary(None), ALL_OFF: summary(600.0)})
    assert not bar.holds
    assert ablation_bars("embedded", {}) == []


TURN = TurnResult(
    "price", "How much?", "how much", "Four.", (), (), 0.0, 1.0, 1.4, 2.0, 400.0, 440.0,
    cut_in=False, hesitates=False, hesitation_cut=False, answered=True, barge_in=None,
    waterfall=None,
)  # fmt: skip


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


CALLS = {"type": "response.function_call_arguments.done", "name": "get_price"}


def says(text: str) -> dict[str, Any]:
    return {"type": "response.output_audio_transcript.done", "transcript": text}


def done(status: str = "completed") -> dict[str, Any]:
    return {"type": "response.done", "response": {"status": status}}


async def turn(*events: dict[str, Any], hangs_up: bool = False) -> tuple[TypedTurn, list[str]]:
    """The turn that these events of a server make, and the types of what the caller sent."""
    down: asyncio.Queue[str | None] = asyncio.Queue()
    up: asyncio.Queue[str | None] = asyncio.Queue()
    for event in events:
        down.put_nowait(json.dumps(event))
    if hangs_up:
        down.put_nowait(None)
    socket = cast(ClientConnection, MemorySocket(down, up))
    found = await TypedCall(RealtimeConnection(socket, "memory")).turn("How much is a latte?")
    return found, [json.loads(up.get_nowait() or "{}")["type"] for _ in range(up.qsize())]


async def test_behind_a_line_and_a_call_the_answer_is_waited_for() -> None:
    found, _ = await turn(says("Let me look."), CALLS, done(), says("It's $4."), done())
    assert found == TypedTurn("Let me look. It's $4.", ("get_price",), False)


async def test_a_reply_that_failed_is_told_and_no_more_is_waited_for() -> None:
    found, _ = await turn(CALLS, done("failed"))
    assert found == TypedTurn("", ("get_price",), True)


MS = RECOGNIZER_HZ // 1000


def clip(*parts: tuple[int, float]) -> np.ndarray:
    """Square waves of (ms, dBFS) each."""
    return np.concatenate(
        [np.full(ms * MS, 32768.0 * 10.0 ** (dbfs / 20.0)).astype(np.int16) for ms, dbfs in parts]
    )


@pytest.mark.parametrize(
    ("parts", "word_ms", "onset_ms"),
    [
        (((400, -80.0), (400, -20.0)), 400.0, 400.0),
        (((400, -80.0), (400, -20.0)), 350.0, 400.0),  # aligned into the silence
        (((400, -80.0), (400, -20.0)), 450.0, 400.0),  # aligned late
        (((400, -50.0), (400, -20.0)), 400.0, 400.0),  # a floor within 35 dB of the peak
        (((360, -50.0), (40, -48.0), (400, -20.0)), 360.0, 360.0),  # a soft first sound over it
    ],
)
def test_a_barge_in_counts_from_the_first_sound_of_the_first_word(
    parts: tuple[tuple[int, float], ...], word_ms: float, onset_ms: float
) -> None:
    assert _onset_ms(clip(*parts), word_ms) == pytest.approx(onset_ms, abs=10.0)
