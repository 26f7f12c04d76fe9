"""The caller's audio committed by hand: buffer, commit, clear, and its transcription."""

from __future__ import annotations

import numpy as np

from clients.conformance.check import Checks, Json, Target, expect, expect_equal, expect_order, of
from clients.conformance.line import Line, opened, session
from clients.conformance.turns import begin, finish
from clients.connection import RATE_HZ

checks = Checks("input")

MANUAL: Json = {"input": {"turn_detection": None}}
HEARD: Json = {"input": {"turn_detection": None, "transcription": {"model": "whisper-1"}}}
COMPLETED = "conversation.item.input_audio_transcription.completed"


async def commit(line: Line) -> Json:
    """One utterance, committed by hand; returns the committed event."""
    await line.append_audio(line.target.speech)
    await line.send("input_audio_buffer.commit")
    return await line.until("input_audio_buffer.committed")


@checks("commit-by-hand")
async def commit_by_hand(target: Target) -> None:
    """Without turn detection a commit makes a user item and no response; that is asked for."""
    async with session(target, audio=MANUAL) as line:
        start = len(line.events)
        committed = await commit(line)
        added = await line.until("conversation.item.added")
        item = of(added, "item")
        expect_equal("the item's id", of(committed, "item_id"), of(item, "id"))
        expect_equal("its role", "user", of(item, "role"))
        expect_equal("its content type", "input_audio", of(item, "content.0.type"))
        await line.settle()
        expect("response.created" not in line.types(start), "no response unasked", "one")
        order = ("input_audio_buffer.committed", "conversation.item.added",
                 "conversation.item.done")  # fmt: skip
        expect_order(line.types(start), order)
        reply = await finish(line, await begin(line, output_modalities=["text"]))
        reply.expect_answered()


@checks("append-unanswered")
async def append_unanswered(target: Target) -> None:
    """input_audio_buffer.append is never acknowledged."""
    async with session(target, audio=MANUAL) as line:
        start = len(line.events)
        for _ in range(5):
            await line.append_audio(np.zeros(RATE_HZ // 50, dtype=np.int16))
        await line.settle()
        found = line.types(start)
        expect(not found, "no answer to an append", ", ".join(found))


@checks("commit-empty")
async def commit_empty(target: Target) -> None:
    """A commit of nothing is the error input_audio_buffer_commit_empty, and makes no item."""
    async with session(target, audio=MANUAL) as line:
        start = len(line.events)
        event_id = await line.send("input_audio_buffer.commit")
        error = await line.error("an empty commit")
        expect_equal("error.code", "input_audio_buffer_commit_empty", error.get("code"))
        expect_equal("error.event_id", event_id, error.get("event_id"))
        await line.settle()
        expect("conversation.item.added" not in line.types(start), "no item", "one")


@checks("clear")
async def clear(target: Target) -> None:
    """input_audio_buffer.clear answers cleared, and what was buffered cannot be committed."""
    async with session(target, audio=MANUAL) as line:
        await line.append_audio(target.speech)
        await line.send("input_audio_buffer.clear")
        await line.until("input_audio_buffer.cleared")
        await line.send("input_audio_buffer.commit")
        error = await line.error("a commit after a clear")
        expect_equal("error.code", "input_audio_buffer_commit_empty", error.get("code"))


@checks("transcription-off")
async def transcription_off(target: Target) -> None:
    """Transcription events come only to those who asked for transcription."""
    async with session(target, audio=MANUAL) as line:
        await commit(line)
        await finish(line, await begin(line, output_modalities=["text"]))
        found = [kind for kind in line.types() if "input_audio_transcription" in kind]
        expect(not found, "no transcription event unasked", ", ".join(found))


@checks("transcription-usage")
async def transcription_usage(target: Target) -> None:
    """transcription.completed has item_id, content_index, transcript and usage."""
    async with session(target, audio=HEARD) as line:
        committed = await commit(line)
        done = await line.until(COMPLETED)
        expect_equal("item_id", of(committed, "item_id"), of(done, "item_id"))
        expect_equal("content_index", 0, of(done, "content_index"))
        expect(isinstance(of(done, "transcript"), str), "a transcript", of(done, "transcript"))
        kind = of(done, "usage.type")
        expect(kind in ("duration", "tokens"), "usage.type duration or tokens", kind)
        if kind == "duration":
            seconds = of(done, "usage.seconds")
            expect(isinstance(seconds, int | float), "usage.seconds, a number", seconds)


@checks("transcript-told-once")
async def transcript_once(target: Target) -> None:
    """The user item comes without its transcript, which follows: told twice, clients join both."""
    async with session(target, audio=HEARD) as line:
        await commit(line)
        added = await line.until("conversation.item.added")
        found = of(added, "item.content.0").get("transcript")
        expect_equal("the added item's transcript", None, found)
        done = await line.until(COMPLETED)
        await line.settle()
        n_told = line.types().count(COMPLETED)
        expect_equal(f"the count of completed for {of(done, 'item_id')}", 1, n_told)


@checks("transcript-retrieved")
async def transcript_retrieved(target: Target) -> None:
    """Once completed was told, a retrieve of the item has the transcript: clients ask at once."""
    async with session(target, audio=HEARD) as line:
        await commit(line)
        done = await line.until(COMPLETED)
        await line.send("conversation.item.retrieve", item_id=of(done, "item_id"))
        item = of(await line.until("conversation.item.retrieved"), "item")
        found = of(item, "content.0").get("transcript")
        expect_equal("the item's transcript", of(done, "transcript"), found)


@checks("transcription-session")
async def transcription_session(target: Target) -> None:
    """?intent=transcription opens a session of that type: it hears, transcribes, never answers."""
    async with opened(target, query={"intent": "transcription"}) as line:
        created = await line.until("session.created")
        expect_equal("session.type", "transcription", of(created, "session.type"))
        patch = {"type": "transcription", "audio": HEARD}
        await line.send("session.update", session=patch)
        await line.until("session.updated")
        await commit(line)
        await line.until(COMPLETED)
        await line.settle()
        expect("response.created" not in line.types(), "no response", "one")
        await line.send("response.create")
        await line.error("response.create in a transcription session")
