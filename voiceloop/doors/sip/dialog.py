"""One dialog of SIP: who talks to whom, how requests in it are made, and how one is dialled.

Owns tags, numbers and routes. What the requests mean for a call is the leg's.

Source: RFC 3261, 12 and 13.
"""

from __future__ import annotations

import asyncio
import secrets
from urllib.parse import quote

from aiosipua.auth import SipDigestAuth, answer_challenge
from aiosipua.dialog import Dialog, create_dialog_from_request, dialog_matches
from aiosipua.headers import stringify_uri
from aiosipua.message import SipRequest, SipResponse

from voiceloop.doors.sip.endpoint import (
    METHODS,
    REASONS,
    Endpoint,
    Flow,
    Headers,
    NoAnswer,
    follow_up,
    response_to,
)

SDP = "application/sdp"


class DialFailed(Exception):
    """The error that nobody took the call. status: of SIP; 408 where nothing answered."""

    def __init__(self, status: int, reason: str = "") -> None:
        super().__init__(reason or REASONS.get(status, "no reason given"))
        self.status = status


class SipDialog:
    """Between us and one far end."""

    def __init__(self, endpoint: Endpoint, flow: Flow, dialog: Dialog) -> None:
        self._endpoint = endpoint
        self._dialog = dialog
        self.flow = flow
        self._ack = b""  # of the last INVITE of ours that was taken

    @staticmethod
    def of(request: SipRequest, endpoint: Endpoint, flow: Flow) -> SipDialog:
        """The one that this INVITE begins."""
        return SipDialog(endpoint, flow, create_dialog_from_request(request))

    @staticmethod
    def to(target: str, caller: str, endpoint: Endpoint, flow: Flow) -> SipDialog:
        """One that is to begin, with this URI, for `dial`. caller: our own."""
        return SipDialog(endpoint, flow, Dialog(
            call_id=secrets.token_hex(16), local_tag=secrets.token_hex(8), local_uri=caller,
            remote_uri=target, remote_target=target,
        ))  # fmt: skip

    @property
    def call_id(self) -> str:
        return self._dialog.call_id

    @property
    def place(self) -> str:
        """Ours in this dialog, for a REFER to whoever is to take it (RFC 3891; RFC 5589, 7.3)."""
        dialog = self._dialog
        replaced = f"{dialog.call_id};to-tag={dialog.remote_tag};from-tag={dialog.local_tag}"
        return f"{dialog.remote_target.partition('?')[0]}?Replaces={quote(replaced, safe='')}"

    def takes(self, request: SipRequest) -> bool:
        """Whether it is of this dialog and no older than what came before."""
        dialog, cseq = self._dialog, request.cseq
        if not dialog_matches(dialog, request) or cseq is None:
            return False
        if request.method == "ACK":
            return True
        is_new = cseq.seq > dialog.remote_cseq
        if is_new and request.method in ("INVITE", "UPDATE") and request.contact:
            dialog.remote_target = stringify_uri(request.contact[0].uri)
        dialog.remote_cseq = max(dialog.remote_cseq, cseq.seq)
        return is_new

    def response(
        self, request: SipRequest, status: int, headers: Headers = (), body: str = ""
    ) -> SipResponse:
        """An answer of this dialog. body: a session description."""
        response = response_to(request, status, self._dialog.local_tag, headers)
        if 101 <= status < 300:
            response.headers.append("Contact", self._endpoint.contact(self.flow))
            response.headers.append("Allow", METHODS)
        _fill(response, body)
        return response

    def respond(
        self, request: SipRequest, status: int, headers: Headers = (), body: str = ""
    ) -> None:
        self._endpoint.respond(request, self.flow, self.response(request, status, headers, body))

    def request(
        self, method: str, headers: Headers = (), body: str = "", kind: str = SDP
    ) -> SipRequest:
        """A request of ours in this dialog. body: of this kind."""
        request = self._dialog.create_request(method)
        request.headers.remove("Via")
        request.headers.append("Via", self._endpoint.via(self.flow))
        request.headers.append("Contact", self._endpoint.contact(self.flow))
        for name, value in headers:
            request.headers.append(name, value)
        _fill(request, body, kind)
        return request

    def notify(self, status: int, *, is_last: bool) -> SipRequest:
        """How far we are with what a REFER asked of us (RFC 3515, 2.4.5)."""
        state = "terminated;reason=noresource" if is_last else "active;expires=120"
        headers = [("Event", "refer"), ("Subscription-State", state)]
        body = f"SIP/2.0 {status} {REASONS.get(status, 'Unknown')}\r\n"
        return self.request("NOTIFY", headers, body, "message/sipfrag;version=2.0")

    async def ask(self, request: SipRequest) -> SipResponse:
        """Send a request; returns its final answer, an INVITE's acknowledged. Raises: NoAnswer."""
        response = await self._endpoint.ask(request, self.flow)
        if request.method == "INVITE" and response.status_code < 300:
            self._acknowledge(request)
        return response

    async def say(self, request: SipRequest) -> None:
        """Send a request, whatever is answered."""
        try:
            await self.ask(request)
        except NoAnswer:
            return

    def acknowledge_again(self, response: SipResponse) -> None:
        """Our ACK was lost: the answer has come once more."""
        if self._ack and response.cseq is not None and response.cseq.method == "INVITE":
            self.flow.write(self._ack)

    def _acknowledge(self, invite: SipRequest) -> None:
        ack = self.request("ACK")
        assert invite.cseq is not None
        self._dialog.local_cseq = invite.cseq.seq
        ack.headers.set_single("CSeq", f"{invite.cseq.seq} ACK")
        self._ack = bytes(ack)
        self.flow.write(self._ack)

    def begin(self, invite: SipRequest, response: SipResponse) -> None:
        """Our INVITE was taken by this answer."""
        to = response.to_addr
        self._dialog.remote_tag = (to.tag if to else None) or ""
        if response.contact:
            self._dialog.remote_target = stringify_uri(response.contact[0].uri)
        self._dialog.route_set = list(reversed(response.headers.get("record-route")))
        self._acknowledge(invite)


