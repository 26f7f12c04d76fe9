"""The provider or exchange that calls go out over, and that knows where this server is.

Owns the way there, and when the registration is asked for again.

Source: RFC 3261, 10.
"""

from __future__ import annotations

import asyncio
import logging
import secrets

from aiosipua.auth import SipDigestAuth
from aiosipua.dialog import Dialog
from aiosipua.headers import parse_uri
from aiosipua.message import SipResponse

from voiceloop.doors.sip.dialog import SipDialog, proof_for
from voiceloop.doors.sip.endpoint import Endpoint, Flow, NoAnswer
from voiceloop.sip_settings import TrunkSettings

log = logging.getLogger(__name__)

ASKED_S = 600  # a provider grants less where it likes
LEAST_S = 30.0  # between two requests, whatever it grants
FAILED_S = (5.0, 300.0)  # until the next try: the first, and the longest after doubling


class Trunk:
    """The way to the provider. host: its address, "" until it was looked up."""

    def __init__(self, endpoint: Endpoint, settings: TrunkSettings) -> None:
        self._endpoint = endpoint
        self.settings = settings
        uri = parse_uri(settings.uri)
        self.domain, self._port = uri.host, uri.port or 5060
        self._user = uri.user or ""
        self._transport = uri.params.get("transport") or "udp"
        self.host = ""

    @property
    def account(self) -> str:
        """Return who we are there."""
        return f"sip:{self._user or 'voiceloop'}@{self.domain}"

    @property
    def credentials(self) -> SipDigestAuth | None:
        password = self.settings.password
        return SipDigestAuth(self._user, password) if password else None

    async def flow(self) -> Flow:
        """Raises: OSError: it is not there."""
        flow = await self._endpoint.reach(self.domain.strip("[]"), self._port, self._transport)
        self.host = flow.host
        return flow

    def register(self) -> None:
        """Begin, and go on until the endpoint is closed."""
        self._endpoint.spawn(self._register())

    async def _register(self) -> None:
        account, wait_s = self.account, FAILED_S[0]
        # One of its own, so that the registrar knows each as a repetition (RFC 3261, 10.2).
        dialog = Dialog(
            call_id=secrets.token_hex(16), local_tag=secrets.token_hex(8), local_uri=account,
            remote_uri=account, remote_target=f"sip:{self.domain}",
        )  # fmt: skip
        while True:
            try:
                response = await self._ask(dialog)
                status = response.status_code
            except (NoAnswer, OSError) as error:
                status, response = 408, SipResponse()
                log.warning("sip.trunk: %s is not reached (%s)", self.domain, error)
            if status < 300:
                wait_s = FAILED_S[0]
                granted_s = _granted_s(response)
                log.info("registered with %s for %g s", self.domain, granted_s)
                await asyncio.sleep(max(LEAST_S, 0.8 * granted_s))
                continue
            log.warning("sip.trunk: %s refuses the registration (%d)", self.domain, status)
            await asyncio.sleep(wait_s)
            wait_s = min(2.0 * wait_s, FAILED_S[1])

    async def _ask(self, dialog: Dialog) -> SipResponse:
        """Raises: NoAnswer, OSError."""
        talk = SipDialog(self._endpoint, await self.flow(), dialog)
        headers = [("Expires", str(ASKED_S))]
        for _ in range(2):
            request = talk.request("REGISTER", headers)
            response = await talk.ask(request)
            if (proof := proof_for(request, response, self.credentials)) is None:
                break
            headers.append(proof)
        return response


def _granted_s(response: SipResponse) -> float:
    told = [one.params.get("expires") for one in response.contact]
    told.append(response.get_header("expires"))
    return float(next((one for one in told if one and one.isdecimal()), ASKED_S))
