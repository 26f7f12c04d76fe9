"""Speech-to-text, language and speech services that know everything and take no time.

``python -m benchmarks.peers.stub_services --port N --turns FILE [--voice FILE] [--delays-ms
STT,FIRST,TOKEN,TTS]``: the OpenAI routes that every runtime of ``benchmarks.peers`` is given. The
recognizer returns the true words *inside the audio it was sent*: it finds the audio in the turn
that is being played (the caller says which, at ``POST /now``) by cross-correlation, and answers
with the words whose middle the audio covers. A runtime that sends half a sentence gets half a
sentence.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import pickle
import sys
import wave
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import numpy as np
import uvicorn
from numpy.typing import NDArray
from scipy.signal import fftconvolve, resample_poly
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from clients.arguments import number, whole_number
from clients.command import run
from clients.errors import ClientError
from clients.report.waveform import FULL_SCALE

MATCH_HZ = 4000  # speech's envelope and pitch are enough to find the place, in a few ms
LEAST_LIKENESS = 0.3  # of the audio with the turn where they overlap; noise alone has < 0.1
VOICE_HZ = 24_000
MS_PER_CHARACTER = 50.0
REPLIES = {
    "short": "Certainly, that is noted.",
    "long": "Certainly, that is noted, and here is a good deal more about it, so that there is "
    "time enough to interrupt me while I am still going on about it.",
}


@dataclass(frozen=True, slots=True)
class KnownTurn:
    """What is played: int16 at 16 kHz, and its words with their times in ms."""

    samples: NDArray[np.int16]
    words: tuple[tuple[str, float, float], ...]


@dataclass(frozen=True, slots=True)
class Delays:
    """How long each service takes, in ms: the STT and TTS per request, the LLM per token. What the
    stub itself computes for an answer is part of it.
    """

    stt: float = 0.0
    first_token: float = 0.0
    token: float = 0.0
    tts: float = 0.0


def words_inside(turn: KnownTurn, audio: NDArray[np.int16], rate_hz: int) -> tuple[str, ...]:
    """The turn's words whose middle lies in the audio; none where the audio is not of the turn."""
    whole = resample_poly(turn.samples.astype(np.float64), 1, 16_000 // MATCH_HZ)
    part = resample_poly(audio.astype(np.float64), MATCH_HZ, rate_hz)
    if len(part) == 0 or not part.any():
        return ()
    products = fftconvolve(whole, part[::-1])
    place = int(np.argmax(products)) - len(part) + 1  # of the audio's first sample in the turn
    begin, end = max(0, place), min(len(whole), place + len(part))
    ours, theirs = whole[begin:end], part[begin - place : end - place]
    scale = float(np.linalg.norm(ours) * np.linalg.norm(theirs))
    if scale == 0.0 or float(ours @ theirs) / scale < LEAST_LIKENESS:
        return ()
    return tuple(
        word
        for word, start_ms, end_ms in turn.words
        if _is_there(whole, part, place, start_ms * MATCH_HZ / 1000.0, end_ms * MATCH_HZ / 1000.0)
    )


def _is_there(
    whole: NDArray[np.float64], part: NDArray[np.float64], place: int, start: float, end: float
) -> bool:
    """Whether the audio covers the middle of a word, with the word's sound and not with padding."""
    middle = (start + end) / 2.0
    if not place <= middle <= place + len(part):
        return False
    begin = max(int(start), place, 0)
    stop = min(int(end), place + len(part), len(whole))
    ours, theirs = whole[begin:stop], part[begin - place : stop - place]
    return float(ours @ theirs) > LEAST_LIKENESS * float(ours @ ours) * _gain(whole, part, place)


def _gain(whole: NDArray[np.float64], part: NDArray[np.float64], place: int) -> float:
    """How much louder the audio is than the turn where they overlap."""
    begin, stop = max(0, place), min(len(whole), place + len(part))
    ours, theirs = whole[begin:stop], part[begin - place : stop - place]
    return float(ours @ theirs) / max(float(ours @ ours), 1.0)


def read_wav(data: bytes) -> tuple[NDArray[np.int16], int]:
    with wave.open(io.BytesIO(data), "rb") as file:
        # A stream's header may promise more than there is; what is there counts.
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
        return samples.reshape(-1, file.getnchannels())[:, 0].astype(np.int16), file.getframerate()


def spoken(text: str, voice: NDArray[np.int16] | None = None) -> bytes:
    """A voice of one vowel, as loud from its first sample on as to its last: PCM16 at 24 kHz.

    voice: a recording at that rate which is heard instead, from its beginning, for as long.
    """
    n_samples = round(len(text) * MS_PER_CHARACTER * VOICE_HZ / 1000.0)
    if voice is not None:
        return np.resize(voice, n_samples).astype("<i2").tobytes()
    t = np.arange(n_samples) / VOICE_HZ
    tone = sum(np.sin(2 * np.pi * 140.0 * k * t + 0.3 * k) / k for k in range(1, 12))
    return (0.15 * FULL_SCALE * tone / np.abs(tone).max()).astype("<i2").tobytes()


class Stubs:
    """The three services over one set of turns."""

    def __init__(
        self, turns: list[KnownTurn], delays: Delays, voice: NDArray[np.int16] | None = None
    ) -> None:
        self._voice = voice
        self._turns = turns
        self._delays = delays
        self._now = 0
        self._reply = "short"

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/now", self._tell, methods=["POST"]),
                Route("/readyz", self._models),
                Route("/v1/models", self._models),
                Route("/v1/audio/transcriptions", self._transcribe, methods=["POST"]),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/audio/speech", self._speak, methods=["POST"]),
            ]
        )

    async def _tell(self, request: Request) -> Response:
        told = await request.json()
        self._now, self._reply = int(told["turn"]), told["reply"]
        return JSONResponse({})

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "stub", "object": "model"}]})

    async def _transcribe(self, request: Request) -> Response:
        until_s = monotonic() + self._delays.stt / 1000.0
        async with request.form() as form:
            upload = form["file"]
            data = b"" if isinstance(upload, str) else await upload.read()
        samples, rate_hz = read_wav(data)
        words = words_inside(self._turns[self._now], samples, rate_hz)
        await _sleep_until(until_s)
        return JSONResponse({"text": " ".join(words)})

    async def _chat(self, request: Request) -> Response:
        asked = await request.json()
        text = REPLIES[self._reply]
        if not asked.get("stream"):
            message = {"role": "assistant", "content": text}
            return JSONResponse(_completion(message=message))
        return StreamingResponse(self._tokens(text), media_type="text/event-stream")

    async def _tokens(self, text: str) -> AsyncIterator[str]:
        await asyncio.sleep(self._delays.first_token / 1000.0)
        for index, word in enumerate(text.split()):
            content = word if index == 0 else f" {word}"
            yield _event(_completion(delta={"role": "assistant", "content": content}))
            if self._delays.token:
                await asyncio.sleep(self._delays.token / 1000.0)
        yield _event(_completion(delta={}, finish_reason="stop"))
        yield "data: [DONE]\n\n"

    async def _speak(self, request: Request) -> Response:
        until_s = monotonic() + self._delays.tts / 1000.0
        asked = await request.json()
        said = spoken(asked["input"], self._voice)
        await _sleep_until(until_s)
        return Response(said, media_type="audio/pcm")


