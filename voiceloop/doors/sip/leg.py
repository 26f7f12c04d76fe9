"""One call by SIP: how it is answered, held, moved elsewhere and ended.

Owns the call's state and its dialog, and what each request in it means. It is the far end of the
call's line, and what can be done with its telephone.

Source: RFC 3261, 13 to 15; RFC 3264, 8 (hold); RFC 4028 (session timers); RFC 3515 (REFER).
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from aiosipua.message import SipRequest, SipResponse

from audio.frames import VOICE_HZ
from voiceloop.call.connection import HUNG_UP, LINE_BROKE
from voiceloop.doors.line import Line
from voiceloop.doors.rtp.codecs import Codec
from voiceloop.doors.rtp.end import FRAME_BYTES
from voiceloop.doors.sip.description import LocalSound, answer, offer, parse
from voiceloop.doors.sip.dialog import SDP, SipDialog
from voiceloop.doors.sip.endpoint import METHODS, Endpoint, Headers, Key, NoAnswer, bracketed
from voiceloop.doors.sip.media import Media
from voiceloop.errors import InvalidRequest, NotOnThisLine, TransferFailed
from voiceloop.telephony import KEYS, Announcement

log = logging.getLogger(__name__)

LEAST_SESSION_S = 90  # RFC 4028, 4
LONGEST_SESSION_S = 86_400
TRANSFER_S = 60.0  # from REFER to the last that is told of it: as long as a telephone rings
ANSWERED_S = 0.6  # who takes a call has it at the ear by then, as `acts.GOODBYE_HEARD_S`
PAUSE_S = 0.5  # of a "w" among digits
# One key takes 160 ms; what is sent is bounded by whoever asked for it.
KEY_S = 0.16
SIGNAL = re.compile(r"(?:Signal\s*=\s*)?([0-9*#A-Da-d])\s*(?:$|[\r\n])")
FRAGMENT = re.compile(r"SIP/2\.0 (\d{3}) ?([^\r\n]{0,80})")


class LegState(Enum):
    RINGING = "ringing"  # it calls us, and has no answer
    ANSWERED = "answered"  # ours was sent; nobody has confirmed it
    LIVE = "live"
    REFUSED = "refused"  # it got an answer that ends it
    ENDED = "ended"  # for good


class Owed(Enum):
    """The work owed after the ACK of our answer."""

    NOTHING = "nothing"
    DESCRIPTION = "description"  # theirs is in it, which the INVITE lacked
    BYE = "bye"  # RFC 3261, 15: none of ours before the ACK


@dataclass(frozen=True, slots=True)
class SessionTimer:
    """How often it is told that the call still is. interval_s: 0 for not at all. is_ours: we tell
    it, by UPDATE where the far end takes that.
    """

    interval_s: int = 0
    is_ours: bool = False
    has_update: bool = False

    @staticmethod
    def of(request: SipRequest) -> SessionTimer:
        """As an INVITE or UPDATE of the far end asks for it."""
        asked = request.get_header("session-expires") or request.get_header("x") or ""
        interval, *params = asked.lower().replace(" ", "").split(";")
        is_told = re.fullmatch(r"\d{1,9}", interval)
        allowed = {one.strip().upper() for one in request.headers.get("allow")}
        return SessionTimer(
            min(int(interval), LONGEST_SESSION_S) if is_told else 0,
            "refresher=uas" in params,
            "UPDATE" in allowed,
        )

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Return what our answer says of it."""
        if not self.interval_s:
            return []
        who = "uas" if self.is_ours else "uac"
        return [
            ("Supported", "timer"), ("Require", "timer"),
            ("Session-Expires", f"{self.interval_s};refresher={who}"),
        ]  # fmt: skip


class Way(Enum):
    """How a digit came. The first that brings one stays: some telephones use two at once."""

    EVENTS = "events"
    MESSAGE = "message"
    SOUND = "sound"


class Others(Protocol):
    """Calls with somebody else that a transfer takes."""

    def referred(self, leg: Leg, request: SipRequest) -> None:
        """The far end asks us to call somebody in its place."""

    def told(
        self, leg: Leg, uri: str, announcement: Announcement
    ) -> AbstractAsyncContextManager[str]:
        """Tell a person who has taken a call of ours there, for as long as the block lasts;
        yields our place with them, as a REFER names it. Raises: TransferFailed.
        """