async def dial(
    endpoint: Endpoint,
    talk: SipDialog,
    offer: str,
    headers: Headers = (),
    credentials: SipDigestAuth | None = None,
) -> SipResponse:
    """Call somebody; returns the answer that takes the call. Cancelled, it stops the ringing.

    talk: of `SipDialog.to`. credentials: for a far end that asks for them. Raises: DialFailed.
    """
    given: list[tuple[str, str]] = [("Allow", METHODS), *headers]
    while True:
        invite = talk.request("INVITE", given, offer)
        asking = endpoint.spawn(endpoint.ask(invite, talk.flow))
        try:
            response = await asyncio.shield(asking)
        except NoAnswer:
            raise DialFailed(408) from None
        except asyncio.CancelledError:
            endpoint.spawn(_give_up(endpoint, talk, invite, asking))
            raise
        if response.status_code < 300:
            talk.begin(invite, response)
            return response
        proof = proof_for(invite, response, credentials)
        if proof is None:
            raise DialFailed(response.status_code, response.reason_phrase)
        credentials = None  # once: a second challenge means that they are wrong
        given.append(proof)


def proof_for(
    request: SipRequest, response: SipResponse, credentials: SipDigestAuth | None
) -> tuple[str, str] | None:
    """The header that answers a challenge; None where there is none, or nothing to answer with."""
    status = response.status_code
    if status not in (401, 407) or credentials is None:
        return None
    return answer_challenge(credentials, response, status, request.method, request.uri)


async def _give_up(
    endpoint: Endpoint, talk: SipDialog, invite: SipRequest, asking: asyncio.Task[SipResponse]
) -> None:
    """Stop a call that rings; one that is answered just then is ended."""
    try:
        await endpoint.ask(follow_up(invite, None, "CANCEL"), talk.flow)
        response = await asking
    except NoAnswer:
        asking.cancel()
        return
    if response.status_code < 300:
        talk.begin(invite, response)
        await talk.say(talk.request("BYE"))


def _fill(message: SipRequest | SipResponse, body: str, kind: str = SDP) -> None:
    if body:
        message.text = body
        message.headers.append("Content-Type", kind)
