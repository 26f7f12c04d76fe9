"""The caller of the peers' benchmark and of the panel: when it begins, what answers a turn."""

import asyncio
from types import SimpleNamespace

import numpy as np

from benchmarks.calls.human_turns import HumanTurn
from benchmarks.peers import call as peer_call
from benchmarks.peers.call import QUIET_S, Heard, PeerCall
from clients.connection import RATE_HZ


def test_a_caller_begins_when_the_agent_has_said_its_greeting(monkeypatch):
    now_s = [100.0]

    async def sleep(seconds):
        now_s[0] += seconds

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(peer_call, "monotonic", lambda: now_s[0])
    call = PeerCall(None, None, seed=0)
    call._playout.push("agent", np.full(3 * RATE_HZ, 9000, np.int16), 100.5)
    asyncio.run(call._greeted())
    assert now_s[0] >= 103.5 + QUIET_S


def test_an_answer_that_a_later_sound_interrupts_is_the_answer_all_the_same():
    loud = np.full(RATE_HZ, 9000, np.int16)
    turn = HumanTurn("a", "anna", "plain", np.zeros(16_000, np.int16), 0.0, 1000.0, ())
    call = PeerCall(SimpleNamespace(told=[]), None, seed=0)
    call._pieces = [Heard(10.2, loud), Heard(12.0, None), Heard(15.0, loud)]
    call._audible = [10.2, 15.0]
    gap_ms = call._measured(turn, "plain", 9.0, 10.0, until=11.5).gap_ms
    assert round(gap_ms) == 200
    taken_back = call._measured(turn, "plain", 9.0, 10.0)  # it was no answer
    assert round(taken_back.gap_ms) == 5000
