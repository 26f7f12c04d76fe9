"""/v1/audio/speech and /v1/audio/transcriptions: forms, bounds, failures."""

from __future__ import annotations

import ctypes
import io
import json
import os
import subprocess
import sys
import tempfile
import wave
from typing import Any, NoReturn

import numpy as np
import pytest
import soundfile

from audio.vad import Vad
from tests.fakes import (
    FakeLanguageModel,
    FakeRecognizer,
    FakeVoice,
    Fault,
    SpeechProbability,
    quiet,
    utterance,
)
from tests.voiceloop.http_client import http_client
from voiceloop import cell
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends
from voiceloop.errors import InvalidRequest
from voiceloop.http import decoder
from voiceloop.http import transcription as transcription_api
from voiceloop.http.body import checked
from voiceloop.http.compressed_audio import (
    ENCODINGS,
    Encoder,
    Unusable,
    container_of,
    decode_audio,
)
from voiceloop.http.decoder import decode_upload
from voiceloop.http.speech import SpeechBody

SPEECH = "/v1/audio/speech"
TRANSCRIPTIONS = "/v1/audio/transcriptions"
SAY: dict[str, Any] = {"model": "tts-1", "input": "Good morning to you.", "voice": "alloy"}


def wav(samples: np.ndarray, rate_hz: int = 16_000) -> bytes:
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(samples.astype("<i2").tobytes())
    return data.getvalue()


def caller(n_utterances: int = 1) -> np.ndarray:
    """Utterances of one second with a second of silence around each, 16 kHz."""
    parts = [quiet(1000, 16_000)]
    for _ in range(n_utterances):
        parts += [utterance(1000, 16_000), quiet(1000, 16_000)]
    return np.concatenate(parts)


def backends(**voice: Any) -> tuple[Backends, FakeVoice]:
    fake = FakeVoice(**voice)
    return Backends(FakeRecognizer(("well hello", "and goodbye")), FakeLanguageModel(), fake), fake


LOUD_IS_SPEECH = """
from audio.vad import SpeechProbability
from voiceloop.http import decoder
class LoudWindows:
    def feed(self, samples):
        ends = range(512, len(samples) + 1, 512)
        loud = [(samples[end - 512 : end].astype(float) ** 2).mean() > 300**2 for end in ends]
        return [SpeechProbability(end, float(one)) for end, one in zip(ends, loud)]
decoder.Vad = LoudWindows
"""


