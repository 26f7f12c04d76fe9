"""The tools that an agent offers, held against those that scenarios want called.

A mistyped name would make a scenario fail for ever, and look like the agent's fault.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Sequence

from clients.connection import RealtimeConnection
from clients.errors import ConnectionFailed, ScenarioError
from clients.evaluate.scenario import Scenario

BEGIN_S = 10.0  # a server sends the session unasked, as the first event


async def check_calls(scenarios: Sequence[Scenario], url: str, key: str | None) -> None:
    """Raises: ScenarioError: one wants a tool called that is not offered. ConnectionFailed."""
    wanted = [(one.name, name) for one in scenarios for name in _expected_in(one)]
    offered = await _offered(url, key) if wanted else None
    if offered is None:
        return
    for scenario, name in wanted:
        if name not in offered:
            near = difflib.get_close_matches(name, offered, n=1)
            listed = ", ".join(offered) or "none"
            nearest = f"; the nearest is {near[0]!r}" if near else ""
            raise ScenarioError(
                f"scenario {scenario!r}: expected calls of tools that the agent offers ({listed}), "
                f"found {name!r}{nearest}"
            )


def _expected_in(scenario: Scenario) -> Iterable[str]:
    expected = (scenario.expected, *(turn.expected for turn in scenario.turns))
    return dict.fromkeys(call.name for one in expected for call in one.calls)


async def _offered(url: str, key: str | None) -> tuple[str, ...] | None:
    """Names of the tools of a session as it begins; None: it does not tell all of them.

    Raises: ConnectionFailed.
    """
    connection = await RealtimeConnection.open(url, key=key)
    try:
        async with asyncio.timeout(BEGIN_S):
            async for received in connection.events():
                if received.type == "session.created":
                    return _named_in(received.event.get("session"))
    except TimeoutError:
        pass
    finally:
        await connection.close()
    raise ConnectionFailed(f"expected session.created from {url}, found none")


def _named_in(session: object) -> tuple[str, ...] | None:
    tools = session.get("tools") if isinstance(session, dict) else None
    if not isinstance(tools, list):
        return None
    names = [tool.get("name") if isinstance(tool, dict) else None for tool in tools]
    # One without a name stands for a server of tools, which lists them later.
    return None if None in names else tuple(map(str, names))
