"""The caller of the peers' benchmark and of the panel: when it begins."""

import asyncio

import numpy as np

from benchmarks.peers import call as peer_call
from benchmarks.peers.call import QUIET_S, PeerCall
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