class Leg:
    """`invited` and `answer`, or `dialled`; then `close`."""

    def __init__(
        self,
        endpoint: Endpoint,
        dialog: SipDialog,
        codecs: Sequence[Codec],
        line: Line,
        others: Others,
    ) -> None:
        self._endpoint = endpoint
        self._dialog = dialog
        self._codecs = codecs
        self._line = line
        self._others = others
        self._loop = asyncio.get_running_loop()
        self._state = LegState.RINGING
        self._settled = asyncio.Event()  # it is live, or over
        self._invite: SipRequest | None = None  # theirs, which is answered last
        self._final: Key | None = None  # of our answer that is repeated
        self._owed = Owed.NOTHING
        self._said = ""  # our own description
        self._version = 1
        self._session_id = secrets.randbits(31)
        self._timer: asyncio.TimerHandle | None = None
        self._session = SessionTimer()
        self._way: Way | None = None
        self._moved: asyncio.Future[int] | None = None
        self.media: Media

    @property
    def state(self) -> LegState:
        return self._state

    @property
    def dialog(self) -> SipDialog:
        return self._dialog

    # --- it begins ---

    def invited(self, invite: SipRequest) -> None:
        """Take its call to us."""
        self._invite = invite

    def ring(self) -> None:
        """Ring here."""
        assert self._invite is not None
        self._dialog.respond(self._invite, 180)

    def local(self) -> LocalSound:
        """Return where we hear the far end."""
        host = self._endpoint.address_for(self._dialog.flow)
        return LocalSound(host, self.media.port, self._session_id, self._version)

    def answer(self) -> None:
        """Take the call. Raises: InvalidRequest: what it offers is not for us."""
        invite = self._invite
        assert invite is not None and self._state is LegState.RINGING
        self._session = SessionTimer.of(invite)
        self._state = LegState.ANSWERED
        self._take(invite)

    def dialled(self, response: SipResponse) -> None:
        """The far end has taken our call. Raises: InvalidRequest: by no codec of ours."""
        self._state = LegState.LIVE  # first: what follows may end it
        self.media.agree(parse(response.text, self._codecs))
        self._go_live()

    async def settled(self) -> None:
        """Wait until both ends have agreed, or it is over."""
        await self._settled.wait()

    def _go_live(self) -> None:
        self._state = LegState.LIVE
        self.media.start()
        self._settled.set()
        self._arm_timer()

    def _take(self, invite: SipRequest) -> None:
        """Answer an INVITE, the first or a later one. Raises: InvalidRequest."""
        if invite.body:
            agreed = parse(invite.text, self._codecs)
            self.media.agree(agreed)
            self._said = answer(agreed, self.local())
        else:
            self._said = offer(self._codecs, self.local())
            self._owed = Owed.DESCRIPTION
        self._version += 1
        response = self._dialog.response(invite, 200, self._session.headers, self._said)
        self._final = self._endpoint.respond_until_acknowledged(
            invite, self._dialog.flow, response, self._unacknowledged
        )

    def _unacknowledged(self) -> None:
        self._final = None
        self._bye()
        self._end(LINE_BROKE, "the line broke: the telephone did not confirm our answer")

    # --- what the far end asks ---

    def handle(self, request: SipRequest) -> None:
        """A request of the far end with this call's id."""
        if request.call_id != self._dialog.call_id:  # of the one that has moved the call on
            status = 200 if request.method == "BYE" else 481
            self._endpoint.refuse(request, self._dialog.flow, status)
            return
        if not self._dialog.takes(request):
            if request.method != "ACK":
                self._dialog.respond(request, 481)
            return
        match request.method:
            case "ACK":
                self._acknowledged(request)
            case "BYE":
                self._dialog.respond(request, 200, self._line.last_headers)
                self._end(HUNG_UP, "the telephone hung up")
            case "INVITE" | "UPDATE":
                self._renegotiate(request)
            case "INFO":
                self._inform(request)
            case "OPTIONS":
                self._dialog.respond(request, 200)
            case "REFER":
                self._others.referred(self, request)
            case "NOTIFY":
                self._notify(request)
            case _:
                self._dialog.respond(request, 405, [("Allow", METHODS)])

    def cancel(self, request: SipRequest) -> None:
        """The far end gives up before we have answered; afterwards it is too late for that."""
        self._dialog.respond(request, 200)
        if self._state is LegState.RINGING:
            self.refuse(487)
            self._end(HUNG_UP, "the telephone gave up before the answer")

    def refuse(self, status: int, headers: Headers = ()) -> None:
        """Answer the INVITE with this, for good; its ACK ends the repetitions."""
        invite = self._invite
        assert invite is not None and self._state is LegState.RINGING
        self._state = LegState.REFUSED
        response = self._dialog.response(invite, status, headers)
        self._endpoint.respond_until_acknowledged(invite, self._dialog.flow, response, lambda: None)

    def _acknowledged(self, ack: SipRequest) -> None:
        if self._final is not None:
            self._endpoint.stop_repeating(self._final)
            self._final = None
        owed, self._owed = self._owed, Owed.NOTHING
        if owed is Owed.BYE:
            self._send_bye()
            return
        if owed is Owed.DESCRIPTION:
            try:
                self.media.agree(parse(ack.text, self._codecs))
            except InvalidRequest as error:
                log.info("a call by SIP ends: %s", error.message)
                self._bye()
                self._end(HUNG_UP, "the telephone's answer has no sound for us")
                return
        if self._state is LegState.ANSWERED:
            self._go_live()

    def _renegotiate(self, request: SipRequest) -> None:
        """A later INVITE or UPDATE: hold, another codec or port, or that the call still is."""
        if self._state is not LegState.LIVE or self._final is not None:
            self._dialog.respond(request, 491)
            return
        self._session = SessionTimer.of(request)
        self._arm_timer()
        try:
            if request.method == "INVITE":
                self._take(request)
                return
            said = ""
            if request.body:
                agreed = parse(request.text, self._codecs)
                self.media.agree(agreed)
                self._said = said = answer(agreed, self.local())
                self._version += 1
            self._dialog.respond(request, 200, self._session.headers, said)
        except InvalidRequest:
            self._dialog.respond(request, 488)  # all goes on as it was

    def _inform(self, request: SipRequest) -> None:
        """A digit as a message, as older exchanges send it."""
        kind = (request.content_type or "").partition(";")[0].strip().lower()
        if kind not in ("application/dtmf-relay", "application/dtmf", ""):
            self._dialog.respond(request, 415)
            return
        self._dialog.respond(request, 200)
        if (found := SIGNAL.search(request.text)) is not None:
            self.media.has_other_digits()
            self._press(found[1].upper(), Way.MESSAGE)

    def _notify(self, request: SipRequest) -> None:
        """How far the transfer is that we have asked for."""
        if (request.get_header("event") or request.get_header("o") or "")[:5] != "refer":
            self._dialog.respond(request, 489)
            return
        self._dialog.respond(request, 200)
        found = FRAGMENT.match(request.text)
        if found and int(found[1]) >= 200 and self._moved is not None and not self._moved.done():
            self._moved.set_result(int(found[1]))

    # --- the far end of the line ---

    @property
    def lead_ms(self) -> float:
        return self.media.lead_ms

    def play_delay_ms(self) -> None:
        return self.media.play_delay_ms()

    def send_sound(self, samples: bytes) -> None:
        self.media.send_sound(samples)

    def clear_sound(self) -> None:
        self.media.clear_sound()

    async def send(self, event: str) -> None:
        """A telephone takes no events."""

    def hear(self, samples: bytes) -> None:
        self._line.hear(samples)

    def press(self, key: str, *, is_sound: bool) -> None:
        """A digit came with the sound, as an event or as a tone."""
        self._press(key, Way.SOUND if is_sound else Way.EVENTS)

    def _press(self, key: str, way: Way) -> None:
        self._way = self._way or way
        if way is self._way:
            self._line.press(key)

    def end(self, code: int, how: str) -> None:
        """The sound tells that the far end has gone."""
        self._bye()
        self._end(code, how)

    async def close(self) -> None:
        """Tell the far end, and give everything back; idempotent."""
        self._hang_up()
        self.media.close()

    # --- what is done with the telephone ---

    async def hang_up(self) -> None:
        self._hang_up()
        self._line.hang_up()

    def _hang_up(self) -> None:
        match self._state:
            case LegState.RINGING if self._invite is not None:
                self.refuse(603)
            case LegState.ANSWERED:
                self._owed = Owed.BYE
            case LegState.LIVE:
                self._bye()
        self._end(HUNG_UP, "the call was ended here")

    async def transfer(self, target: str, announcement: Announcement | None = None) -> None:
        """Have the far end call somebody else in our place. Whoever is told first is called by us;
        a far end that cannot take our place with them calls them anew. Raises: TransferFailed;
        NotOnThisLine: we cannot call there.
        """
        if announcement is not None and target.startswith("sips:"):
            raise NotOnThisLine(
                "expected a warm transfer without TLS, found one to a sips: address"
            )
        number = target.removeprefix("tel:")
        here = bracketed(self._dialog.flow.host)  # a number is dialled at whoever brought the call
        uri = f"sip:{number}@{here}" if number != target else target
        is_moved = False
        if announcement is not None:
            async with self._others.told(self, uri, announcement) as place:
                is_moved = await self._refer(place) < 300
        if not is_moved and (status := await self._refer(uri)) >= 300:
            raise TransferFailed(f"Nobody answered there: SIP status {status}.")
        self._hang_up()

    async def _refer(self, uri: str) -> int:
        """How it went, as SIP numbers it (RFC 3515)."""
        self._moved = self._loop.create_future()
        ours = self._endpoint.contact(self._dialog.flow)
        refer = self._dialog.request("REFER", [("Refer-To", f"<{uri}>"), ("Referred-By", ours)])
        try:
            async with asyncio.timeout(TRANSFER_S):
                status = (await self._dialog.ask(refer)).status_code
                return await self._moved if status < 300 else status
        except (NoAnswer, TimeoutError):
            return 408
        finally:
            self._moved = None

    async def say(self, sound: bytes) -> None:
        """Speak to whoever has taken our call, until it was heard or they have hung up."""
        begun_s = self._loop.time() + ANSWERED_S
        for start in range(0, len(sound), FRAME_BYTES):
            await asyncio.sleep(begun_s + start / 2 / VOICE_HZ - self._loop.time())
            if self._state is LegState.ENDED:
                return
            self.media.send_sound(sound[start : start + FRAME_BYTES])
        await asyncio.sleep(self.lead_ms / 1000.0)

    async def send_digits(self, digits: str) -> None:
        """Press these keys; "w" waits. Raises: InvalidRequest where one is neither."""
        if strange := set(digits.upper()) - KEYS - {"W"}:
            raise InvalidRequest(f"digits: expected 0 to 9, *, #, A to D, w, found {strange}")
        for piece in re.findall(r"[Ww]|[^Ww]+", digits):
            if piece in "Ww":
                await asyncio.sleep(PAUSE_S)
            else:
                self.media.send_keys(piece.upper())
                await asyncio.sleep(KEY_S * len(piece))

    def move_to(self, dialog: SipDialog, response: SipResponse) -> None:
        """Go on with another far end, which has taken our call. Raises: InvalidRequest."""
        agreed = parse(response.text, self._codecs)
        self._dialog = dialog
        self._session = SessionTimer()
        self._arm_timer()
        self.media.agree(agreed)

    # --- it ends ---

    def _bye(self) -> None:
        if self._state in (LegState.LIVE, LegState.ANSWERED):
            self._send_bye()

    def _send_bye(self) -> None:
        bye = self._dialog.request("BYE", self._line.last_headers)
        self._endpoint.spawn(self._dialog.say(bye))

    def _end(self, code: int, how: str) -> None:
        if self._state is LegState.ENDED:
            return
        self._state = LegState.ENDED
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._final is not None and self._owed is not Owed.BYE:
            self._endpoint.stop_repeating(self._final)
        if self._moved is not None and not self._moved.done():
            self._moved.set_result(200)  # it hung up because it was connected elsewhere
        self._settled.set()
        self._line.end(code, how)

    # --- session timers ---

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        interval_s = self._session.interval_s
        if not interval_s:
            return
        if self._session.is_ours:
            self._timer = self._loop.call_later(interval_s / 2, self._refresh)
        else:  # RFC 4028, 10
            wait_s = interval_s - min(32.0, interval_s / 3)
            self._timer = self._loop.call_later(wait_s, self._expire)

    def _expire(self) -> None:
        told = f"not refreshed for {self._session.interval_s} s"
        self.end(LINE_BROKE, f"the line broke: {told}")

    def _refresh(self) -> None:
        self._endpoint.spawn(self._ask_refresh())
        self._arm_timer()

    async def _ask_refresh(self) -> None:
        told = f"{self._session.interval_s};refresher=uac"
        headers = [("Session-Expires", told), ("Supported", "timer")]
        if self._session.has_update:
            request = self._dialog.request("UPDATE", headers)
        else:
            request = self._dialog.request("INVITE", headers, self._said, SDP)
        try:
            status = (await self._dialog.ask(request)).status_code
        except NoAnswer:
            status = 408
        if status in (408, 481) and self._state is LegState.LIVE:
            self.end(LINE_BROKE, f"the line broke: its refresh was answered {status}")
