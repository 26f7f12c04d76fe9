"""A telephone's call, once it has proved itself: who it is for us, its place, and its session.

Owns the way of every such call, whatever brought it, to a session. The doors that bring one are
`carriers/`, `pbx/` and `sip/`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from voiceloop.access.keys import tenant_of
from voiceloop.call.connection import Hello
from voiceloop.config import Config
from voiceloop.doors.calls import Calls
from voiceloop.doors.entrance import Server, let_in
from voiceloop.doors.line import Line
from voiceloop.realtime.settings import Json
from voiceloop.telephony import WITHHELD, PhoneCall

# What stands for a number that is not told, which many people share. Source: RFC 3323, 4.1.1.3;
# Twilio and others write the words as a keypad has their letters.
UNTOLD = frozenset(
    ("anonymous", "restricted", "unavailable", "unknown", "private", "blocked", "withheld")
    + ("+266696687", "+7378742833", "+86282452253", "+8656696", "+2562533")
)


def hello_of_call(config: Config, call: PhoneCall) -> Hello:
    """The call as a session is told of it. It counts as of the first of the server's keys."""
    allowed = {name.lower(): name for name in config.phone.headers}
    headers = {
        allowed[name.lower()]: value
        for name, value in call.headers.items()
        if name.lower() in allowed
    }
    tenant = tenant_of(config.keys[0]) if config.keys else ""
    caller = WITHHELD if call.caller.lower() in UNTOLD else call.caller
    phone = replace(call, caller=caller, headers=headers)
    hello = Hello(tenant=tenant, greeting=True, door="phone", phone=phone)
    if (number := config.phone.of(call.called)) is None:
        return hello
    session = filled_session(dict(number.session), phone)
    return replace(hello, session=session, agent=number.agent)


def filled_session(session: Json, phone: PhoneCall) -> Json:
    """Session settings with what their instructions name of the call."""
    instructions = session.get("instructions")
    if not isinstance(instructions, str):
        return session
    return {**session, "instructions": phone.filled(instructions)}


@asynccontextmanager
async def admitted(
    server: Server, calls: Calls, hello: Hello, call_id: str, returns: str = ""
) -> AsyncIterator[Hello]:
    """A call that is decided about, in its place, for as long as it lasts.

    returns: of the call that goes on in this one. Raises: CallRejected, Overloaded, RateLimited.
    """
    async with (
        calls.desk.admitted(hello, call_id) as wanted,
        let_in(server, wanted, asyncio.sleep, returns) as let,
    ):
        yield let


@asynccontextmanager
async def call_of(
    server: Server, calls: Calls, hello: Hello, resume: str = "", returns: str = ""
) -> AsyncIterator[Line]:
    """A line in its place among the calls, for as long as the block lasts.

    resume, returns: of the call that goes on in this one. Raises: Overloaded, RateLimited.
    """
    hello, call_id = replace(hello, is_returning=bool(resume)), calls.new_id()
    async with admitted(server, calls, hello, call_id, returns) as let:
        line = Line(let, asyncio.get_running_loop().time)
        if resume:
            line.take(json.dumps({"type": "voiceloop.resume", "ticket": resume}))
        calls.add(line, call_id)
        try:
            yield line
        finally:
            calls.drop(call_id)