async def _sleep_until(at_s: float) -> None:
    await asyncio.sleep(max(0.0, at_s - monotonic()))


def _completion(finish_reason: str | None = None, **content: object) -> dict:
    choice = {"index": 0, "finish_reason": finish_reason, **content}
    kind = "chat.completion.chunk" if "delta" in content else "chat.completion"
    return {"id": "stub", "object": kind, "created": 0, "model": "stub", "choices": [choice]}


def _event(data: dict) -> str:
    return f"data: {json.dumps(data)}\n\n"


def read_delays(text: str) -> Delays:
    """Four numbers of ms, for ``type=`` of argparse."""
    parts = text.split(",")
    if len(parts) != 4:
        raise argparse.ArgumentTypeError(
            f"expected four numbers of ms (STT, first token, token, TTS), found {text!r}"
        )
    return Delays(*(number("ms", at_least=0.0)(part) for part in parts))


def read_turns(path: Path) -> list[KnownTurn]:
    """What `benchmarks.peers` has written for these services.

    Raises:
        ClientError: the file is not there, or holds something else.
    """
    try:
        turns: list[KnownTurn] = pickle.loads(path.read_bytes())
    except (OSError, pickle.UnpicklingError, EOFError) as error:
        raise ClientError(
            f"expected the turns that benchmarks.peers writes in {path}, found: {error}"
        ) from None
    return turns


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.stub_services",
        description="The services of benchmarks.peers, which know every turn and take no time.",
    )
    parser.add_argument(
        "--port", type=whole_number(1, 65535), required=True, metavar="N",
        help="loopback port to listen on",
    )  # fmt: skip
    parser.add_argument(
        "--turns", type=Path, required=True, metavar="FILE",
        help="the turns they know, pickled by benchmarks.peers",
    )  # fmt: skip
    parser.add_argument(
        "--voice", type=Path, metavar="FILE", help="what is said sounds like this: int16 .npy"
    )
    parser.add_argument(
        "--delays-ms", type=read_delays, default=Delays(), metavar="MS,MS,MS,MS",
        help="how long STT, first token, token and TTS take, in ms (default: 0,0,0,0)",
    )  # fmt: skip
    chosen = parser.parse_args()
    voice = None if chosen.voice is None else np.load(chosen.voice)
    app = Stubs(read_turns(chosen.turns), chosen.delays_ms, voice).app()
    uvicorn.run(app, host="127.0.0.1", port=chosen.port, log_level="warning")
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
