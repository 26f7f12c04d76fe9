"""Voices of vendors that stream: clauses go out as they are whole, words lie where they are told.

Each vendor is scripted from its public reference; none was asked itself.
"""

from __future__ import annotations

import asyncio
import base64
from contextlib import AsyncExitStack
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, instant_backends
from tests.scripted_socket import ScriptedVendor, serving, tell
from tests.waiting import until
from voiceloop.backends import Speech, SpeechEnd, SpokenWord, VoiceOptions
from voiceloop.errors import BackendError, BackendRefused, ConfigError
from voiceloop.models.providers import open_provider
from voiceloop.remote.voice import RATE_HZ

pytestmark = pytest.mark.virtual_time

CHARACTER_MS = 20
TEXT = "Good morning, a latte is four dollars."


def sound(text: str) -> str:
    """Of every character CHARACTER_MS."""
    samples = b"\x00\x10" * (len(text) * CHARACTER_MS * RATE_HZ // 1000)
    return base64.b64encode(samples).decode()


class ElevenLabs(ScriptedVendor):
    """Speaks each text in two pieces; says where its characters lie in each of them."""

    key_header = "xi-api-key"

    async def answer(self, socket: ServerConnection, message: dict[str, Any]) -> None:
        if "fail" in message["text"]:
            await tell(socket, error="said: fail", code=1008)
        elif message["text"] == "":
            await tell(socket, audio=None, isFinal=True)
            await socket.close()
        elif text := message["text"].strip() and message["text"]:
            middle = len(text) // 2
            for part in (text[:middle], text[middle:]):
                times = [CHARACTER_MS * at for at in range(len(part))]
                alignment = {"chars": list(part), "charStartTimesMs": times,
                             "charDurationsMs": [CHARACTER_MS] * len(part)}  # fmt: skip
                await tell(socket, audio=sound(part), isFinal=None, alignment=alignment)


class Cartesia(ScriptedVendor):
    """Speaks each transcript at once; says where its words lie in all of its context."""

    key_header = "x-api-key"

    def __init__(self) -> None:
        super().__init__()
        self.n_spoken: dict[str, int] = {}

    async def answer(self, socket: ServerConnection, message: dict[str, Any]) -> None:
        context, text = message["context_id"], message["transcript"]
        if "fail" in text:
            await tell(socket, type="error", done=True, context_id=context,
                       message="said: fail", error_code="voice_not_found")  # fmt: skip
            return
        if text.strip():
            at = self.n_spoken.get(context, 0)
            self.n_spoken[context] = at + len(text)
            await tell(socket, type="chunk", data=sound(text), done=False, context_id=context)
            starts = [text.index(word) + at for word in text.split()]
            ends = [s + len(w) for s, w in zip(starts, text.split(), strict=True)]
            times = {"words": text.split(),
                     "start": [s * CHARACTER_MS / 1000 for s in starts],
                     "end": [e * CHARACTER_MS / 1000 for e in ends]}  # fmt: skip
            await tell(socket, type="timestamps", word_timestamps=times, context_id=context)
        if not message["continue"]:
            await tell(socket, type="done", done=True, context_id=context)


VENDORS: dict[str, type[ScriptedVendor]] = {"elevenlabs": ElevenLabs, "cartesia": Cartesia}
both = pytest.mark.parametrize("name", VENDORS)


async def opened(name: str, vendor: ScriptedVendor, stack: AsyncExitStack) -> Any:
    await stack.enter_async_context(serving(vendor))
    url = f"{name}+{vendor.url}"
    return await open_provider("voice", [url], ["secret"], "a-model", stack)


async def spoken(stream: Any) -> tuple[int, list[SpokenWord], int]:
    """Samples, words, and how many samples the end says there were."""
    n_samples, words = 0, list[SpokenWord]()
    async for event in stream.events():
        if isinstance(event, SpeechEnd):
            return n_samples, words, event.n_samples
        assert isinstance(event, Speech)
        n_samples += len(event.samples) // 2
        words += event.words
    raise AssertionError("no end")


@both
async def test_speech_begins_before_the_text_ends_and_its_words_lie_where_they_are_told(
    name: str,
) -> None:
    async with AsyncExitStack() as stack:
        voice = await opened(name, VENDORS[name](), stack)
        stream = await voice.open("s1", VoiceOptions(voice="a-voice"))
        stream.feed(TEXT[:20])
        begun = asyncio.create_task(anext(aiter(stream.events())))
        first = await begun  # the first clause, with more of the text to come
        assert isinstance(first, Speech) and first.samples
        stream.feed(TEXT[20:])
        stream.finish()
        n_samples, words, n_told = await spoken(stream)
        words = [*first.words, *words]
        assert n_told == n_samples + len(first.samples) // 2
        assert [word.text for word in words] == TEXT.split()
        assert [TEXT[: word.text_end].split()[-1] for word in words] == TEXT.split()
        latte = next(word for word in words if word.text == "latte")
        assert latte.start_ms == pytest.approx(CHARACTER_MS * TEXT.index("latte"), abs=25)
        await stream.close()


@both
async def test_a_connection_is_dialled_before_it_is_needed(name: str) -> None:
    async with AsyncExitStack() as stack:
        vendor = VENDORS[name]()
        voice = await opened(name, vendor, stack)
        await until(lambda: len(vendor.paths) == 2)  # the start's own, and the next
        for number in range(3):
            stream = await voice.open(f"s{number}", VoiceOptions())
            stream.feed("Good morning. ")
            stream.finish()
            assert (await spoken(stream))[0] > 0
            await stream.close()
        assert set(vendor.keys) == {"secret"}
        assert "a-model" in str(vendor.queries) + str(vendor.said)


@both
async def test_a_failure_is_told_by_its_code_and_never_in_its_words(name: str) -> None:
    async with AsyncExitStack() as stack:
        voice = await opened(name, VENDORS[name](), stack)
        stream = await voice.open("s1", VoiceOptions())
        stream.feed("Please fail. ")
        with pytest.raises(BackendError, match="1008|voice_not_found") as failure:
            await spoken(stream)
        assert "said" not in str(failure.value)
        await stream.close()


@both
async def test_a_lost_connection_fails_the_utterance_and_the_next_is_spoken(name: str) -> None:
    async with AsyncExitStack() as stack:
        vendor = VENDORS[name]()
        voice = await opened(name, vendor, stack)
        stream = await voice.open("s1", VoiceOptions())
        for socket in list(vendor.sockets):
            await socket.close()
        with pytest.raises(BackendError, match="connection lost"):
            await spoken(stream)
        await stream.close()
        stream = await voice.open("s2", VoiceOptions())
        stream.feed("Good morning. ")
        stream.finish()
        assert (await spoken(stream))[0] > 0
        await stream.close()


@both
async def test_a_wrong_key_is_refused_at_the_start_and_none_is_a_mistake(name: str) -> None:
    async with AsyncExitStack() as stack:
        vendor = VENDORS[name]()
        vendor.refuses = True
        with pytest.raises(BackendRefused, match="401"):
            await opened(name, vendor, stack)
        with pytest.raises(ConfigError, match="tts_key: expected a key of"):
            await open_provider("voice", [f"{name}:"], [], "", stack)


@both
async def test_a_call_is_answered_in_the_voice(name: str) -> None:
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        voice = await opened(name, VENDORS[name](), stack)
        model = FakeLanguageModel([TEXT])
        async with Caller(loop.time, instant_backends(language_model=model, voice=voice)) as caller:
            await caller.say(400)
            await caller.listen_until("response.done")
            assert caller.transcript() == TEXT
            assert caller.audio_ms() >= CHARACTER_MS * (len(TEXT) - 1)
