"""Rankings made into one."""

from __future__ import annotations

from voiceloop.knowledge.fused import fuse


def test_what_two_rankings_agree_on_goes_before_what_one_puts_first() -> None:
    assert fuse([["a", "b", "c"], ["d", "b", "e"]])[0] == "b"


def test_nothing_is_lost_and_equals_keep_their_order() -> None:
    assert fuse([["a", "b"], ["c", "d"]]) == ["a", "c", "b", "d"]
    assert fuse([]) == fuse([[], []]) == []
