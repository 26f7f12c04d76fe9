"""``realtime.call.incoming``: who decides about a call is asked, and can prove who asks.

Owns the event's body, its signature as Standard Webhooks have it, so that the stock SDKs'
``client.webhooks.unwrap`` takes it, and its way there: https alone, and no redirect is followed.

Source: https://www.standardwebhooks.com, and openai-python's `resources/webhooks`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

from voiceloop.errors import BackendError
from voiceloop.telephony import PhoneCall

if TYPE_CHECKING:  # it takes a start 0.2 s, and few ask for it
    import httpx

log = logging.getLogger(__name__)

PREFIX = "whsec_"
POST_S = 5.0  # a telephone rings meanwhile
N_TRIES = 2


def incoming(call_id: str, call: PhoneCall, created_at: int) -> dict[str, object]:
    """The event of a call that rings here. created_at: epoch seconds."""
    headers = {"From": call.caller, "To": call.called, **call.headers}
    return {
        "object": "event",
        "id": f"evt_{secrets.token_hex(12)}",
        "type": "realtime.call.incoming",
        "created_at": created_at,
        "data": {
            "call_id": call_id,
            "sip_headers": [{"name": name, "value": value} for name, value in headers.items()],
        },
    }


def signed(secret: str, event_id: str, at_s: int, body: bytes) -> Mapping[str, str]:
    """The headers that prove this body. secret: ``whsec_`` and base64, or the key itself."""
    if secret.startswith(PREFIX):
        key = base64.b64decode(secret.removeprefix(PREFIX))
    else:
        key = secret.encode()
    told = f"{event_id}.{at_s}.".encode() + body
    mac = base64.b64encode(hmac.new(key, told, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(at_s),
        "webhook-signature": f"v1,{mac}",
        "content-type": "application/json",
    }


class Webhook:
    """The address to which this server reports calls that ring. transport: in tests, instead of the
    network.
    """

    def __init__(
        self, url: str, secret: str, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._url = url
        self._secret = secret
        self._transport = transport

    async def tell(self, event: dict[str, object], at_s: int) -> None:
        """Post the event. Raises: BackendError: nobody has taken it."""
        import httpx

        body = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
        headers = dict(signed(self._secret, str(event["id"]), at_s, body))
        found = "nothing"
        async with httpx.AsyncClient(
            transport=self._transport, timeout=POST_S, follow_redirects=False
        ) as client:
            for _ in range(N_TRIES):
                try:
                    async with client.stream(
                        "POST", self._url, content=body, headers=headers
                    ) as answer:
                        if answer.is_success:
                            return
                        found = f"status {answer.status_code}"
                except httpx.HTTPError as error:
                    found = type(error).__name__
        raise BackendError(f"phone.webhook_url: expected that the call is taken, found {found}")
