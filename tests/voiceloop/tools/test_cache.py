"""How long a result stands, what outdates it, and how much of them is kept."""

from __future__ import annotations

from tests.hand_clock import HandClock
from voiceloop.tools.cache import ENTRY_BYTES, CallKey, ResultCache


def key(arguments: str = "{}", *, source: str = "shop", tenant: str = "") -> CallKey:
    return CallKey(source, "price", tenant, arguments)


def test_a_result_stands_for_its_lifetime_and_no_longer() -> None:
    time = HandClock(0.0)
    cache = ResultCache(time)
    cache.put(key(), "3", 10.0, 0)
    cache.put(key("{1}"), "4", 0.0, 0)
    time.now_s = 9.9
    assert cache.get(key()) == "3" and cache.get(key("{1}")) is None
    time.now_s = 10.0
    assert cache.get(key()) is None


def test_a_side_effect_outdates_the_results_of_its_source_and_those_under_way() -> None:
    cache = ResultCache(HandClock(0.0))
    version = cache.version("shop")
    cache.put(key(), "3", 10.0, version)
    cache.put(key(source="other"), "9", 10.0, cache.version("other"))
    cache.forget("shop")
    assert cache.get(key()) is None and cache.get(key(source="other")) == "9"
    cache.put(key(), "3", 10.0, version)  # asked before, answered after
    assert cache.get(key()) is None
    cache.put(key(), "4", 10.0, cache.version("shop"))
    assert cache.get(key()) == "4"


def test_results_of_one_tenant_are_not_anothers() -> None:
    cache = ResultCache(HandClock(0.0))
    cache.put(key(tenant="a"), "3", 10.0, 0)
    assert cache.get(key(tenant="b")) is None and cache.get(key(tenant="a")) == "3"


def test_the_least_recently_used_go_where_there_is_no_room() -> None:
    cache = ResultCache(HandClock(0.0), max_bytes=3 * (ENTRY_BYTES + 20))
    for number in range(3):
        cache.put(key(f"{{{number}}}"), "x", 10.0, 0)
    cache.get(key("{0}"))
    cache.put(key("{3}"), "x", 10.0, 0)
    found = [cache.get(key(f"{{{number}}}")) is not None for number in range(4)]
    assert found == [True, False, True, True]
    cache.put(key("{4}"), "x" * 4000, 10.0, 0)  # more than all the room: nothing goes for it
    assert cache.get(key("{3}")) == "x" and cache.get(key("{4}")) is None
