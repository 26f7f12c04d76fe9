"""Whether a service that keeps failing is asked at all: a pure state machine.

A caller of a dead service should hear so at once, not after every turn's own timeout; and a service
that struggles should not be buried in retries. Closed: requests pass. Open: they are refused with
the last failure's words. Half open: one request is let through, and its fate decides.

Source: M. Nygard, "Release It!" (2007), stability pattern "circuit breaker".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from voiceloop.errors import BackendError, BackendRefused

# A turn makes up to three tries at one request, and counts once: this is three lost turns.
MAX_FAILURES = 3
FIRST_OPEN_S = 2.0
LONGEST_OPEN_S = 30.0


class CircuitBreaker:
    """Fed with the fate of each request; the clock is in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._n_failures = 0
        self._open_s = FIRST_OPEN_S
        self._opened_at = 0.0
        self._is_open = False
        self._probing = False
        self.reason = ""  # of the last failure

    @property
    def state(self) -> Literal["closed", "open", "half_open"]:
        if not self._is_open:
            return "closed"
        return "half_open" if self.wait_s() == 0.0 else "open"

    def wait_s(self) -> float:
        """Return the time until the next request may pass; 0.0 when one may now."""
        if not self._is_open:
            return 0.0
        return max(0.0, self._opened_at + self._open_s - self._clock())

    @contextmanager
    def request(self, url: str) -> Iterator[None]:
        """One request to the service at ``url``, whose fate this takes note of.

        Raises:
            BackendError: the service has failed so often that it is not asked now.
        """
        if not self.admit():
            raise BackendError(
                f"{url} is not asked for another {self.wait_s():.1f} s, since it keeps "
                f"failing: {self.reason}"
            )
        try:
            yield
        except BackendRefused:
            self.succeeded()  # it answers; the request was at fault
            raise
        except BackendError as error:
            self.failed(str(error))
            raise
        except BaseException:
            self.abandoned()
            raise
        self.succeeded()

    def admit(self) -> bool:
        """Whether this request may go out; each that does is followed by exactly one of
        `succeeded`, `failed` and `abandoned`.
        """
        if self.state == "closed":
            return True
        if self.state == "open" or self._probing:
            return False
        self._probing = True
        return True

    def succeeded(self) -> None:
        self._is_open = self._probing = False
        self._n_failures = 0
        self._open_s = FIRST_OPEN_S

    def failed(self, reason: str) -> None:
        """Count a request that was not answered, or answered with a failure of the service's own
        (not of the request).
        """
        self.reason = reason
        self._n_failures += 1
        if self._is_open:
            if not self._probing:
                return  # sent before the breaker opened: nothing new
            self._open_s = min(2 * self._open_s, LONGEST_OPEN_S)
        elif self._n_failures < MAX_FAILURES:
            return
        self._is_open, self._probing = True, False
        self._opened_at = self._clock()

    def abandoned(self) -> None:
        """The caller gave up before an answer: nothing was learnt."""
        self._probing = False