@pytest.fixture(autouse=True)
def loudness_for_speech(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the process that decodes: tones are no speech to the detector."""
    loud = f"{LOUD_IS_SPEECH}from voiceloop.http.decoder"
    entry = decoder.ENTRY.replace("from voiceloop.http.decoder", loud)
    monkeypatch.setattr(decoder, "ENTRY", entry)


# --- speech ---


async def test_pcm_is_the_voice_as_it_is() -> None:
    fakes, voice = backends()
    async with http_client(fakes) as http:
        response = await http.post(SPEECH, json=SAY | {"response_format": "pcm"})
    assert response.headers["content-type"] == "audio/pcm"
    # 60 ms a character of the four words, at 24 kHz, two bytes a sample
    assert len(response.content) == sum(map(len, ("Good", "morning", "to", "you."))) * 60 * 24 * 2
    assert not voice.open_streams


async def test_a_voice_of_another_rate_is_brought_to_24_khz() -> None:
    fakes, _ = backends(rate_hz=16_000)
    async with http_client(fakes) as http:
        response = await http.post(SPEECH, json=SAY | {"response_format": "pcm"})
    assert len(response.content) == 17 * 60 * 24 * 2


async def test_wav_opens_in_a_reader_of_wav() -> None:
    fakes, _ = backends()
    async with http_client(fakes) as http:
        response = await http.post(SPEECH, json=SAY | {"response_format": "wav"})
    with wave.open(io.BytesIO(response.content)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)


@pytest.mark.parametrize("name", ENCODINGS)
async def test_compressed_speech_decodes_to_its_length(name: str) -> None:
    fakes, _ = backends()
    async with http_client(fakes) as http:
        response = await http.post(SPEECH, json=SAY | {"response_format": name})
    assert response.headers["content-type"] == ENCODINGS[name][2]
    decoded = decode_audio(response.content, 60.0)
    assert len(decoded) / 16_000 == pytest.approx(17 * 0.06, abs=0.12)  # encoders pad


@pytest.mark.parametrize(("fields", "param"), [
    ({"input": ""}, "input"), ({"input": "x" * 4097}, "input"), ({"input": 3}, "input"),
    ({"speed": 9}, "speed"), ({"response_format": "midi"}, "response_format"),
    ({"voice": 1}, "voice"),
])  # fmt: skip
async def test_a_wrong_field_of_speech_is_named(fields: dict[str, Any], param: str) -> None:
    async with http_client() as http:
        response = await http.post(SPEECH, json=SAY | fields)
    assert response.status_code == 400 and response.json()["error"]["param"] == param


def test_an_openai_voice_is_the_agents_own_and_others_keep_their_name() -> None:
    settings = AgentConfig(voice="ava").session_settings()
    assert checked(SAY, SpeechBody).options(settings).voice == "ava"
    other = checked(SAY | {"voice": {"id": "en-gb"}}, SpeechBody)
    assert other.options(settings).voice == "en-gb"


async def test_a_voice_that_fails_has_a_status_and_leaves_nothing_open() -> None:
    fakes, voice = backends(faults=(Fault("feed"),))
    async with http_client(fakes) as http:
        response = await http.post(SPEECH, json=SAY | {"response_format": "pcm"})
    assert response.status_code == 503 and response.json()["error"]["code"] == "worker_lost"
    assert not voice.open_streams


# --- transcriptions ---


async def transcribe(samples: np.ndarray, **fields: Any) -> Any:
    fakes, _ = backends()
    async with http_client(fakes) as http:
        response = await http.post(
            TRANSCRIPTIONS,
            files={"file": ("caller.wav", wav(samples))},
            data={"model": "whisper-1"} | fields,
        )
    assert response.status_code == 200, response.text
    return response


async def test_a_file_becomes_its_words() -> None:
    body = (await transcribe(caller())).json()
    assert body["text"] == "well hello" and body["usage"] == {"type": "duration", "seconds": 3}
    assert (await transcribe(caller(), response_format="text")).text == "well hello\n"


async def test_words_have_their_times_in_the_file() -> None:
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"]}
    body = (await transcribe(caller(2), **fields)).json()
    assert body["text"] == "well hello and goodbye" and body["duration"] == 5.0
    first, second = body["segments"]
    assert first["text"] == "well hello" and second["text"] == "and goodbye"
    # 300 ms of padding before the speech at 1 s and at 3 s
    assert first["start"] == pytest.approx(0.7, abs=0.04)
    assert second["start"] == pytest.approx(2.7, abs=0.04)
    words = body["words"]
    assert [word["word"] for word in words] == ["well", "hello", "and", "goodbye"]
    assert words[2]["start"] == second["start"]
    assert all(word["start"] < word["end"] for word in words)


async def test_audio_over_the_limit_is_stopped_while_it_decodes() -> None:
    encoder = Encoder("flac", 24_000)
    silence = bytes(2 * 24_000 * 60)
    small = b"".join(encoder.push(silence) for _ in range(11)) + encoder.finish()
    assert len(small) < 400_000  # eleven minutes
    async with http_client() as http:
        response = await http.post(TRANSCRIPTIONS, files={"file": ("long.flac", small)})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "audio_too_long"


async def test_an_upload_over_the_limit_is_refused_while_it_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transcription_api, "MAX_UPLOAD_BYTES", 10_000)
    async with http_client() as http:
        response = await http.post(TRANSCRIPTIONS, files={"file": ("a.wav", bytes(20_000))})
    assert response.status_code == 413


NO_AUDIO = [
    b"", b"hello", b"#EXTM3U\nhttp://127.0.0.1/x.ts\n", b"ffconcat version 1.0\nfile /etc/passwd\n",
    b"RIFF\x00\x00\x00\x00WAVEjunk", b"OggS" + bytes(200), b"ID3" + bytes(200), b"\xff\xf1" * 50,
    b"\x00\x00\x00\x18ftypmp42" + bytes(100), b"\x1aE\xdf\xa3" + bytes(100), b"fLaC" + bytes(60),
]  # fmt: skip


async def test_what_is_no_audio_is_refused() -> None:
    async with http_client() as http:
        for data in NO_AUDIO:
            response = await http.post(TRANSCRIPTIONS, files={"file": ("a.wav", data)})
            assert response.status_code == 400, data
            assert response.json()["error"]["code"] == "invalid_audio_file"


@pytest.mark.parametrize("head", [b"#EXTM3U", b"ffconcat version 1.0", b"<?xml", b"[playlist]"])
def test_playlists_never_reach_the_decoder(head: bytes) -> None:
    with pytest.raises(InvalidRequest):
        container_of(head + bytes(64))


async def test_a_form_without_a_file_or_of_another_type_is_refused() -> None:
    async with http_client() as http:
        assert (await http.post(TRANSCRIPTIONS, json={})).status_code == 400
        no_file = await http.post(TRANSCRIPTIONS, files={"other": b"x"}, data={"file": "text"})
        assert no_file.json()["error"]["param"] == "file"
        srt = {"response_format": "srt"}
        files = {"file": ("a.wav", wav(caller()))}
        refused = await http.post(TRANSCRIPTIONS, files=files, data=srt)
        assert refused.json()["error"]["param"] == "response_format"


@pytest.mark.parametrize(("content_type", "body"), [
    ("multipart/form-data", b""), ("multipart/form-data; boundary=x", b""),
    ("multipart/form-data; boundary=x", b"--x\r\nnonsense"),
    ("multipart/form-data; boundary=x; charset=nothing", b"--x\r\n\r\n\r\n--x--\r\n"),
])  # fmt: skip
async def test_a_broken_form_is_refused(content_type: str, body: bytes) -> None:
    async with http_client() as http:
        headers = {"Content-Type": content_type}
        response = await http.post(TRANSCRIPTIONS, content=body, headers=headers)
    assert response.status_code == 400


async def test_a_recognizer_that_fails_leaves_nothing_open() -> None:
    recognizer = FakeRecognizer(("x",), faults=(Fault("finalize"),))
    fakes = Backends(recognizer, FakeLanguageModel(), FakeVoice())
    async with http_client(fakes) as http:
        files = {"file": ("a.wav", wav(caller()))}
        response = await http.post(TRANSCRIPTIONS, files=files)
    assert response.status_code == 503 and not recognizer.open_streams


def test_speech_is_cut_at_pauses_and_before_it_grows_long(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scripted:
        def feed(self, samples: np.ndarray) -> list[SpeechProbability]:
            speech = [True] * 100 + [False] * 10 + [True] * 100 + [False] * 40 + [True] * 700
            return [SpeechProbability(512 * (i + 1), float(one)) for i, one in enumerate(speech)]

    monkeypatch.setattr(decoder, "Vad", Scripted)
    spans = decoder.speech_spans(np.zeros(512 * 1000, np.int16))
    lengths_s = [(last - first) / 16_000 for first, last in spans]
    assert len(spans) == 3 and lengths_s[0] > 6.5  # a short pause does not cut
    assert max(lengths_s) < 21
    assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))


async def decoded_of(data: bytes, max_s: float) -> np.ndarray:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        return (await decode_upload(file, max_s)).samples


def forged_flac(rate_hz: int, n_frames: int = 4, block: int = 4096) -> bytes:
    """Silence whose header claims a rate: a few bytes a frame, and each says it lasts for hours."""

    def crc(data: bytes, polynomial: int, n_bits: int) -> int:
        value, top = 0, 1 << (n_bits - 1)
        for byte in data:
            value ^= byte << (n_bits - 8)
            for _ in range(8):
                value = (value << 1) ^ polynomial if value & top else value << 1
                value &= (1 << n_bits) - 1
        return value

    bits = (rate_hz << 44) | (0 << 41) | (15 << 36) | (n_frames * block)
    stream_info = block.to_bytes(2, "big") * 2 + bytes(6) + bits.to_bytes(8, "big") + bytes(16)
    data = b"fLaC" + b"\x80" + len(stream_info).to_bytes(3, "big") + stream_info
    for n in range(n_frames):
        head = b"\xff\xf8\xc0\x08" + bytes([n])  # 4096 samples, rate of the header, mono, 16 bits
        frame = head + bytes([crc(head, 0x07, 8)]) + b"\x00\x00\x00"  # a constant subframe of zeros
        data += frame + crc(frame, 0x8005, 16).to_bytes(2, "big")
    return data


async def test_a_rate_no_sound_has_is_refused_before_it_is_resampled() -> None:
    assert len(await decoded_of(forged_flac(16_000), 60.0)) == 4 * 4096
    with pytest.raises(InvalidRequest, match="found a rate beyond"):
        await decoded_of(forged_flac(1), 60.0)


DECODED_BADLY = """
import ctypes, json, mmap, os, socket, sys, tempfile
from voiceloop.http import decoder
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mprotect.restype = ctypes.c_ssize_t
there, parent = ctypes.create_string_buffer(64), os.getppid()
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
def read_parent():
    here = Piece(ctypes.addressof(there), 8)
    theirs = Piece(int(sys.argv[1]), 8)
    return libc.process_vm_readv(parent, ctypes.byref(here), 1, ctypes.byref(theirs), 1, 0)
def ok(result):
    if result < 0:
        raise OSError(ctypes.get_errno())
decode_well = decoder.decode_audio
def decode(data, max_s):
    if data == decoder.TRIAL:
        return decode_well(data, max_s)
    if (made := act()) is not None:
        return made
    os._exit(0)
def taken_over(told):
    os.dup2(told.fileno(), 1)
    try:
        os._exit(decoder.main(1.0, sys.stdin.buffer, sys.stdout.buffer))
    except BaseException:
        os._exit(1)
decoder.decode_audio = decode
ends = []
for body in sys.argv[2:]:
    exec("def act():\\n    " + body)
    with tempfile.TemporaryFile() as told:
        if not (child := os.fork()):
            taken_over(told)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        ends.append((body, status, os.fstat(told.fileno()).st_size))
print(json.dumps(ends))
"""
TAKEN_OVER = [
    "return bytearray(2_000_000_000)",
    "os.abort()",
    "os.write(0, bytes(1_000_000))",
    "os.write(2, b'x')",
    "socket.socket()",
    "socket.socket(socket.AF_UNIX)",
    "socket.socketpair()",
    "open('/etc/hostname', 'rb').read()",
    "os.open('/tmp', os.O_RDONLY)",
    "os.stat('/etc/passwd')",
    "ok(read_parent())",
    "os.kill(parent, 0)",
    "os.kill(os.getpid(), 0)",
    "os.fork()",
    "os.execv('/bin/true', ['true'])",
    "import _thread; _thread.start_new_thread(print, ())",
    "os.dup(1)",
    "os.pipe()",
    "ok(libc.ptrace(0, 0, 0, 0))",
    "ok(libc.prctl(4, 1, 0, 0, 0))",  # dumpable again
    "mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)",
    "ok(libc.mprotect(ctypes.c_void_p(ctypes.addressof(there) & ~4095), 4096, 5))",
    "ok(libc.syscall(425, 8, there))",  # io_uring
    "ok(libc.syscall(0x40000000 + 39))",  # getpid by its second number
    "import resource; resource.setrlimit(resource.RLIMIT_CPU, (99, 99))",
]


@pytest.mark.skipif(not cell.can_filter(), reason="this kernel filters no system calls")
def test_a_decoder_that_is_taken_over_can_do_nothing() -> None:
    """One process that has loaded all it needs, and a copy of it for each thing that is tried."""
    ours = ctypes.create_string_buffer(b"a secret")
    command = [sys.executable, "-c", DECODED_BADLY, str(ctypes.addressof(ours)), *TAKEN_OVER]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with tempfile.TemporaryFile() as upload:
        ended = subprocess.run(command, stdin=upload, env=environ, capture_output=True)
        assert upload.seek(0, os.SEEK_END) == 0
    ends = json.loads(ended.stdout)
    assert len(ends) == len(TAKEN_OVER)
    for body, status, n_told in ends:
        assert status not in (0, *decoder.REFUSALS) and not n_told, body


async def test_why_a_file_is_refused_is_said_in_none_of_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = "import sys; sys.stdout.buffer.write(b'a secret'); sys.exit({})"
    for status, why in decoder.REFUSALS.items():
        monkeypatch.setattr(decoder, "ENTRY", said.format(status))
        with pytest.raises(Unusable) as caught:
            await decoded_of(wav(caller()), 60.0)
        assert caught.value.why is why and "secret" not in caught.value.message


@pytest.mark.parametrize("writes", [
    "bytes(9)",  # half a sample
    "b''",
    "(-3).to_bytes(8, 'little', signed=True)",
    "(2**40).to_bytes(8, 'little')",
    "b''.join(n.to_bytes(8, 'little') for n in (2, 0, 4, 2, 4)) + bytes(8)",  # over each other
    "b''.join(n.to_bytes(8, 'little') for n in (1, 0, 5)) + bytes(8)",  # beyond the end
    "bytes(8) + bytes(4_000_000)",  # two minutes
])  # fmt: skip
async def test_what_a_decoder_that_is_taken_over_tells_is_refused(
    writes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder, "ENTRY", f"import sys; sys.stdout.buffer.write({writes})")
    with pytest.raises(InvalidRequest, match="breaks the decoder"):
        await decoded_of(wav(caller()), 60.0)


async def test_what_decodes_stands_behind_what_calls_need(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = decoder.ENTRY.partition("from voiceloop")[0]
    tells = "sys.stdout.buffer.write(bytes(8) + os.nice(0).to_bytes(2, 'little'))"
    monkeypatch.setattr(decoder, "ENTRY", begun + tells)
    assert list(await decoded_of(wav(caller()), 60.0)) == [min(19, os.nice(0) + decoder.NICENESS)]


async def test_the_gateway_computes_nothing_of_an_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of it that did would hold up its event loop for the interpreter."""

    def computed(*args: object) -> NoReturn:
        raise AssertionError("expected another process")

    monkeypatch.setattr(decoder, "speech_spans", computed)
    monkeypatch.setattr(decoder, "decode_audio", computed)
    monkeypatch.setattr(Vad, "feed", computed)
    fakes, _ = backends()
    async with http_client(fakes) as http:
        files = {"file": ("a.wav", wav(caller()), "audio/wav")}
        response = await http.post(TRANSCRIPTIONS, files=files, data={"model": "any"})
    assert response.status_code == 200 and response.json()["text"]


@pytest.mark.parametrize("n_bytes", [3_000, 3_000_000])  # in memory, and on disk already
async def test_an_upload_of_any_size_is_read_where_it_lies(n_bytes: int) -> None:
    sound = wav(np.resize(caller(), n_bytes // 2))
    fakes, _ = backends()
    async with http_client(fakes) as http:
        files = {"file": ("a.wav", sound, "audio/wav")}
        form = {"model": "any", "response_format": "verbose_json"}
        response = await http.post(TRANSCRIPTIONS, files=files, data=form)
    assert response.json()["duration"] == pytest.approx(n_bytes / 2 / 16_000, abs=0.05)


def plain(kind: str, samples: np.ndarray, rate_hz: int = 24_000, n_channels: int = 1) -> bytes:
    sink = io.BytesIO()
    columns = np.stack([samples] * n_channels, axis=1)
    soundfile.write(sink, columns, rate_hz, format=kind)
    return sink.getvalue()


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3"])
async def test_each_kind_of_file_is_taken(kind: str) -> None:
    samples = caller()
    decoded = await decoded_of(plain(kind, samples, 24_000, n_channels=2), 60.0)
    seconds = len(samples) / 24_000
    assert len(decoded) / 16_000 == pytest.approx(seconds, abs=0.1)
    assert np.abs(decoded.astype(float)).max() > 0.5 * np.abs(samples.astype(float)).max()


async def test_a_file_is_refused_beyond_its_bounds() -> None:
    with pytest.raises(InvalidRequest, match="at most 0.2 s"):
        await decoded_of(plain("FLAC", caller()), 0.2)
    with pytest.raises(InvalidRequest, match="a rate beyond"):
        await decoded_of(plain("WAV", caller(), rate_hz=1000), 60.0)
    for damaged in (b"fLaC" + bytes(64), plain("FLAC", caller())[:60]):
        with pytest.raises(InvalidRequest):
            await decoded_of(damaged, 60.0)
