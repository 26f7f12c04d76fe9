"""Decisions about a telephone's call before it is answered.

Owns the order of that: its limits, then, where the configuration asks somebody, the webhook and the
wait for `accept` or `reject`, while the call rings. No model is asked and no place is taken yet.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace

from voiceloop.call.connection import Hello
from voiceloop.doors.limits import PhoneLimits
from voiceloop.doors.webhook import Webhook, incoming
from voiceloop.errors import BackendError, CallRejected, InvalidRequest
from voiceloop.phone_settings import WEBHOOK, PhoneSettings
from voiceloop.realtime.settings import Json

log = logging.getLogger(__name__)

LONGEST_RING_S = 30.0
DECLINED = 603  # of SIP, as OpenAI's `reject` has it where nothing is said
UNAVAILABLE = 480


class Ringing:
    """A call that nobody has decided about yet. `accept` or `reject` comes once."""

    def __init__(self, hello: Hello) -> None:
        self.hello = hello
        self._decided: asyncio.Future[Json] = asyncio.get_running_loop().create_future()

    def accept(self, session: Json) -> None:
        """Answer the call with these session settings. Raises: InvalidRequest: it is decided."""
        self._check()
        self._decided.set_result(session)

    def reject(self, status: int) -> None:
        """Refuse the call. Raises: InvalidRequest: it is decided."""
        self._check()
        self._decided.set_exception(CallRejected("The webhook refused the call.", status))

    def _check(self) -> None:
        if self._decided.done():
            raise InvalidRequest("This call does not ring any more.", code="call_decided")

    async def decided(self) -> Json:
        """Wait. Raises: CallRejected, also where nobody decides."""
        try:
            async with asyncio.timeout(LONGEST_RING_S):
                return await self._decided
        except TimeoutError:
            late = f"Nobody accepted or rejected the call within {LONGEST_RING_S:g} s."
            raise CallRejected(late, UNAVAILABLE) from None


class Desk:
    """The desk of one gateway."""

    def __init__(self, settings: PhoneSettings, webhook: Webhook | None = None) -> None:
        self._limits = PhoneLimits(settings, time.time)
        self._webhook = webhook
        if webhook is None and settings.webhook_url:
            self._webhook = Webhook(settings.webhook_url, settings.secrets[WEBHOOK])
        self._ringing: dict[str, Ringing] = {}

    @property
    def asks(self) -> bool:
        """Whether a call rings before it is answered."""
        return self._webhook is not None

    def find(self, call_id: str, tenant: str) -> Ringing | None:
        """A call of this tenant's that rings."""
        ringing = self._ringing.get(call_id)
        return ringing if ringing is not None and ringing.hello.tenant == tenant else None

    @asynccontextmanager
    async def admitted(self, hello: Hello, call_id: str) -> AsyncIterator[Hello]:
        """The call as it is to be answered, within its limits for as long as it lasts.

        One that goes on after a transfer or a broken stream has been decided about. Raises:
        RateLimited, CallRejected.
        """
        call = hello.phone
        assert call is not None  # of a telephone
        goes_on = hello.is_returning or bool(call.returned)
        with nullcontext() if goes_on else self._limits.call(call):
            if self._webhook is not None and not goes_on and not call.is_outbound:
                hello = await self._ask(self._webhook, hello, call_id)
            yield hello

    async def _ask(self, webhook: Webhook, hello: Hello, call_id: str) -> Hello:
        assert hello.phone is not None
        ringing = self._ringing[call_id] = Ringing(hello)
        now_s = int(time.time())
        try:
            try:
                await webhook.tell(incoming(call_id, hello.phone, now_s), now_s)
            except BackendError as error:
                log.error("a call is refused: %s", error.message)
                raise CallRejected("The webhook did not answer.", UNAVAILABLE) from None
            return replace(hello, asked=await ringing.decided())
        finally:
            del self._ringing[call_id]
