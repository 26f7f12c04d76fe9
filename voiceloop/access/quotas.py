"""Limits what one key may use: calls and requests at a time, rates, and what calls use in an hour.

Owns the count for each tenant. A call that is under way goes on when the key's minutes are spent,
also on another line. New calls are refused until the overdraft has come back. Pure: the clock is
passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from voiceloop.admission.allowance import HOUR_S, Allowance, OnSpent
from voiceloop.admission.bucket import Bucket
from voiceloop.errors import RateLimited
from voiceloop.operation import KeyQuota

LEAST_CALL_S = 60.0  # with less left a call is not begun
# Of one key, whatever its quota: bodies of requests over HTTP (as fast as the sound of a call may
# come; three of the largest uploads at once), and client secrets (a page each).
BODY_BYTES_PER_S, BODY_BYTES_AT_ONCE = 2.5e6, 75.0 * 2**20
SECRETS_PER_S, SECRETS_AT_ONCE = 10.0, 100.0


@dataclass(slots=True)
class _Use:
    """The use of one tenant. call_s: of its minutes; secrets: that it may have issued."""

    call_s: Bucket
    allowance: Allowance
    body_bytes: Bucket
    secrets: Bucket
    n_calls: int = 0
    n_requests: int = 0


class Quotas:
    """quota: of each tenant. Tenants are counted for as long as the server runs: there are as many
    as it has keys. on_spent: told which part of it kept somebody from something.
    """

    def __init__(
        self, quota: KeyQuota, clock: Callable[[], float], on_spent: OnSpent = lambda what: None
    ) -> None:
        self._quota = quota
        self._clock = clock
        self._on_spent = on_spent
        self._uses: dict[str, _Use] = {}

    def allowance(self, tenant: str) -> Allowance:
        """Return what all calls of this tenant share."""
        return self._of(tenant).allowance

    @contextmanager
    def call(self, tenant: str, *, has_ticket: bool = False) -> Iterator[bool]:
        """A call of this tenant's, for as long as it lasts; yields whether it is beyond its quota.

        has_ticket: its line broke, and the server may not know yet. All that the tenant may have
        can come back at once, beside what is left of them. It counts like any other, and one beyond
        the quota may stay only where the ticket's call is resumed.

        Raises: RateLimited: it has as many calls as it may, or no minutes left.
        """
        use, most = self._of(tenant), self._quota.calls
        whole_s = 60.0 * self._quota.call_minutes
        has_all = bool(most) and use.n_calls >= most
        is_spent = use.call_s.is_bounded and (
            use.call_s.left(use.n_calls) < min(LEAST_CALL_S, whole_s)
        )
        if has_all and (not has_ticket or use.n_calls >= 2 * most):
            raise self._spent("calls", f"at most {most} calls at a time with this key")
        if is_spent and not has_ticket:
            text = f"at most {whole_s / 60:g} minutes of calls an hour with this key"
            raise self._spent("call_minutes", text)
        use.n_calls += 1
        try:
            yield has_all or is_spent
        finally:
            use.call_s.left(use.n_calls)
            use.n_calls -= 1

    @contextmanager
    def request(self, tenant: str) -> Iterator[Callable[[int], object]]:
        """A request over HTTP, for as long as it is answered; yields what counts its body's bytes.

        Raises: RateLimited: the tenant has as many as it may, or has sent more than it may.
        """
        use, most = self._of(tenant), self._quota.requests
        if use.body_bytes.is_empty:
            most_kb = BODY_BYTES_PER_S / 1000
            raise self._spent("body_bytes", f"bodies of at most {most_kb:g} KB/s with this key")
        if use.n_requests >= most:
            raise self._spent("requests", f"at most {most} requests at a time with this key")
        use.n_requests += 1
        try:
            yield use.body_bytes.take
        finally:
            use.n_requests -= 1

    def issue_secret(self, tenant: str) -> None:
        """One more client secret is asked for. Raises: RateLimited: too many a second."""
        secrets = self._of(tenant).secrets
        if not secrets.has(1.0):
            raise self._spent("secrets", f"at most {SECRETS_PER_S:g} client secrets a second")
        secrets.take()

    def _of(self, tenant: str) -> _Use:
        use = self._uses.get(tenant)
        if use is None:
            whole_s = 60.0 * self._quota.call_minutes
            minutes = Bucket(whole_s, whole_s / HOUR_S, self._clock)
            use = self._uses[tenant] = _Use(
                minutes,
                Allowance(self._quota, self._clock, self._on_spent),
                Bucket(BODY_BYTES_AT_ONCE, BODY_BYTES_PER_S, self._clock),
                Bucket(SECRETS_AT_ONCE, SECRETS_PER_S, self._clock),
            )
        return use

    def _spent(self, what: str, text: str) -> RateLimited:
        self._on_spent(what)
        return RateLimited(f"This key has used up its quota: {text}.", code="quota_exceeded")
