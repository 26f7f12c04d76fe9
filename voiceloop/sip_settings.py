"""The table `[sip]` of a server's configuration: where telephones reach it by SIP, and which may.

Owns these keys. Without a port nothing listens, and nothing of SIP is imported.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from voiceloop.config_reader import key


@dataclass(frozen=True, slots=True)
class TrunkSettings:
    """The provider or exchange that calls go out over, and that this server registers with."""

    uri: str = key(
        "",
        "Our name at the trunk and its address, as `sip:shop@voip.example.com` or "
        "`sip:10.0.0.9:5060;transport=tcp`. Calls go out over it. Calls that go out show "
        "the name as the caller. Empty: no calls go out.",
        pattern=r"(sip:([^@\s]+@)?[A-Za-z0-9.\-\[\]:]+(;transport=(udp|tcp))?)?",
        wanted="sip:NAME@HOST, sip:HOST or sip:HOST:PORT, with ;transport=tcp or without",
    )
    password: str = key("", "The trunk's password for our name.", secret=True)
    dial_to: tuple[str, ...] = key(
        (),
        "Numbers and addresses that `POST /v1/phone/calls` may call, as `tel:+49*` or "
        "`sip:*@example.com`; `*` stands for any run of characters but `@`, `;`, `?` and `,`."
        " Without an entry the server calls no number.",
    )
    register: bool = key(
        False,
        "Tell it at the start, and again before that expires, where this server is: it then sends "
        "calls for our name here.",
    )


@dataclass(frozen=True, slots=True)
class SipSettings:
    """How telephones reach the server by SIP. Needs the extra `sip`."""

    port: int = key(
        0,
        "UDP and TCP port for calls by SIP, mostly 5060, at the server's `host`, or at all "
        "addresses where `sip.address` is set. 0: the server takes no SIP calls. Sound uses "
        "the UDP ports 20000 to 20400, two for each call.",
        ge=0,
        le=65535,
    )
    address: str = key(
        "",
        "The address that is written into messages, behind NAT or in a container. Empty: the "
        "machine's own on the way to each far end.",
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
    trunk: TrunkSettings = field(default_factory=TrunkSettings)
