"""The session object: announced first, merged by updates, echoed as it is in effect."""

from __future__ import annotations

from clients.conformance.check import Checks, Json, Target, expect, expect_equal, of
from clients.conformance.line import opened, session
from clients.conformance.turns import TOOL

checks = Checks("session")

# What a session of the GA protocol may hold; clients that validate reject other keys.
SESSION_KEYS = frozenset({
    "type", "object", "id", "model", "instructions", "output_modalities", "tools", "tool_choice",
    "parallel_tool_calls", "max_output_tokens", "temperature", "reasoning", "tracing",
    "truncation", "include", "prompt", "expires_at", "audio",
})  # fmt: skip
TRANSCRIPTION_KEYS = frozenset({"model", "language", "prompt"})


def detection(kind: str, **fields: object) -> Json:
    """An ``audio`` patch with this turn detection."""
    return {"input": {"turn_detection": {"type": kind, **fields}}}


@checks("session-created-first")
async def created_first(target: Target) -> None:
    """The first event is session.created, sent unprompted."""
    async with opened(target) as line:
        first = await line.next("session.created")
        expect_equal("the first event", "session.created", first["type"])


@checks("session-created-whole")
async def created_whole(target: Target) -> None:
    """session.created carries the whole session: id, model, audio, voice, tools, modalities."""
    async with opened(target) as line:
        created = (await line.until("session.created")).get("session")
        expect_equal("session.type", "realtime", of(created, "type"))
        expect_equal("session.object", "realtime.session", of(created, "object"))
        for path in (
            "id", "model", "instructions", "tools", "tool_choice", "output_modalities",
            "audio.input.format.type", "audio.input.turn_detection", "audio.output.format.type",
            "audio.output.voice",
        ):  # fmt: skip
            of(created, path)
        expect(bool(of(created, "id")), "a session id", "an empty one")


@checks("session-no-unknown-keys")
async def no_unknown_keys(target: Target) -> None:
    """The session echoed holds documented keys only; validating clients reject others."""
    async with session(target) as line:
        found = set(await line.update()) - SESSION_KEYS
        expect(not found, "documented session keys only", ", ".join(sorted(found)))


@checks("session-update-answered")
async def update_answered(target: Target) -> None:
    """Every session.update is answered by one session.updated: clients wait for it to begin."""
    async with opened(target) as line:
        await line.until("session.created")
        for n in (1, 2, 3):
            await line.update(instructions=f"Be brief, number {n}.")
        n_updated = line.types().count("session.updated")
        expect_equal("the count of session.updated after 3 updates", 3, n_updated)


@checks("session-update-echoed")
async def update_echoed(target: Target) -> None:
    """session.updated echoes the session that is in effect, with what was asked for."""
    asked: Json = {
        "instructions": "Speak like a pirate.",
        "tools": [TOOL],
        "tool_choice": "auto",
        "max_output_tokens": 200,
        "output_modalities": ["text"],
    }
    async with session(target) as line:
        found = await line.update(**asked)
        for key in ("instructions", "tool_choice", "max_output_tokens", "output_modalities"):
            expect_equal(f"session.{key}", asked[key], of(found, key))
        expect_equal("the first tool's name", TOOL["name"], of(found, "tools.0.name"))
        expect_equal("its schema", TOOL["parameters"], of(found, "tools.0.parameters"))


@checks("session-update-merges")
async def update_merges(target: Target) -> None:
    """An update changes the fields it names, at any depth, and no others; null clears."""
    async with session(target, instructions="Stay.", tools=[TOOL]) as line:
        voice = of(await line.update(), "audio.output.voice")
        found = await line.update(audio={"input": {"turn_detection": None}})
        expect_equal("session.instructions", "Stay.", of(found, "instructions"))
        expect_equal("the count of tools", 1, len(of(found, "tools")))
        expect_equal("audio.output.voice", voice, of(found, "audio.output.voice"))
        expect_equal("audio.input.turn_detection", None, of(found, "audio.input.turn_detection"))


@checks("turn-detection-flags")
async def turn_detection_flags(target: Target) -> None:
    """turn_detection echoes create_response and interrupt_response: clients read them."""
    async with session(target) as line:
        for kind in ("server_vad", "semantic_vad"):
            found = of(await line.update(audio=detection(kind)), "audio.input.turn_detection")
            for flag in ("create_response", "interrupt_response"):
                expect_equal(f"{kind}'s {flag}", True, of(found, flag))


@checks("turn-detection-reseeded")
async def turn_detection_reseeded(target: Target) -> None:
    """A change of the detection's type starts from that type's own defaults."""
    async with session(target) as line:
        await line.update(audio=detection("server_vad", silence_duration_ms=900))
        found = of(await line.update(audio=detection("semantic_vad")), "audio.input.turn_detection")
        expect_equal("semantic_vad's eagerness", "auto", of(found, "eagerness"))
        expect("silence_duration_ms" not in found, "no field of server_vad", "one")
        found = of(await line.update(audio=detection("server_vad")), "audio.input.turn_detection")
        defaults = {"threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": 500}
        for key, value in defaults.items():
            expect_equal(f"server_vad's {key}", value, of(found, key))


