"""One call for all who ask the same thing at the same time, and only so many at once."""

from __future__ import annotations

import asyncio

import pytest

from voiceloop.tools.executor import ToolFailed
from voiceloop.tools.single_flight import SingleFlight

pytestmark = pytest.mark.virtual_time


class Service:
    """Answers after a second."""

    def __init__(self) -> None:
        self.n_begun = self.n_cancelled = 0

    async def ask(self) -> str:
        self.n_begun += 1
        try:
            await asyncio.sleep(1.0)
        except asyncio.CancelledError:
            self.n_cancelled += 1
            raise
        return "noon"

    async def fail(self) -> str:
        await self.ask()
        raise ToolFailed("expected noon, found none", told="failed")


async def test_calls_at_the_same_time_are_one() -> None:
    service, flights = Service(), SingleFlight()
    found = await asyncio.gather(*(flights.run("time", service.ask) for _ in range(5)))
    assert found == ["noon"] * 5 and service.n_begun == 1
    await flights.run("time", service.ask)
    assert service.n_begun == 2


async def test_all_of_them_are_told_of_a_failure() -> None:
    service, flights = Service(), SingleFlight()
    asked = (flights.run("time", service.fail) for _ in range(3))
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each) for each in found] == [ToolFailed] * 3 and service.n_begun == 1


async def test_the_first_may_leave_without_the_others() -> None:
    service, flights = Service(), SingleFlight()
    first, second = (asyncio.create_task(flights.run("time", service.ask)) for _ in range(2))
    await asyncio.sleep(0.5)
    first.cancel()
    assert await second == "noon" and service.n_begun == 1 and service.n_cancelled == 0
    assert first.cancelled()


async def test_with_the_last_the_call_is_cancelled_and_the_next_one_is_another() -> None:
    service, flights = Service(), SingleFlight()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await flights.run("time", service.ask)
    assert await flights.run("time", service.ask) == "noon"
    assert service.n_begun == 2 and service.n_cancelled == 1


async def test_who_waits_when_the_tools_close_is_told_so() -> None:
    service, flights = Service(), SingleFlight()
    asked = asyncio.create_task(flights.run("time", service.ask))
    await asyncio.sleep(0.5)
    await flights.close()
    with pytest.raises(ToolFailed, match="closed"):
        await asked
