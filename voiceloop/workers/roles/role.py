"""Owns what ``worker.py`` asks of a role: the model of one kind behind messages.

A role turns gateway messages into calls of a synchronous model and the model's events into worker
messages. It is driven by one thread, and its calls return at once except ``step``, whose work is
bounded. Roles are found by name, so that a worker imports only the models it holds.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

import msgspec

from voiceloop.backends import RoleName
from voiceloop.workers.messages import (
    Asked,
    RoleReady,
    RoleSpec,
    StreamEvent,
    StreamFailed,
    ToRole,
)

FACTORIES: dict[RoleName, str] = {
    "engine": "voiceloop.workers.roles.language:load",
    "recognizer": "voiceloop.workers.roles.speech:load_recognizer",
    "voice": "voiceloop.workers.roles.speech:load_voice",
}


class StreamError(Exception):
    """One stream is at fault.

    retryable: a new stream may well succeed. is_request: what was asked for is at fault, and
    is_too_long: for its length alone.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        is_request: bool = False,
        is_too_long: bool = False,
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.is_request = is_request
        self.is_too_long = is_too_long

    def told(self, stream_id: str) -> StreamFailed:
        """As the gateway is told."""
        return StreamFailed(stream_id, str(self), self.retryable, self.is_request, self.is_too_long)


class RoleError(Exception):
    """A role cannot be loaded: one sentence that names what was expected and what was found.

    fault: the kind of `messages.Fault`, where the device has failed.
    """

    def __init__(self, message: str, fault: str = "") -> None:
        super().__init__(message)
        self.fault = fault


class RoleBroken(RoleError):
    """A model's state is not sound any more: nothing may be served from it, the process ends."""


class Role(Protocol):
    """One model of a worker."""

    rate_hz: int
    detail: str
    tokenizer: bytes  # of a language model: for the gateway to count tokens with; else empty
    tokens: str  # of a language model: as of `RoleReady`; else empty
    served: Mapping[str, str]  # of a language model: its formats, layers and drafter; else empty

    def warm_up(self) -> None:
        """Run the model once, so that the first caller does not pay for it."""

    def receive(self, message: ToRole) -> None:
        """Pass one message on. Raises: StreamError for the stream that the message names."""

    def close(self, stream_id: str) -> None:
        """Forget a stream; idempotent."""

    def has_work(self) -> bool: ...

    def totals(self) -> Mapping[str, float]:
        """Return what the model has counted since its start, by name; asked four times a second."""

    def step(
        self, asked: Callable[[], Sequence[Asked]] | None = None
    ) -> Sequence[StreamEvent | StreamFailed]:
        """Advance what is due by a bounded amount. What it raises ends every stream of the role.

        asked: replies that are, since; work nobody waits for may give way to them.
        """


def load_role(spec: RoleSpec) -> Role:
    """Import and call the role's factory. Raises: RoleError."""
    name = spec.factory or FACTORIES[spec.role]
    module_name, _, attribute = name.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise RoleError(
            f"expected the factory {name!r} of the role {spec.role!r}, found: {error}"
        ) from error
    build = cast(Callable[..., Role], factory)
    try:
        return build(**spec.options)
    except TypeError as error:
        # An option the factory does not know is the configuration's fault, not a bug.
        if "argument" not in str(error):
            raise
        raise RoleError(f"the role {spec.role!r} was given wrong options: {error}") from error


def ready_of(spec: RoleSpec, role: Role, load_ms: float) -> RoleReady:
    """Return what the gateways are told of a role that is loaded."""
    held = msgspec.structs.replace(spec.model, kv_blocks=int(role.totals().get("kv_blocks", 0)))
    served = dict(role.served)
    if served:
        served["gate"] = spec.gates.get(served.get("layers", ""), "none")
        served["fault"] = spec.after.kind if spec.after is not None else "none"
    detail = role.detail
    if spec.after is not None:
        detail += f"; it serves one step lower since the device failed: {spec.after.message}"
    return RoleReady(
        spec.role, load_ms, role.rate_hz, detail, role.tokenizer, role.tokens, held, served,
        spec.after,
    )  # fmt: skip


def model_name(folder: str) -> str:
    """Return what to call the model in a folder: its id, where the folder is a snapshot of the
    cache.
    """
    path = Path(folder)
    if path.parent.name == "snapshots" and path.parent.parent.name.startswith("models--"):
        return path.parent.parent.name.removeprefix("models--").replace("--", "/")
    return path.name