@checks("semantic-vad-eagerness")
async def semantic_eagerness(target: Target) -> None:
    """semantic_vad takes eagerness low, medium, high and auto, and no other."""
    async with session(target) as line:
        for level in ("low", "medium", "high", "auto"):
            found = await line.update(audio=detection("semantic_vad", eagerness=level))
            echoed = of(found, "audio.input.turn_detection.eagerness")
            expect_equal("eagerness", level, echoed)
        wrong = {"type": "realtime", "audio": detection("semantic_vad", eagerness="frantic")}
        await line.send("session.update", session=wrong)
        await line.error("an eagerness that does not exist")


@checks("output-rate")
async def output_rate(target: Target) -> None:
    """PCM output is 24000 Hz unless asked otherwise: clients assume it without reading."""
    async with session(target) as line:
        found = of(await line.update(), "audio.output.format")
        expect_equal("audio.output.format.type", "audio/pcm", of(found, "type"))
        expect_equal("audio.output.format.rate", 24000, of(found, "rate"))


@checks("formats-g711")
async def formats_g711(target: Target) -> None:
    """audio/pcmu and audio/pcma are taken and echoed, for telephones."""
    async with session(target) as line:
        for name in ("audio/pcmu", "audio/pcma"):
            both = {"format": {"type": name}}
            found = await line.update(audio={"input": both, "output": both})
            for side in ("input", "output"):
                echoed = of(found, f"audio.{side}.format.type")
                expect_equal(f"audio.{side}.format.type", name, echoed)


@checks("transcription-keys")
async def transcription_keys(target: Target) -> None:
    """The transcription echo holds model, language and prompt at most; other keys end a client."""
    asked = {"model": "whisper-1", "language": "en", "prompt": "cafe"}
    async with session(target) as line:
        updated = await line.update(audio={"input": {"transcription": asked}})
        found = of(updated, "audio.input.transcription")
        expect(isinstance(found, dict), "the transcription asked for", found)
        extra = set(found) - TRANSCRIPTION_KEYS
        expect(not extra, "no other key in the transcription echo", ", ".join(sorted(extra)))
        expect_equal("transcription.model", "whisper-1", of(found, "model"))


@checks("nulls-accepted")
async def nulls_accepted(target: Target) -> None:
    """Explicit nulls count as "not set": clients send whole objects with them."""
    nulls: Json = {
        "tools": None,
        "tool_choice": None,
        "max_output_tokens": None,
        "tracing": None,
        "prompt": None,
        "audio": {
            "input": {"transcription": None, "noise_reduction": None},
            "output": {"speed": None},
        },
    }
    async with session(target) as line:
        await line.update(**nulls)


@checks("unknown-setting-ignored")
async def unknown_setting_ignored(target: Target) -> None:
    """A setting the server does not know is ignored, not refused: an error here ends a client."""
    async with session(target) as line:
        found = await line.update(tracing="auto", include=[], x_newer_setting={"level": 3})
        expect("x_newer_setting" not in found, "no echo of an unknown setting", "one")
        await line.update(tracing="auto")


@checks("wrong-setting-refused")
async def wrong_setting_refused(target: Target) -> None:
    """A known setting with an impossible value is an error, and nothing of that update holds."""
    async with session(target, instructions="Before.") as line:
        wrong = {"type": "realtime", "instructions": "After.", "output_modalities": ["smell"]}
        await line.send("session.update", session=wrong)
        await line.error("an impossible modality")
        found = await line.update()
        expect_equal("session.instructions", "Before.", of(found, "instructions"))


@checks("both-modalities-refused")
async def both_modalities_refused(target: Target) -> None:
    """output_modalities is ["audio"] or ["text"], never both: audio brings its transcript."""
    async with session(target) as line:
        wrong = {"type": "realtime", "output_modalities": ["audio", "text"]}
        await line.send("session.update", session=wrong)
        await line.error("both modalities at once")
        await line.is_alive()


@checks("no-mcp-items")
async def no_mcp_items(target: Target) -> None:
    """A server without MCP takes a session with an MCP tool, and sends no mcp event or item."""
    mcp = {"type": "mcp", "server_label": "docs", "server_url": "https://mcp.invalid/sse"}
    async with session(target) as line:
        await line.update(tools=[mcp, TOOL])
        await line.settle()
        for event in line.events:
            kind = f"{event['type']} {event.get('item', {}).get('type', '')}"
            expect("mcp" not in kind, "no mcp event and no mcp item", kind)
