"""What was heard is read off the wire, word by word, for each way in which a reply is cut."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import httpx
import numpy as np

from benchmarks.backchannels import Verdict
from benchmarks.calls.ablation import (
    ABLATIONS,
    AGENT,
    ALL_OFF,
    ALL_ON,
    ANY_BRAIN,
    BRAINS,
    ablation_bars,
)
from benchmarks.calls.overlapping_sounds import Sound
from benchmarks.calls.remote_brain import PROMPT_TOKENS, long_agent
from benchmarks.calls.told_models import SENTENCES, Told
from benchmarks.heard_history import Cut, Sentence, bars_of, shares_of
from voiceloop.config import AheadPart, Config, load_config
from voiceloop.models.presets import resolve_agent

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
    assert "Monday." in said.text and SENTENCES[0].startswith("Monday.")
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


def test_a_server_takes_every_switch_and_every_switch_is_tried() -> None:
    tried = set()
    for variants in ABLATIONS.values():
        for variant in variants.values():
            tried |= set(load_config(environ=dict(variant.environment)).anticipation.off)
    assert tried == set(get_args(AheadPart))


def test_three_brains_are_tried_each_with_every_switch_that_acts_on_it(tmp_path: Path) -> None:
    for name in BRAINS.values():
        tried = {part for one in ABLATIONS[name].values() for part in one.environment.values()}
        assert set(ANY_BRAIN) <= tried
    agent = resolve_agent(Config(agent=long_agent(AGENT, tmp_path / "agent.toml")))
    n_words = len(agent.instructions.split())
    assert 0.7 * PROMPT_TOKENS < n_words < PROMPT_TOKENS and agent.greeting


def test_all_four_together_are_held_to_their_share() -> None:
    def summary(p50: float | None) -> dict[str, dict[str, float | None]]:
        return {"gap_ms": {"p50": p50}}

    [bar] = ablation_bars("smollm2", {ALL_ON: summary(300.0), ALL_OFF: summary(600.0)})
    assert bar.value == 0.5 and bar.holds
    [bar] = ablation_bars("smollm2", {ALL_ON: summary(None), ALL_OFF: summary(600.0)})
    assert not bar.holds
    assert ablation_bars("embedded", {}) == []
