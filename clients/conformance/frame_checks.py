"""Frames that are wrong: each is answered by one error event, and the session goes on."""

from __future__ import annotations

import asyncio
import json

from websockets.exceptions import ConnectionClosed

from clients.conformance.check import Checks, Failed, Json, Target, expect, expect_equal, of
from clients.conformance.line import Line, session
from clients.conformance.turns import begin, finish, say

checks = Checks("frames")

OVERSIZE_BYTES = 24 * 1024 * 1024  # base64 of the protocol's 15 MiB an append is 20 MiB


async def _refused(line: Line, frame: str | bytes, what: str) -> Json:
    """The frame is answered by an error, and the session goes on."""
    await line.send_frame(frame)
    error = await line.error(what)
    await line.is_alive()
    return error


@checks("malformed-json")
async def malformed_json(target: Target) -> None:
    """A frame that is no JSON object is an error; the session goes on."""
    async with session(target) as line:
        for frame in ("{", "[]", "null", '{"type": ', ""):
            await _refused(line, frame, f"the frame {frame!r}")


@checks("binary-frame")
async def binary_frame(target: Target) -> None:
    """A binary frame is an error or closes with 1003; it is never taken for audio."""
    async with session(target) as line:
        try:
            await _refused(line, b"\x00\x01" * 480, "a binary frame")
        except Failed:
            if line.socket.close_code != 1003:
                raise


@checks("unknown-event")
async def unknown_event(target: Target) -> None:
    """An event type that does not exist is an error that echoes its event_id, never silence."""
    async with session(target) as line:
        event_id = await line.send("conversation.item.frobnicate")
        error = await line.error("an unknown event")
        expect_equal("error.event_id", event_id, error.get("event_id"))
        await line.is_alive()


@checks("missing-type")
async def missing_type(target: Target) -> None:
    """An event without a type, or with one that is no string, is an error."""
    async with session(target) as line:
        await _refused(line, '{"event_id": "mine"}', "an event without a type")
        await _refused(line, '{"type": 5}', "an event whose type is a number")


@checks("missing-field")
async def missing_field(target: Target) -> None:
    """A required field that is missing, or of a wrong type, is an error."""
    wrong: list[Json] = [
        {"type": "input_audio_buffer.append"},
        {"type": "input_audio_buffer.append", "audio": 5},
        {"type": "conversation.item.create"},
        {"type": "conversation.item.retrieve"},
        {"type": "conversation.item.truncate", "item_id": "item", "content_index": "zero"},
        {"type": "session.update"},
    ]
    async with session(target) as line:
        for event in wrong:
            await _refused(line, json.dumps(event), f"{event}")


@checks("error-shape")
async def error_shape(target: Target) -> None:
    """An error event is {type, event_id, error: {type, message, code?, param?, event_id?}}."""
    async with session(target) as line:
        await line.send("response.cancel")
        error = await line.error("a cancel with nothing to cancel")
        for key in ("type", "message"):
            value = error.get(key)
            expect(isinstance(value, str) and value != "", f"error.{key}, a string", value)
        for key in ("code", "param", "event_id"):
            value = error.get(key)
            expect(isinstance(value, str | None), f"error.{key}, a string or null", value)
        extra = set(error) - {"type", "message", "code", "param", "event_id"}
        expect(not extra, "documented error fields only", ", ".join(sorted(extra)))


@checks("error-names-its-cause")
async def error_names_its_cause(target: Target) -> None:
    """The error's inner event_id is the client event's, so that a client knows which one failed."""
    async with session(target) as line:
        first = await line.send("conversation.item.retrieve", item_id="no_such_item")
        second = await line.send("conversation.item.delete", item_id="no_such_item")
        for sent in (first, second):
            error = await line.error("an item that does not exist")
            expect_equal("error.event_id", sent, error.get("event_id"))


