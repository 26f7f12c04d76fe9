"""Fetching models: from a hub that serves, refuses, hangs, breaks off or has no room."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scripted_hub import COMMIT, Hub, etag, scripted_hub
from tests.tables import each_row
from voiceloop.cli import main
from voiceloop.errors import ModelUnavailable
from voiceloop.models import pull as model_pull
from voiceloop.models.cache import find_repo
from voiceloop.models.model import Repo
from voiceloop.models.pull import pull
from voiceloop.models.resolve import any_repo

REPO = Repo("owner/name", size_mb=1)
WEIGHTS = bytes(range(256)) * 400  # 100 KB
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{ }",
    "model.safetensors": WEIGHTS,
    "model.gguf": b"another format of the same weights",
    "README.md": b"a card",
}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with scripted_hub(Hub(dict(FILES))) as running:
        yield running


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """No pause before a retry, and no token of whoever runs this."""
    caplog.set_level(logging.CRITICAL, logger="huggingface_hub")
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)


def fetch(hub: Hub, folder: Path, repos: tuple[Repo, ...] = (REPO,), **environ: str) -> list[str]:
    said: list[str] = []
    pull(repos, folder, said.append, {"HF_ENDPOINT": hub.url, **environ})
    return said


def refusal(hub: Hub, folder: Path, **environ: str) -> str:
    with pytest.raises(ModelUnavailable) as caught:
        fetch(hub, folder, **environ)
    message = caught.value.message
    assert "\n" not in message
    return message


def test_only_the_needed_files_come_into_the_cache_and_are_found_there(
    hub: Hub, tmp_path: Path
) -> None:
    said = fetch(hub, tmp_path)
    assert said[0].startswith("owner/name: 0 MB from http://127.0.0.1")
    assert said[0].endswith(f", commit {COMMIT}")
    found = find_repo(REPO, tmp_path)
    assert found.folder is not None
    assert (found.is_whole, found.commit) == (True, COMMIT)
    assert sorted(os.listdir(found.folder)) == [
        "config.json", "model.safetensors", "tokenizer.json"
    ]  # fmt: skip
    assert (found.folder / "model.safetensors").read_bytes() == WEIGHTS


def test_a_transfer_that_breaks_off_goes_on_where_it_was(hub: Hub, tmp_path: Path) -> None:
    hub.drops, hub.drop_after = 1, 60_000
    fetch(hub, tmp_path)
    ranges = [asked[2] for asked in hub.asked if asked[0] == "GET" and "safetensors" in asked[1]]
    assert ranges == ["", "bytes=60000-"]


def test_a_later_command_goes_on_where_an_earlier_one_was_stopped(hub: Hub, tmp_path: Path) -> None:
    hub.drops, hub.drop_after = 100, 0
    blobs = tmp_path / "models--owner--name" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{etag(WEIGHTS)}.partial").write_bytes(WEIGHTS[:70_000])
    assert "run the command again, it resumes" in refusal(hub, tmp_path)
    hub.drops = 0
    hub.asked.clear()
    fetch(hub, tmp_path)
    [resumed] = [asked[2] for asked in hub.asked if asked[0] == "GET" and asked[2]]
    assert resumed == "bytes=70000-"
    assert find_repo(REPO, tmp_path).is_whole


def test_a_file_that_came_wrong_is_not_kept(hub: Hub, tmp_path: Path) -> None:
    blobs = tmp_path / "models--owner--name" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{etag(WEIGHTS)}.partial").write_bytes(b"x" * 70_000)
    assert "checksum" in refusal(hub, tmp_path)
    assert list(blobs.glob("*.partial")) == []
    fetch(hub, tmp_path)
    assert find_repo(REPO, tmp_path).is_whole


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_hub_writes_nowhere_but_into_the_cache(hub: Hub, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "site-packages" / "x.pth"
    elsewhere.parent.mkdir()
    hub.etags[name] = str(elsewhere)
    assert f"expected the size and checksum of {name}" in refusal(hub, tmp_path / "hub")
    assert not list(elsewhere.parent.iterdir())


def test_a_hub_names_files_of_its_own_folder_alone(hub: Hub, tmp_path: Path) -> None:
    hub.files["../../../x.json"] = b"{}"
    assert "names of files" in refusal(hub, tmp_path)


def test_a_mirror_elsewhere_is_asked_over_tls_alone(tmp_path: Path) -> None:
    assert "https://" in refusal(Hub(url="http://mirror.example"), tmp_path)


def test_too_little_room_is_known_before_anything_is_fetched(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_pull, "free_disk_mb", lambda _: 100)
    line = refusal(hub, tmp_path)
    assert f"expected 500 MB free in {tmp_path}, found 100" in line
    assert not any("/resolve/" in path for _, path, _ in hub.asked)


@each_row(("status", "error_code", "found"), [
    (401, "", "HTTP status 401: set HF_TOKEN to a valid token"),
    (401, "RepoNotFound", "no such model (or a private one, which needs HF_TOKEN)"),
    (403, "GatedRepo", "terms must be accepted first"),
    (404, "RepoNotFound", "no such model"),
    (404, "", "HTTP status 404: it has no such model"),
    (404, "RevisionNotFound", "no revision main"),
    (429, "", "HTTP status 429: try again later"),
    (500, "", "HTTP status 500: try again later"),
])  # fmt: skip
def test_a_hub_that_refuses_is_quoted_in_one_sentence(
    hub: Hub, tmp_path: Path, status: int, error_code: str, found: str
) -> None:
    hub.status, hub.error_code = status, error_code
    line = refusal(hub, tmp_path)
    assert found in line
    assert hub.url in line


def test_a_hub_that_hangs_is_named_at_the_deadline(hub: Hub, tmp_path: Path) -> None:
    hub.hangs = True
    line = refusal(hub, tmp_path, HF_HUB_ETAG_TIMEOUT="0.2")
    assert line.startswith(f"expected the model hub at {hub.url}, found no answer")
    assert model_pull.HUB_DEADLINE_S < 3


def test_a_hub_that_is_not_there_is_named(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        hub = Hub(url=f"http://127.0.0.1:{unused.getsockname()[1]}")
    assert "found no answer" in refusal(hub, tmp_path)


def test_a_repository_without_the_needed_files_is_refused(hub: Hub, tmp_path: Path) -> None:
    del hub.files["model.safetensors"]
    assert "expected *.safetensors in owner/name@main, found none" in refusal(hub, tmp_path)


# --- a repository that no table knows ---

ANY = any_repo("owner/name")


def test_a_cache_without_weights_is_not_whole_and_is_completed(hub: Hub, tmp_path: Path) -> None:
    fetch(hub, tmp_path, (Repo("owner/name", files=("*.json",), needed=("config.json",)),))
    [missing] = find_repo(ANY, tmp_path).missing
    assert missing == "weights (*.safetensors or model.bin)"
    fetch(hub, tmp_path, (ANY,))
    assert find_repo(ANY, tmp_path).is_whole


def test_a_cache_that_seems_whole_is_compared_with_the_hub(hub: Hub, tmp_path: Path) -> None:
    fetch(hub, tmp_path, (ANY,))
    folder = find_repo(ANY, tmp_path).folder
    assert folder is not None
    (folder / "tokenizer.json").unlink()  # as where another program did not fetch it
    assert find_repo(ANY, tmp_path).is_whole
    fetch(hub, tmp_path, (ANY,))
    assert (folder / "tokenizer.json").is_file()
    hub.asked.clear()
    [line] = fetch(hub, tmp_path, (ANY,), HF_HUB_OFFLINE="1")
    assert line.startswith("owner/name: on disk at ")
    assert hub.asked == []


def test_a_second_copy_of_the_weights_is_left_where_it_is(hub: Hub, tmp_path: Path) -> None:
    copies = ("consolidated.safetensors", "model.fp32-00001-of-00002.safetensors")
    hub.files |= dict.fromkeys(copies, WEIGHTS)
    fetch(hub, tmp_path, (ANY,))
    folder = find_repo(ANY, tmp_path).folder
    assert folder is not None
    assert [path.name for path in folder.glob("*.safetensors")] == ["model.safetensors"]


def test_a_repository_without_weights_that_load_is_one_sentence_and_code_2(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.files = {"config.json": b"{}", "pytorch_model.bin": WEIGHTS, "model.gguf": WEIGHTS}
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert main(["models", "pull", "owner/name"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "expected weights (*.safetensors or model.bin) in owner/name" in line
    assert not any("/resolve/" in path for _, path, _ in hub.asked)
