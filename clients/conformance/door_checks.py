"""Getting in: addresses, keys, subprotocols, client secrets, and the beta's names."""

from __future__ import annotations

import time

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from clients.conformance.check import (
    Checks,
    Failed,
    Json,
    Skipped,
    Target,
    expect,
    expect_equal,
    of,
)
from clients.conformance.line import address, http_address, key_headers, opened, session
from clients.conformance.turns import ask, ask_in_text, begin, finish, say
from clients.connection import typed

checks = Checks("door")

KEY_SUBPROTOCOL = "openai-insecure-api-key."
BETA_NAMES = frozenset({
    "response.text.delta", "response.text.done", "response.audio.delta", "response.audio.done",
    "response.audio_transcript.delta", "response.audio_transcript.done",
    "conversation.item.created",
})  # fmt: skip
GA_NAMES = frozenset({
    "response.output_text.delta", "response.output_text.done", "response.output_audio.delta",
    "response.output_audio.done", "response.output_audio_transcript.delta",
    "response.output_audio_transcript.done", "conversation.item.added", "conversation.item.done",
})  # fmt: skip


@checks("model-echoed")
async def model_echoed(target: Target) -> None:
    """The session names the model that the URL asked for: clients want their own name back."""
    async with opened(target) as line:
        created = await line.until("session.created")
        expect_equal("session.model", target.model, of(created, "session.model"))


@checks("subprotocol-selected")
async def subprotocol_selected(target: Target) -> None:
    """A browser offers "realtime" and its key as subprotocols; the server selects "realtime"."""
    key = target.key or "no-key"
    offered = ["realtime", KEY_SUBPROTOCOL + key]
    async with opened(target, headers={}, subprotocols=offered) as line:
        found = line.socket.subprotocol
        expect_equal("the selected subprotocol", "realtime", found or "none")
        await line.until("session.created")


@checks("wrong-key-refused")
async def wrong_key_refused(target: Target) -> None:
    """A wrong key is refused before the upgrade, with HTTP 401 or 403."""
    if target.key is None:
        raise Skipped("no --api-key was given, so the server may be open to all")
    try:
        async with connect(
            address(target, {"model": target.model}),
            additional_headers={"Authorization": "Bearer not-a-key"},
            open_timeout=target.timeout_s,
        ):
            raise Failed("expected HTTP 401 for a wrong key, found the connection accepted")
    except InvalidStatus as refused:
        status = refused.response.status_code
        expect(status in (401, 403), "HTTP 401 or 403 for a wrong key", status)


@checks("client-secret-opens")
async def client_secret_opens(target: Target) -> None:
    """POST client_secrets gives an ek_ key; a session opened with it has its settings."""
    instructions = "Answer like a lighthouse keeper."
    asked: Json = {
        "expires_after": {"anchor": "created_at", "seconds": 60},
        "session": {"type": "realtime", "instructions": instructions},
    }
    secret = await _secret(target, asked)
    value, expires_at = str(of(secret, "value")), of(secret, "expires_at")
    expect(value.startswith("ek_"), "value to begin with ek_", value[:3])
    expect(
        isinstance(expires_at, int) and 0 < expires_at - time.time() < 120,
        "expires_at as epoch seconds 60 s ahead",
        expires_at,
    )
    expect_equal("session.type", "realtime", of(secret, "session.type"))
    for name in ("id", "object"):
        of(secret, f"session.{name}")
    headers = {"Authorization": f"Bearer {value}"}
    async with opened(target, headers=headers) as line:
        created = await line.until("session.created")
        expect_equal("session.instructions", instructions, of(created, "session.instructions"))


@checks("client-secret-bounded")
async def client_secret_bounded(target: Target) -> None:
    """A client secret lives 10 to 7200 seconds; another lifetime is refused with HTTP 400."""
    for seconds in (5, 7201):
        asked = {"expires_after": {"anchor": "created_at", "seconds": seconds}}
        response = await _post_secret(target, asked)
        expect_equal(f"the status for {seconds} s", 400, response.status_code)


@checks("client-secret-invented")
async def client_secret_invented(target: Target) -> None:
    """An ek_ key that was never issued opens nothing, on an open server too."""
    try:
        async with connect(
            address(target, {"model": target.model}),
            additional_headers={"Authorization": "Bearer ek_invented"},
            open_timeout=target.timeout_s,
        ):
            raise Failed("expected HTTP 401 for an invented ek_ key, found it accepted")
    except InvalidStatus as refused:
        expect_equal("the status", 401, refused.response.status_code)


@checks("ga-names")
async def ga_names(target: Target) -> None:
    """Without the beta header a session speaks the GA names only."""
    async with session(target) as line:
        await ask_in_text(line)
        found = BETA_NAMES.intersection(line.types())
        expect(not found, "GA event names", ", ".join(sorted(found)))


@checks("beta-names")
async def beta_names(target: Target) -> None:
    """With the header "OpenAI-Beta: realtime=v1" a session speaks the beta's names only."""
    headers = {**key_headers(target), "OpenAI-Beta": "realtime=v1"}
    async with opened(target, headers=headers) as line:
        created = await line.until("session.created")
        await line.send("session.update", session={"instructions": "Be brief."})
        await line.until("session.updated")
        item = typed("Hello.")
        await line.send("conversation.item.create", item=item)
        await line.until("conversation.item.created", "conversation.item.added")
        await line.send("response.create", response={"modalities": ["text"]})
        await line.until("response.done")
        found = set(line.types())
        if not found & BETA_NAMES:
            raise Skipped("the server has no beta names, which the protocol allows by now")
        mixed = sorted(found & GA_NAMES)
        expect(not mixed, "beta names only", ", ".join(mixed))
        expect("modalities" in of(created, "session"), "a flat session with modalities", "GA's")


@checks("sessions-apart")
async def sessions_apart(target: Target) -> None:
    """An item of one session is not to be had in another."""
    async with session(target) as one, session(target) as other:
        await say(one, "The word is heron.", id="item_of_one")
        await other.send("conversation.item.retrieve", item_id="item_of_one")
        await other.error("retrieving another session's item")


@checks("interleaved-sessions")
async def interleaved_sessions(target: Target) -> None:
    """Two sessions are answered at the same time, each with its own reply."""
    async with session(target) as one, session(target) as other:
        await say(one, "Hello.")
        first = await begin(one, output_modalities=["audio"])
        reply = await ask(other, "Hello.", output_modalities=["text"])
        expect(reply.id != first, "another response id in another session", reply.id)
        await finish(one, first)


async def _post_secret(target: Target, body: Json) -> httpx.Response:
    url = http_address(target, "/client_secrets")
    try:
        async with httpx.AsyncClient(timeout=target.timeout_s) as http:
            return await http.post(url, json=body, headers=key_headers(target))
    except httpx.HTTPError as error:
        raise Failed(f"expected an answer to POST {url}, found {error!r}") from None


async def _secret(target: Target, body: Json) -> Json:
    response = await _post_secret(target, body)
    expect_equal("the status of POST client_secrets", 200, response.status_code)
    found: Json = response.json()
    return found
