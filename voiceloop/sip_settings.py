"""The table `[sip]` of a server's configuration: where telephones reach it by SIP, and which may.

Owns these keys. Without a port nothing listens, and nothing of SIP is imported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from voiceloop.config_reader import key

CodecName = Literal["opus", "g722", "pcma", "pcmu"]


@dataclass(frozen=True, slots=True)
class TrunkSettings:
    """The provider or exchange that calls go out over, and that this server registers with."""

    uri: str = key(
        "",
        "Where calls go out to, as `sip:voip.example.com` or `sip:10.0.0.9:5060;transport=tcp`. "
        "Empty: no calls go out.",
        pattern=r"(sip:[A-Za-z0-9.\-\[\]:]+(;transport=(udp|tcp))?)?",
        wanted="sip:HOST, sip:HOST:PORT, with ;transport=tcp or without",
    )
    user: str = key("", "The name that it knows this server by. It is the caller of calls out.")
    password: str = key("", "What it asks for with that name.", secret=True)
    dial_to: tuple[str, ...] = key(
        (),
        "Numbers and addresses that `POST /v1/phone/calls` may call, as `tel:+49*` or "
        "`sip:*@example.com`; `*` stands for any run of characters but `@`, `;`, `?` and `,`. "
        "Without one none is called.",
    )
    register: bool = key(
        False,
        "Tell it at the start, and again before that expires, where this server is: it then sends "
        "calls for `user` here.",
    )


@dataclass(frozen=True, slots=True)
class SipSettings:
    """How telephones reach the server by SIP. Needs `pip install 'voiceloop[sip]'`."""

    port: int = key(
        0,
        "UDP and TCP port for calls by SIP, mostly 5060, at `host`. 0: none are taken.",
        ge=0,
        le=65535,
    )
    host: str = key("", "The address to listen at. Empty: the server's `host`.")
    address: str = key(
        "",
        "The address that is written into messages, behind NAT or in a container. Empty: the "
        "machine's own on the way to each far end.",
    )
    rtp_ports: tuple[int, ...] = key(
        (20000, 20400),
        "First and last UDP port of the calls' sound; each call takes two. `[]`: any free ones.",
    )
    allow: tuple[str, ...] = key(
        (),
        "Addresses and networks whose calls are taken without a password, as `10.0.0.0/24`: your "
        "exchange, your border controller. All others have to be among `users`.",
    )
    users: tuple[str, ...] = key(
        (),
        "Telephones and exchanges that prove a password, each as `name:password`. Their addresses "
        "need not be known.",
        secret=True,
    )
    codecs: tuple[CodecName, ...] = key(
        ("opus", "g722", "pcma", "pcmu"),
        "Codecs of a call, the one you like best first. A call has the first that its far end "
        "takes.",
    )
    ring_s: float = key(60.0, "How long a call that goes out may ring.", ge=1, le=300)
    trunk: TrunkSettings = field(default_factory=TrunkSettings)
