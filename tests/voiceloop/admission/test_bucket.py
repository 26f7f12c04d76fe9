"""One bucket is a rate and a quota."""

from __future__ import annotations

import pytest

from voiceloop.admission.bucket import Bucket


def test_a_burst_passes_and_then_the_pace_holds() -> None:
    now = [0.0]
    pace = Bucket(20.0, 10.0, lambda: now[0])
    assert [pace.take() for _ in range(20)] == [0.0] * 20
    assert pace.take() == pytest.approx(0.1)
    now[0] += 0.1
    assert pace.take(2) == pytest.approx(0.2)
    now[0] += 100.0
    assert pace.take(20) == 0.0


def test_a_quota_is_filled_again_and_may_be_drained_meanwhile() -> None:
    now = [0.0]
    minutes = Bucket(3600.0, 1.0, lambda: now[0])
    minutes.take(3600.0)
    assert minutes.is_empty and not minutes.has(1.0)
    now[0] += 1800.0
    assert minutes.left() == 1800.0 and minutes.has(1.0)
    now[0] += 100.0
    assert minutes.left(drained_per_s=3.0) == 1600.0


def test_a_bucket_of_nothing_has_no_bound() -> None:
    bucket = Bucket(0.0, 0.0, lambda: 0.0)
    assert bucket.take(1e9) == 0.0 and bucket.has(1.0) and not bucket.is_empty
