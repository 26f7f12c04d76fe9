"""The folder of kept calls: what a killed process leaves, a full disk, deletion, age, Opus."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from tests.fakes import utterance
from voiceloop.access.keys import tenant_of
from voiceloop.agent import AgentConfig
from voiceloop.backends import SpokenWord
from voiceloop.config import Config
from voiceloop.errors import ConfigError, MissingExtra
from voiceloop.operation import RecordingSettings
from voiceloop.recording import messages, shelf
from voiceloop.recording.messages import Begin, End, Forget, Heard, Inbox, Said, Told
from voiceloop.recording.shelf import Shelf
from voiceloop.recording.writer import Writer
from voiceloop.server.app import Gateway, build_app
from voiceloop.telemetry.tap import KeptCall, Sounded

KEY = "key-of-eight"
RATE_HZ = 24_000


def call(call_id: str = "sess_1") -> KeptCall:
    return KeptCall(call_id, tenant_of(KEY), 100.0, "Cafe", "", "en", {"door": "websocket"})


def put_seconds(inbox: Inbox, call_id: str, n_s: int, *, from_s: float = 100.0) -> None:
    """A second a message of both voices."""
    loud = utterance(1000, RATE_HZ)
    for second in range(n_s):
        at_s = from_s + second + 1.0
        heard = Heard(loud.tobytes(), RATE_HZ, "pcm16", float(second), 1.0, at_s)
        assert inbox.put(call_id, heard, len(heard.samples))
        inbox.put(call_id, Said(Sounded(loud, RATE_HZ, at_s, "item_1", ()), False))


class Written:
    """A writer over a folder. outcomes: of its calls."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.outcomes: list[str] = []
        self.inbox = Inbox()
        chosen = RecordingSettings(folder=folder, **settings)
        kept = Shelf(folder, chosen.keep_days, shelf.sealing(chosen.age_key))
        self.writer = Writer(kept, self.inbox, chosen, {"version": "0"}, self.outcomes.append)
        self.writer.start()

    def one_call(self, n_s: int, call_id: str = "sess_1") -> None:
        self.inbox.put(call_id, Begin(call(call_id), 100.0, 0.0, {"how": "none"}))
        put_seconds(self.inbox, call_id, n_s)
        self.inbox.put(call_id, End(100.0 + n_s, 1000, "hung up", {}, 0))

    def close(self) -> list[str]:
        self.writer.close(20.0)
        return self.outcomes


KILLED = """
import os, sys, time
from pathlib import Path
from tests.voiceloop.recording.test_folder import Written, call, put_seconds
from voiceloop.recording.messages import Begin, Told
written = Written(Path(sys.argv[1]))
written.inbox.put("sess_1", Begin(call(), 100.0, 0.0, {"how": "none"}))
written.inbox.put("sess_1", Told("turns", {"heard": "hello"}, 101.0))
put_seconds(written.inbox, "sess_1", 20)
part = next(iter(Path(sys.argv[1]).glob("*.flac.part")), None)
while part is None or part.stat().st_size < 100_000:
    time.sleep(0.01)
    part = next(iter(Path(sys.argv[1]).glob("*.flac.part")), None)
print("written", flush=True)
time.sleep(60)
"""


