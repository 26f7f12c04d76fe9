"""What is switched off in which server, and what all of it together is held to."""

from __future__ import annotations

from typing import get_args

import pytest

from benchmarks.calls.ablation import ABLATIONS, AGENT, ALL_OFF, ALL_ON, ablation_bars, without
from voiceloop.agent_file import load_agent
from voiceloop.config import AheadPart, load_config


def test_the_real_model_has_each_of_four_off_and_all_of_them() -> None:
    variants = ABLATIONS["smollm2"]
    assert variants[ALL_ON].environment == {}
    assert variants[ALL_OFF].environment == {
        "VOICELOOP_ANTICIPATION_OFF": "prefill,prefix_cache,speculative_reply",
        "VOICELOOP_ENGINE_DRAFTER": "none",
    }
    assert variants["no prefill"].environment == {"VOICELOOP_ANTICIPATION_OFF": "prefill"}
    assert variants["no speculative decoding"].environment == {"VOICELOOP_ENGINE_DRAFTER": "none"}
    [arguments] = {one.arguments for one in variants.values()}
    assert arguments[-4:-2] == ("--llm-adapter", "none")  # the model as it is published


@pytest.mark.parametrize("name", ["embedded", "ends"])
@pytest.mark.parametrize("mechanism", ["early_start", "p_voice", "p_end"])
def test_what_ends_a_turn_is_taken_apart_by_itself_and_with_all(name: str, mechanism: str) -> None:
    variants = ABLATIONS[name]
    assert variants[f"no {mechanism.replace('_', ' ')}"].environment == without(mechanism)
    assert mechanism in variants[ALL_OFF].environment["VOICELOOP_ANTICIPATION_OFF"]


def test_a_server_takes_every_switch_and_every_switch_is_tried() -> None:
    tried = set()
    for variants in ABLATIONS.values():
        for variant in variants.values():
            tried |= set(load_config(environ=dict(variant.environment)).anticipation.off)
    assert tried == set(get_args(AheadPart))


def test_its_agent_asks_for_nothing_that_the_model_lacks() -> None:
    agent = load_agent(AGENT)
    assert not agent.tools
    assert len(agent.instructions) > 2000  # long enough that reading it twice is heard


def test_all_four_together_are_held_to_their_share() -> None:
    def summary(p50: float | None) -> dict[str, dict[str, float | None]]:
        return {"gap_ms": {"p50": p50}}

    [bar] = ablation_bars("smollm2", {ALL_ON: summary(300.0), ALL_OFF: summary(600.0)})
    assert bar.value == 0.5 and bar.holds
    [bar] = ablation_bars("smollm2", {ALL_ON: summary(None), ALL_OFF: summary(600.0)})
    assert not bar.holds
    assert ablation_bars("embedded", {}) == []
