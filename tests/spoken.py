"""Saying something in a voice or through a worker, and what was heard of it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

import voiceloop.backends
from audio.stream import Event, Speech, VoiceModel, VoiceOptions
from tests.stepping import drain
from voiceloop.backends import Voice


def speak(
    voice: VoiceModel, texts: Iterable[str], voice_id: str = "", stream_id: str = "a"
) -> list[Event]:
    """All events of one reply, its text fed before the first step."""
    voice.open(stream_id, VoiceOptions(voice=voice_id))
    for text in texts:
        voice.feed(stream_id, text)
    voice.finish(stream_id)
    events = drain(voice)
    return events


def pieces(text: str, sizes: Iterable[int]) -> list[str]:
    """text cut into pieces of these sizes, and the rest."""
    found: list[str] = []
    for size in sizes:
        found.append(text[:size])
        text = text[size:]
    return [*filter(None, found), text]


def samples_of(events: Iterable[Event], stream_id: str = "a") -> NDArray[np.int64]:
    pieces = [e.samples for e in events if isinstance(e, Speech) and e.stream_id == stream_id]
    return np.concatenate(pieces).astype(np.int64)


async def said_by(voice: Voice, text: str, stream_id: str = "sess_1.turn_1") -> bytes:
    """The first sound of one utterance: its text, where the voice of a worker is scripted."""
    stream = await voice.open(stream_id, voiceloop.backends.VoiceOptions())
    try:
        stream.feed(text)
        async for event in stream.events():
            assert isinstance(event, voiceloop.backends.Speech)
            return event.samples
    finally:
        await stream.close()
    raise AssertionError("the stream ended without speech")
