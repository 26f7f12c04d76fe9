"""The doctor's self-tests: one short piece of real work for each model.

Each returns what it found as a sentence, or raises what went wrong.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import numpy as np

from audio.frames import RECOGNIZER_HZ
from audio.vad import Vad
from voiceloop.backends import (
    ChatMessage,
    Generated,
    GenerateParams,
    RecognizerOptions,
    RoleName,
    SpeechEnd,
    TextDelta,
    Transcript,
    VoiceOptions,
)
from voiceloop.errors import BackendError
from voiceloop.workers.supervisor import Supervisor

STREAM_ID = "doctor"


def hear_silence() -> str:
    """One second without speech through the voice activity model."""
    started = time.monotonic()
    vad = Vad()
    loaded = time.monotonic()
    windows = vad.feed(np.zeros(RECOGNIZER_HZ, np.int16))
    if not windows or max(window.probability for window in windows) > 0.5:
        raise BackendError("expected no speech in a second of silence, found some")
    took_ms = 1000 * (time.monotonic() - loaded)
    return f"loaded in {1000 * (loaded - started):.0f} ms, one second took {took_ms:.0f} ms"


async def recognize(supervisor: Supervisor) -> str:
    """One second of faint noise: the transcript must come, whatever it says."""
    noise = np.random.default_rng(0).normal(0, 50, RECOGNIZER_HZ).astype("<i2").tobytes()
    stream = await supervisor.recognizer().open(STREAM_ID, RecognizerOptions())
    try:
        started = time.monotonic()
        stream.feed(noise)
        stream.finalize()
        async for event in stream.events():
            if isinstance(event, Transcript):
                return f"one second took {1000 * (time.monotonic() - started):.0f} ms"
    finally:
        await stream.close()
    raise BackendError("expected a transcript, found none")


async def reply(supervisor: Supervisor) -> str:
    """A greeting: the agent's own answer."""
    history = (ChatMessage("system", "You are a helpful assistant."),)
    branch = await supervisor.language_model().branch(STREAM_ID, history)
    try:
        started = time.monotonic()
        branch.commit((ChatMessage("user", "hello"),), GenerateParams(max_tokens=32))
        first_ms, text = 0.0, ""
        async for event in branch.events():
            if isinstance(event, TextDelta):
                first_ms = first_ms or 1000 * (time.monotonic() - started)
                text += event.text
            elif isinstance(event, Generated):
                total_ms = 1000 * (time.monotonic() - started)
                return f'first word after {first_ms:.0f} ms, all after {total_ms:.0f} ms: "{text}"'
    finally:
        await branch.close()
    raise BackendError("expected a reply, found none")


async def speak(supervisor: Supervisor) -> str:
    """Two words: the audio must come, and must not be silence."""
    voice = supervisor.voice()
    stream = await voice.open(STREAM_ID, VoiceOptions())
    try:
        started = time.monotonic()
        stream.feed("Good morning.")
        stream.finish()
        first_ms, loudest = 0.0, 0
        async for event in stream.events():
            if isinstance(event, SpeechEnd):
                if loudest < 100:
                    raise BackendError("expected audible speech, found silence")
                seconds = event.n_samples / voice.rate_hz
                return f"{seconds:.1f} s of speech, the first after {first_ms:.0f} ms"
            first_ms = first_ms or 1000 * (time.monotonic() - started)
            samples = np.frombuffer(event.samples, "<i2")
            loudest = max(loudest, int(np.abs(samples.astype(np.int32)).max(initial=0)))
    finally:
        await stream.close()
    raise BackendError("expected speech, found none")


STAGES: dict[RoleName, Callable[[Supervisor], Awaitable[str]]] = {
    "recognizer": recognize,
    "engine": reply,
    "voice": speak,
}
