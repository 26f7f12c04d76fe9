"""Deepgram, scripted from its public reference: partials, whole words at a pause, evidence."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.server import ServerConnection

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, instant_backends
from tests.scripted_socket import ScriptedVendor, serving, tell
from tests.waiting import until as holds
from voiceloop.backends import Partial, RecognizerEvent, RecognizerOptions, Transcript
from voiceloop.errors import BackendError, BackendRefused, ConfigError
from voiceloop.models.providers import open_provider
from voiceloop.remote import deepgram

pytestmark = pytest.mark.virtual_time

LOUD = (8000 * np.sin(np.arange(8000) / 5)).astype("<i2").tobytes()  # half a second
QUIET = bytes(3200)  # a tenth of a second
BYTES_PER_S = 32_000


class Deepgram(ScriptedVendor):
    """Hears a word in each half second of sound; tells it at once, and for good when asked to.

    finalizes: whether it says that it has. speech_final: what it tells with a final result.
    """

    key_header = "authorization"

    def __init__(self, words: str = "one latte please and two teas") -> None:
        super().__init__()
        self.words = words.split()
        self.finalizes = True
        self.speech_final = False
        self._n_bytes = self._n_final = self._n_heard = 0

    async def hear(self, socket: ServerConnection, sound: bytes) -> None:
        self._n_bytes += len(sound)
        if any(sound):
            self._n_heard += 1
            await self._results(socket, is_final=False)

    async def answer(self, socket: ServerConnection, message: dict[str, Any]) -> None:
        if message["type"] == "Finalize" and self.finalizes:
            await self._results(socket, is_final=True, from_finalize=True)

    async def _results(self, socket: ServerConnection, **told: Any) -> None:
        end_s = self._n_bytes / BYTES_PER_S
        new = self.words[self._n_final : self._n_heard]
        start_s = max(0.0, end_s - 0.5 * max(1, len(new)))
        words = [
            {"word": word, "punctuated_word": word, "start": start_s + 0.5 * at,
             "end": start_s + 0.5 * at + 0.3, "confidence": 0.9}
            for at, word in enumerate(new)
        ]  # fmt: skip
        if told["is_final"]:
            self._n_final = self._n_heard
        alternative = {"transcript": " ".join(new), "confidence": 0.9, "words": words}
        await tell(
            socket, type="Results", channel_index=[0, 1], start=start_s, duration=end_s - start_s,
            channel={"alternatives": [alternative]}, speech_final=self.speech_final, **told,
        )  # fmt: skip


async def opened(vendor: ScriptedVendor, stack: AsyncExitStack) -> Any:
    await stack.enter_async_context(serving(vendor))
    url = f"deepgram+{vendor.url}/v1/listen"
    return await open_provider("recognizer", [url], ["secret"], "", stack)


async def until(events: Any, kind: type, **wanted: Any) -> Any:
    async for event in events:
        if isinstance(event, kind) and all(getattr(event, k) == v for k, v in wanted.items()):
            return event
    raise AssertionError(f"no {kind.__name__}")


def words(event: RecognizerEvent) -> list[str]:
    if isinstance(event, Transcript):
        return event.text.split()
    return [*event.stable_words, *event.unstable_words]


async def test_words_come_while_they_are_spoken_and_are_whole_at_the_pause() -> None:
    async with AsyncExitStack() as stack:
        recognizer = await opened(Deepgram(), stack)
        stream = await recognizer.open("s", RecognizerOptions(hotwords=("Juniper",)))
        events = stream.events()
        stream.feed(LOUD)
        first = await until(events, Partial)
        assert (first.stable_words, first.unstable_words) == ((), ("one",))
        stream.feed(LOUD)
        stream.flush()
        flushed = await until(events, Partial, flushed=True)
        assert (flushed.stable_words, flushed.p_voice) == (("one", "latte"), None)
        stream.feed(QUIET)
        stream.finalize()  # nothing was said since: it is not asked again
        told = await until(events, Transcript)
        assert words(told) == ["one", "latte"] and told.words[0].start_ms < 100
        await stream.close()


async def test_each_segment_has_its_own_words_in_its_own_time() -> None:
    async with AsyncExitStack() as stack:
        vendor = Deepgram()
        stream = await (await opened(vendor, stack)).open("s", RecognizerOptions())
        events, found = stream.events(), []
        for _ in range(2):
            stream.feed(LOUD)
            stream.feed(LOUD)
            stream.finalize()
            found.append(await until(events, Transcript))
        assert [words(one) for one in found] == [["one", "latte"], ["please", "and"]]
        assert [one.segment for one in found] == [0, 1]
        assert found[1].words[0].start_ms < 100
        assert [message["type"] for message in vendor.said] == ["Finalize"] * 2
        await stream.close()


async def test_its_own_end_of_an_utterance_is_evidence_of_ours() -> None:
    async with AsyncExitStack() as stack:
        vendor = Deepgram()
        vendor.speech_final = True
        stream = await (await opened(vendor, stack)).open("s", RecognizerOptions())
        events = stream.events()
        stream.feed(LOUD)
        stream.flush()
        flushed = await until(events, Partial, flushed=True)
        assert flushed.p_voice == deepgram.SPEECH_FINAL_LOG_ODDS
        await stream.close()


async def test_a_finalize_that_nobody_answers_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deepgram, "FINALIZE_S", 0.01)
    monkeypatch.setattr(deepgram, "IDLE_S", 0.01)
    async with AsyncExitStack() as stack:
        vendor = Deepgram()
        vendor.finalizes = False
        stream = await (await opened(vendor, stack)).open("s", RecognizerOptions())
        events = stream.events()
        stream.feed(LOUD)
        stream.flush()
        assert words(await until(events, Partial, flushed=True)) == ["one"]
        await holds(lambda: {"type": "KeepAlive"} in vendor.said)
        await stream.close()


async def test_other_settings_open_another_connection_and_a_lost_one_fails() -> None:
    async with AsyncExitStack() as stack:
        vendor = Deepgram()
        recognizer = await opened(vendor, stack)
        stream = await recognizer.open("s", RecognizerOptions())
        stream.set_options(RecognizerOptions(context="a cafe"))
        assert stream.live
        stream.set_options(RecognizerOptions(language="de"))
        with pytest.raises(BackendError, match="other settings"):
            await anext(stream.events())
        await stream.close()
        other = await recognizer.open("s", RecognizerOptions(language="de", hotwords=("Milch",)))
        asked = vendor.queries[-1]
        assert (asked["language"], asked["keyterm"]) == (["de"], ["Milch"])
        assert vendor.keys[-1] == "Token secret"
        for socket in list(vendor.sockets):
            await socket.close()
        with pytest.raises(BackendError, match="connection lost"):
            await anext(other.events())
        await other.close()


async def test_a_wrong_key_is_refused_at_the_start_and_none_is_a_mistake() -> None:
    async with AsyncExitStack() as stack:
        vendor = Deepgram()
        vendor.refuses = True
        with pytest.raises(BackendRefused, match="401"):
            await opened(vendor, stack)
        with pytest.raises(ConfigError, match="stt_key: expected a key of Deepgram"):
            await open_provider("recognizer", ["deepgram:"], [], "", stack)


async def test_a_call_is_heard() -> None:
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        recognizer = await opened(Deepgram("one " * 200), stack)
        model = FakeLanguageModel(["Four dollars."])
        backends = instant_backends(recognizer=recognizer, language_model=model)
        async with Caller(loop.time, backends) as caller:
            await caller.say(600)
            await caller.listen_until("response.done")
    assert caller.transcript() == "Four dollars."
    assert model.prompts[-1][-1].content.startswith("one")
