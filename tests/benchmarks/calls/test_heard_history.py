"""What was heard is read off the wire, word by word, for each way in which a reply is cut."""

from __future__ import annotations

import base64
import random

import httpx
import numpy as np

from benchmarks.calls.cutting_caller import Playing
from benchmarks.calls.told_models import SENTENCES, Told
from benchmarks.heard_history import Cut, Sentence, bars_of, places, shares_of
from clients.connection import RATE_HZ, Received

FRUIT = Sentence(("apples", "pears", "plums"), (200.0, 600.0, 1000.0), 1200.0)


def test_words_are_those_whose_middle_was_played_as_often_as_it_was() -> None:
    assert FRUIT.words_in((599.0, 0.0)) == ("apples",)
    assert FRUIT.words_in((600.0, 0.0)) == ("apples", "pears")
    assert FRUIT.words_in((1200.0, 0.0)) == FRUIT.words
    assert FRUIT.words_in((600.0, 600.0)) == FRUIT.words  # taken up where it was cut
    assert FRUIT.words_in((600.0, 700.0)) == ("apples", "pears", "pears", "plums")  # said again
    assert FRUIT.words_in((250.0, 300.0)) == ("apples", "plums")  # left out


def test_other_words_are_wrong_though_they_are_as_many() -> None:
    def off_by(remembered: tuple[str, ...]) -> int:
        return Cut("truncate", 1, (600.0, 0.0), ("apples", "pears"), remembered).off_by

    assert off_by(("apples", "pears")) == 0
    assert off_by(("apples", "plums")) == 1
    assert off_by(("pears", "plums")) == 2
    assert off_by(()) == 2
    assert off_by(("apples", "pears", "plums")) == 1


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


def test_replies_are_cut_while_there_is_something_left_to_cut() -> None:
    cut_ms = [after_ms for _, _, after_ms in places(random.Random(0), [FRUIT], 200)]
    assert 300.0 <= min(cut_ms) < 320.0
    assert 780.0 < max(cut_ms) <= 800.0


def audio(item_id: str, ms: float, at: float) -> Received:
    data = base64.b64encode(np.ones(int(RATE_HZ * ms / 1000), "<i2").tobytes()).decode()
    event = {"type": "response.output_audio.delta", "item_id": item_id, "delta": data}
    return Received(event, at)


def test_what_was_played_is_all_that_came_or_what_a_flush_left_of_it() -> None:
    started = {"type": "input_audio_buffer.speech_started"}
    held, flushed = Playing(), Playing()
    for playing in (held, flushed):
        playing.take(audio("a", 400.0, 10.0))  # plays from 10.04 to 10.44
    held.take(Received(started, 11.0))
    flushed.take(Received(started, 10.24))
    assert held.played_ms == 400.0
    assert flushed.played_ms == 200.0
    flushed.take(audio("b", 100.0, 12.0))
    assert (flushed.played_ms, flushed.sent_ms[1]) == (200.0, 100.0)


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
