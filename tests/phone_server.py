"""A gateway with telephones, on a port of this machine that is also its public address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from benchmarks.phone.peers import TOKEN
from clients.server_process import free_port
from tests.serving import served
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends
from voiceloop.config import Config
from voiceloop.phone_settings import PhoneSettings
from voiceloop.server.app import Gateway
from voiceloop.server.process import listen

PHONE = PhoneSettings(
    headers=("X-Order",),
    secrets=dict.fromkeys(
        ("twilio", "signalwire", "plivo", "vonage", "asterisk", "audiosocket"), TOKEN
    ),
)  # fmt: skip


@asynccontextmanager
async def phone_served(
    backends: Backends | None = None,
    phone: PhoneSettings = PHONE,
    telnyx_key: str = "",
    **options: Any,
) -> AsyncIterator[tuple[Gateway, str]]:
    """The gateway, and its address."""
    agent = options.pop("agent", AgentConfig(instructions="Be kind.", greeting="Good day."))
    sock = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    at = f"127.0.0.1:{free_port()}"
    secrets = {**phone.secrets, **({"telnyx": telnyx_key} if telnyx_key else {})}
    phone = replace(phone, public_url=url, audiosocket_at=at, secrets=secrets)
    config = Config(phone=phone, **options)
    async with served(backends, config, agent=agent, sock=sock) as (gateway, _):
        yield gateway, url