@checks("codes-clients-know")
async def codes_clients_know(target: Target) -> None:
    """Errors of ordinary use have the codes that clients tolerate; another ends their session."""
    async with session(target) as line:
        await line.update(audio={"input": {"turn_detection": None}})
        wanted = "response_cancel_not_active"
        await line.send("response.cancel")
        expect_equal("the code", wanted, (await line.error("an idle cancel")).get("code"))
        wanted = "item_retrieve_invalid_item_id"
        await line.send("conversation.item.retrieve", item_id="no_such_item")
        expect_equal("the code", wanted, (await line.error("an unknown item")).get("code"))
        wanted = "input_audio_buffer_commit_empty"
        await line.send("input_audio_buffer.commit")
        expect_equal("the code", wanted, (await line.error("an empty commit")).get("code"))
        await say(line, "Hello.", id="item_twice")
        wanted = "item_create_duplicate_item_id"
        content = [{"type": "input_text", "text": "Again."}]
        item = {"id": "item_twice", "type": "message", "role": "user", "content": content}
        await line.send("conversation.item.create", item=item)
        expect_equal("the code", wanted, (await line.error("a second use")).get("code"))
        wanted = "conversation_already_has_active_response"
        response_id = await begin(line, output_modalities=["audio"])
        await line.send("response.create")
        expect_equal("the code", wanted, (await line.error("a second response")).get("code"))
        await line.send("response.cancel")
        await finish(line, response_id)


@checks("bad-base64")
async def bad_base64(target: Target) -> None:
    """Audio that is not base64 is an error, and nothing of it is buffered."""
    async with session(target, audio={"input": {"turn_detection": None}}) as line:
        for audio in ("not base64!", "AAA", "AAAA====", "é"):
            await line.send("input_audio_buffer.append", audio=audio)
            await line.error(f"the audio {audio!r}")
        await line.send("input_audio_buffer.commit")
        await line.error("a commit after refused audio")


@checks("odd-byte-count")
async def odd_byte_count(target: Target) -> None:
    """PCM16 with an odd byte count is an error: half a sample shifts all that follow into noise."""
    async with session(target) as line:
        await line.send("input_audio_buffer.append", audio="AAAA")  # 3 bytes
        await line.error("3 bytes of 16-bit audio")
        await line.is_alive()


@checks("deep-json")
async def deep_json(target: Target) -> None:
    """JSON nested by the thousand is an error, not a crash."""
    async with session(target) as line:
        frame = '{"type": "session.update", "session": ' + '{"a": ' * 3000 + "1" + "}" * 3001
        await _refused(line, frame, "JSON nested 3000 deep")


@checks("oversize-frame")
async def oversize_frame(target: Target) -> None:
    """A frame beyond the limit is an error or closes with 1009; the server takes the next call."""
    async with session(target) as line:
        frame = '{"type": "input_audio_buffer.append", "audio": "' + "A" * OVERSIZE_BYTES + '"}'
        try:
            await line.send_frame(frame)
            await line.error("a frame of 24 MiB")
        except Failed:
            code = await _close_code(line)
            expect(code == 1009, "an error or a close with 1009 after a frame of 24 MiB", code)
    async with session(target) as again:
        await again.is_alive()


async def _close_code(line: Line) -> int | None:
    try:
        async with asyncio.timeout(line.target.timeout_s):
            while True:
                await line.socket.recv()
    except (ConnectionClosed, TimeoutError):
        return line.socket.close_code


@checks("lone-surrogate")
async def lone_surrogate(target: Target) -> None:
    """Text with half a character (an escaped lone surrogate) is taken or refused; all goes on."""
    frame = (
        '{"type": "conversation.item.create", "item": {"type": "message", "role": "user", '
        '"content": [{"type": "input_text", "text": "\\ud83d"}]}}'
    )
    async with session(target) as line:
        await line.send_frame(frame)
        await line.send("session.update", session={"type": "realtime"})
        while (await line.next("session.updated"))["type"] != "session.updated":
            pass


@checks("every-error-answered-once")
async def every_error_once(target: Target) -> None:
    """Ten wrong events bring ten errors, in order: none is swallowed, none is repeated."""
    async with session(target) as line:
        sent = [await line.send("conversation.item.delete", item_id=f"none_{n}") for n in range(10)]
        found = [of(await line.error("a wrong event"), "event_id") for _ in sent]
        expect_equal("the errors' event_ids", sent, found)
        late = [event for event in await line.settle() if event["type"] == "error"]
        expect(not late, "no further error", len(late))