def test_a_process_that_is_killed_leaves_parts_that_open_and_the_next_closes_them(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        # A server that starts beside it leaves alone what is locked.
        Written(tmp_path).close()
        assert list(tmp_path.glob("*.flac.part"))
        process.kill()
    (part,) = tmp_path.glob("*.flac.part")
    samples, _ = soundfile.read(part, dtype="int16")
    assert len(samples) > 10 * RATE_HZ
    assert np.abs(samples).max() > 2000
    assert os.stat(part).st_mode & 0o777 == 0o600
    Written(tmp_path).close()
    assert not list(tmp_path.glob("*.part"))
    (sound,), (notes,) = tmp_path.glob("*.flac"), tmp_path.glob("*.json")
    assert len(soundfile.read(sound)[0]) == len(samples)
    told = json.loads(notes.read_text())
    assert told["turns"][0]["heard"] == "hello"
    assert told["close_code"] is None


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file grows beyond 200 kB: the same as a disk that is full, for who writes it."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_costs_one_call_its_rest_and_no_other_call(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.one_call(30)
    while "failed" not in written.outcomes:
        time.sleep(0.01)
    written.one_call(3, "sess_2")
    assert written.close() == ["failed", "kept"]
    (broken,) = tmp_path.glob("sess_1~*.json")
    told = json.loads(broken.read_text())
    assert told["trouble"]
    assert told["is_degraded"]
    (sound,) = tmp_path.glob("sess_1~*.flac")
    assert len(soundfile.read(sound)[0]) >= 3 * RATE_HZ


def test_a_writer_that_is_too_slow_costs_sound_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MAX_MESSAGES", 4)
    inbox = Inbox()
    assert inbox.put("sess_1", Begin(call(), 100.0, 0.0, {}))
    lost = [not inbox.put("sess_1", Told("calls", {}, 101.0)) for _ in range(6)]
    assert lost == [False] * 3 + [True] * 3
    assert inbox.put("sess_1", End(110.0, 1000, "", {}, 3))
    chosen = RecordingSettings(folder=tmp_path)
    outcomes: list[str] = []
    writer = Writer(Shelf(tmp_path, 1, None), inbox, chosen, {}, outcomes.append)
    writer.start()
    writer.close(20.0)
    assert outcomes == ["degraded"]
    (notes,) = tmp_path.glob("*.json")
    assert json.loads(notes.read_text())["n_lost"] == 3


def test_a_message_that_cannot_be_written_costs_its_own_call_alone(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.inbox.put("sess_1", Begin(call(), 100.0, 0.0, {"how": "none"}))
    written.inbox.put("sess_1", Heard(b"odd", RATE_HZ, "pcm16", 0.0, 0.1, 100.1))
    written.one_call(1, "sess_2")
    assert written.close() == ["failed", "kept"]


def test_a_call_that_ends_while_it_is_deleted_is_deleted(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.one_call(1)
    written.inbox.put("sess_1", Forget(tenant_of(KEY)))
    written.close()
    assert not list(tmp_path.iterdir())


def test_a_number_that_comes_in_pieces_is_hidden_where_figures_are(tmp_path: Path) -> None:
    written = Written(tmp_path, words="without_figures")
    written.inbox.put("sess_1", Begin(call(), 100.0, 0.0, {"how": "none"}))
    spoken = ("call", "four", "one", "30.")
    words = tuple(SpokenWord(text, 0.0, 1.0, 0) for text in spoken)
    sounded = Sounded(utterance(100, RATE_HZ), RATE_HZ, 100.1, "item_12345", words)
    written.inbox.put("sess_1", Said(sounded, False))
    for key in "4111":
        written.inbox.put("sess_1", Told("digits", {"value": key}, 100.2))
    written.inbox.put("sess_1", End(101.0, 1000, "hung up", {}, 0))
    assert written.close() == ["kept"]
    (notes,) = tmp_path.glob("*.json")
    told = json.loads(notes.read_text())
    texts = [word["text"] for word in told["said"][0]["heard_words"]]
    assert told["said"][0]["item_id"] == "item_12345"
    assert texts == ["call", *["[hidden]"] * 3]
    assert {one["value"] for one in told["digits"]} == {"[hidden]"}


def test_sound_that_was_lost_leaves_the_rest_where_it_was(tmp_path: Path) -> None:
    written, loud = Written(tmp_path), utterance(1000, RATE_HZ).tobytes()
    written.inbox.put("sess_1", Begin(call(), 100.0, 0.0, {}))
    for second in (0, 1, 4, 5):
        heard = Heard(loud, RATE_HZ, "pcm16", float(second), 1.0, 101.0 + second)
        written.inbox.put("sess_1", heard)
    written.inbox.put("sess_1", End(106.0, 1000, "", {}, 2))
    written.close()
    (sound,) = tmp_path.glob("*.flac")
    left = soundfile.read(sound, dtype="int16")[0][:, 0].reshape(6, RATE_HZ)
    assert [bool(np.abs(second).any()) for second in left] == [True, True, False, False, True, True]


def test_opus_takes_the_place_of_flac_once_there_is_time(tmp_path: Path) -> None:
    written = Written(tmp_path, format="opus")
    written.one_call(5)
    while not list(tmp_path.glob("*.opus")):
        time.sleep(0.01)
    assert written.close() == ["kept"]
    assert not list(tmp_path.glob("*.flac*"))
    (sound,) = tmp_path.glob("*.opus")
    assert abs(len(soundfile.read(sound)[0]) - 5 * RATE_HZ) < 0.02 * RATE_HZ
    assert os.stat(sound).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_deleted_call_that_waits_to_be_encoded_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_sealed: bool,
) -> None:
    monkeypatch.setattr(shelf, "sealing", lambda key: bytes if key else None)
    written = Written(tmp_path, format="opus", age_key="age1" if is_sealed else "")
    written.inbox.put("sess_3", Begin(call("sess_3"), 100.0, 0.0, {"how": "none"}))
    put_seconds(written.inbox, "sess_3", 1)
    written.one_call(4)  # encoded a second at a time beside the call that goes on
    written.one_call(1, "sess_2")
    closed = "sess_2*.json.age" if is_sealed else "sess_2*.flac"
    while not list(tmp_path.glob(closed)) or not list(tmp_path.glob("sess_1*.opus.part")):
        time.sleep(0.01)
    for call_id in ("sess_1", "sess_2"):
        Shelf(tmp_path, 0, None).delete(call_id, tenant_of(KEY))
        written.inbox.put(call_id, Forget(tenant_of(KEY)))
    written.inbox.put("sess_3", End(101.0, 1000, "hung up", {}, 0))
    while not list(tmp_path.glob("sess_3*.opus" + (".age" if is_sealed else ""))):
        time.sleep(0.01)
    written.close()
    assert {path.name.partition("~")[0] for path in tmp_path.iterdir()} == {"sess_3"}
    assert not caplog.records  # it was not encoded to its end


def test_what_is_kept_for_long_enough_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    names = ("sess_1~ab.flac", "sess_1~ab.json", "sess_2~.opus.age", "notes.txt", "x~y.json.bak")
    for name in (*names, "sess_3~ab.json"):
        (tmp_path / name).touch()
        if name in names:
            os.utime(tmp_path / name, (1.0, 1.0))
    assert Shelf(tmp_path, 0, None).sweep() == 0
    assert Shelf(tmp_path, 30, None).sweep() == 3
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["notes.txt", "sess_3~ab.json", "x~y.json.bak"]


async def test_only_the_key_of_a_call_deletes_it(tmp_path: Path) -> None:
    config = Config(keys=(KEY, "another-key-here"), recording=RecordingSettings(folder=tmp_path))
    gateway = Gateway(config, AgentConfig())
    for ending in (".flac", ".json"):
        (tmp_path / f"sess_1~{tenant_of(KEY)}{ending}").touch()
    transport = httpx.ASGITransport(build_app(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:

        async def status(key: str, call_id: str = "sess_1") -> int:
            headers = {"Authorization": f"Bearer {key}"}
            answer = await client.delete(f"/v1/recordings/{call_id}", headers=headers)
            return answer.status_code

        assert await status("no-key-of-the-server") == 401
        assert await status("another-key-here") == 404
        assert await status(KEY, "..") == 404
        assert len(os.listdir(tmp_path)) == 2
        assert await status(KEY) == 200
        assert not os.listdir(tmp_path)
        assert await status(KEY) == 404
    gateway.observers.close()


def test_a_key_for_encryption_needs_the_package_and_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyrage", None)
    with pytest.raises(MissingExtra, match="voiceloop\\[recording\\]"):
        shelf.sealing("age1abc")


def test_a_folder_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"recording\.folder"):
        Shelf(tmp_path / "file" / "folder", 1, None)


def test_what_is_kept_can_be_read_with_the_age_key_alone(tmp_path: Path) -> None:
    pyrage = pytest.importorskip("pyrage")
    identity = pyrage.x25519.Identity.generate()
    written = Written(tmp_path, age_key=str(identity.to_public()))
    written.one_call(2)
    assert written.close() == ["kept"]
    names = sorted(path.name.partition(".")[2] for path in tmp_path.iterdir())
    assert names == ["flac.age", "json.age"]
    (notes,) = tmp_path.glob("*.json.age")
    told = json.loads(pyrage.decrypt(notes.read_bytes(), [identity]))
    assert told["seconds"] == 2.0
    with pytest.raises(ConfigError, match="age1"):
        shelf.sealing("ssh-ed25519 AAAA")
