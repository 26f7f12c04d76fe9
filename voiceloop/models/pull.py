"""``voiceloop models pull``: fetches what a preset needs into the Hugging Face cache.

Owns the order of it (is it here? is the hub? is there room? then the files), that every file has
the checksum that the hub names and lands in the cache alone, and one sentence for each way in which
it fails. The transfer itself and its progress bars are huggingface_hub's.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlsplit

from voiceloop.access.origins import is_loopback
from voiceloop.errors import ModelUnavailable
from voiceloop.models.cache import absent_patterns, find_repo, is_wanted
from voiceloop.models.machine import free_disk_mb
from voiceloop.models.model import Repo
from voiceloop.models.preset_check import DISK_MARGIN_MB

T = TypeVar("T")

DEFAULT_HUB = "https://huggingface.co"
# A hub answers in tenths of a second. With the second that the program and its imports take, a
# person learns within three that none does. HF_HUB_ETAG_TIMEOUT, where it is set, says otherwise.
HUB_DEADLINE_S = 2.0
STATUS_HINTS = {
    401: "set HF_TOKEN to a valid token",
    403: "set HF_TOKEN to a valid token",
    404: "it has no such model",
}
MEGABYTE = 1_000_000
READ_BYTES = 1 << 20
# The etag of a file in large-file storage is its SHA-256; of another it is the SHA-1 of a git blob.
ETAG = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
COMMIT = re.compile(r"[0-9a-f]{40}")
REVISION = re.compile(r"[\w-][\w.-]*")


@dataclass(frozen=True, slots=True)
class Order:
    """One repository to fetch: at which commit, and how much of it is not here yet."""

    repo: Repo
    commit: str
    n_bytes: int
    absent: tuple[str, ...]


def pull(
    repos: Sequence[Repo],
    hub: Path,
    say: Callable[[str], None],
    environ: Mapping[str, str] | None = None,
) -> None:
    """Fetch what is not on disk. Raises: ModelUnavailable, one sentence that says what to do.

    Which files a repository that no table knows must have, only the hub can say: it is asked
    whatever is on disk, unless HF_HUB_OFFLINE forbids it.
    """
    environ = os.environ if environ is None else environ
    absent = []
    for repo in repos:
        found = find_repo(repo, hub)
        if found.is_whole and (not repo.weights or is_offline(environ)):
            say(f"{repo.id}: on disk at {found.folder}")
        else:
            absent.append(repo)
    if not absent:
        return
    if is_offline(environ):
        raise ModelUnavailable(
            f"expected {', '.join(repo.id for repo in absent)} on disk, found nothing, and "
            "HF_HUB_OFFLINE forbids to fetch it"
        )
    endpoint = environ.get("HF_ENDPOINT", "").rstrip("/") or DEFAULT_HUB
    _check_endpoint(endpoint)
    deadline_s = _deadline_s(environ)
    orders = [_look_up(repo, hub, endpoint, deadline_s) for repo in absent]
    _check_disk(orders, hub)
    for order in orders:
        size = f"{order.n_bytes / MEGABYTE:.0f} MB"
        say(f"{order.repo.id}: {size} from {endpoint}, commit {order.commit}")
        folder = _download(order, hub, endpoint)
        missing = find_repo(order.repo, hub).missing
        if missing:
            raise ModelUnavailable(
                f"expected {', '.join(missing)} in {order.repo.label}, found none at {endpoint}"
            )
        say(f"{order.repo.id}: at {folder}")


def _check_endpoint(endpoint: str) -> None:
    """Raises: ModelUnavailable: whoever is on the way could put another model in its place."""
    parts = urlsplit(endpoint)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise ModelUnavailable(
            f"expected HF_ENDPOINT to begin with https://, found {endpoint[:80]}: only a mirror on "
            "this machine may be asked without TLS"
        )


def is_offline(environ: Mapping[str, str]) -> bool:
    """As huggingface_hub reads HF_HUB_OFFLINE."""
    return environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _deadline_s(environ: Mapping[str, str]) -> float:
    try:
        return float(environ.get("HF_HUB_ETAG_TIMEOUT", "")) or HUB_DEADLINE_S
    except ValueError:
        return HUB_DEADLINE_S


def _look_up(repo: Repo, hub: Path, endpoint: str, deadline_s: float) -> Order:
    """Return what the hub says of a repository. Raises: ModelUnavailable."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=endpoint, library_name="voiceloop")

    def ask() -> Any:
        return api.model_info(
            repo.id, revision=repo.revision, files_metadata=True, timeout=deadline_s
        )

    info = _guarded(lambda: _within(deadline_s, ask), repo, endpoint)
    sizes = {one.rfilename: one.size or 0 for one in info.siblings or ()}
    lacks = absent_patterns(repo, sizes)
    if lacks:
        raise ModelUnavailable(
            f"expected {', '.join(lacks)} in {repo.label}, found none at {endpoint}"
        )
    wanted = [name for name in sizes if is_wanted(name, repo)]
    commit = info.sha or repo.revision
    if not COMMIT.fullmatch(commit) or not all(map(_is_inside, wanted)):
        raise ModelUnavailable(
            f"expected a commit and the names of files in {repo.label}, found others at {endpoint}"
        )
    here = hub / f"models--{repo.id.replace('/', '--')}" / "snapshots" / commit
    absent = [name for name in wanted if not (here / name).is_file()]
    return Order(repo, commit, sum(sizes[name] for name in absent), tuple(absent))


def _is_inside(name: str) -> bool:
    """Whether a file of this name lies in the folder of its repository."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and name == str(path)


def _within(deadline_s: float, ask: Callable[[], T]) -> T:
    """The answer, or TimeoutError at the deadline.

    In a thread that is left behind: a name server that does not answer blocks longer than any
    timeout of a socket, and no call of Python's can be told to give up on it.
    """
    answer: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(ask())
        except BaseException as error:  # handed to the caller, whatever it is
            failure.append(error)

    thread = threading.Thread(target=run, name="ask the hub", daemon=True)
    thread.start()
    thread.join(deadline_s)
    if failure:
        raise failure[0]
    if not answer:
        raise TimeoutError
    return answer[0]


def _check_disk(orders: Sequence[Order], hub: Path) -> None:
    needed_mb = sum(order.n_bytes for order in orders) // MEGABYTE + DISK_MARGIN_MB
    free_mb = free_disk_mb(hub)
    if free_mb < needed_mb:
        raise ModelUnavailable(
            f"expected {needed_mb} MB free in {hub}, found {free_mb}: free some, or set HF_HOME to "
            "a folder on a larger disk"
        )


def _download(order: Order, hub: Path, endpoint: str) -> Path:
    """Into the cache, resuming what an earlier try left. Raises: ModelUnavailable."""
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()  # a log file wants lines
    place = hub / f"models--{order.repo.id.replace('/', '--')}"

    def fetch() -> Path:
        folder = place / "snapshots" / order.commit
        folder.mkdir(parents=True, exist_ok=True)
        for name in order.absent:
            blob = _fetch(order.repo.id, name, order.commit, place / "blobs", endpoint)
            link = folder / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)  # one whose blob is gone
            link.symlink_to(os.path.relpath(blob, link.parent))
        _name_revision(place, order)
        return folder

    return _guarded(fetch, order.repo, endpoint)


def _name_revision(place: Path, order: Order) -> None:
    """Note which commit a branch is, as huggingface_hub does."""
    if order.repo.revision != order.commit and REVISION.fullmatch(order.repo.revision):
        ref = place / "refs" / order.repo.revision
        ref.parent.mkdir(exist_ok=True)
        ref.write_text(order.commit, encoding="ascii")


def _fetch(repo_id: str, name: str, commit: str, blobs: Path, endpoint: str) -> Path:
    """Fetch ``name`` of a repository at ``commit`` unless its blob is there; returns the blob.

    Not by ``snapshot_download``: that puts a file wherever an etag says, holds small ones against
    nothing, and throws away what came when the process ends; a model of 8 GB over a slow line needs
    more. The bytes go to ``blobs/ETAG.partial`` through the library's own transfer (retries,
    resuming, progress bar), are checked, and are put where the library looks for them.

    Raises:
        ModelUnavailable: another command fetches it, or what came is not the file.
        Exception: what huggingface_hub raises; the caller says it in a sentence.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    url = hf_hub_url(repo_id, name, revision=commit, endpoint=endpoint)
    headers = build_hf_headers(library_name="voiceloop")
    metadata = get_hf_file_metadata(url, headers=headers, endpoint=endpoint)
    if metadata.size is None or not ETAG.fullmatch(metadata.etag or ""):
        raise ModelUnavailable(
            f"expected the size and checksum of {name} of {repo_id}, found none at {endpoint}"
        )
    blobs.mkdir(parents=True, exist_ok=True)
    blob = blobs / str(metadata.etag)
    if blob.exists():
        return blob
    partial = blob.with_name(f"{blob.name}.partial")
    headers["Accept-Encoding"] = "identity"  # the checksum is of the file as it is
    if urlsplit(metadata.location).netloc != urlsplit(url).netloc:
        headers.pop("authorization", None)  # the store it redirects to has a signed URL
    with _held(partial, name) as file:
        n_here = file.seek(0, 2)
        if n_here > metadata.size:
            n_here = file.truncate(0)
        if n_here < metadata.size:
            http_get(
                metadata.location,
                file,
                resume_size=n_here,
                headers=headers,
                expected_size=metadata.size,
                displayed_filename=name,
            )
        file.flush()
        if _checksum(partial, len(blob.name)) != blob.name:
            partial.unlink()
            raise ModelUnavailable(
                f"expected {name} of {repo_id} with the hub's checksum, found another: it was "
                "removed, run the command again"
            )
        partial.rename(blob)
    return blob


@contextmanager
def _held(partial: Path, name: str) -> Iterator[BinaryIO]:
    """The partial file, opened for appending; two commands must not write to it at once."""
    with partial.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ModelUnavailable(
                f"expected to fetch {name} alone, found another command at it: wait for its end"
            ) from None
        yield file


def _checksum(path: Path, n_digits: int) -> str:
    """Return the checksum in hexadecimal: 64 digits of SHA-256, or 40 of a git blob's SHA-1."""
    digest = hashlib.sha256() if n_digits == 64 else hashlib.sha1(usedforsecurity=False)
    if n_digits != 64:
        digest.update(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _guarded(act: Callable[[], T], repo: Repo, endpoint: str) -> T:
    """Run one step with the hub; every failure of it becomes one sentence."""
    from huggingface_hub import errors

    # httpx or its successor: whichever this huggingface_hub is built on.
    http: Any = import_module(errors.HTTPError.__module__.partition(".")[0])

    def unavailable(found: str) -> ModelUnavailable:
        return ModelUnavailable(f"expected {repo.label} from {endpoint}, found {found}")

    try:
        return act()
    except errors.GatedRepoError:
        raise unavailable(
            f"that its terms must be accepted first: do so at {endpoint}/{repo.id}, then set "
            "HF_TOKEN or run `hf auth login`"
        ) from None
    except errors.RevisionNotFoundError:
        raise unavailable(f"no revision {repo.revision}") from None
    except errors.RepositoryNotFoundError:
        raise unavailable("no such model (or a private one, which needs HF_TOKEN)") from None
    except errors.HfHubHTTPError as error:
        code = error.response.status_code
        hint = STATUS_HINTS.get(code, "try again later")
        raise unavailable(f"HTTP status {code}: {hint}") from None
    except (TimeoutError, http.ConnectError, http.TimeoutException):
        raise ModelUnavailable(
            f"expected the model hub at {endpoint}, found no answer: check the network, set "
            "HF_ENDPOINT to a mirror (HF_HUB_ETAG_TIMEOUT for a slow one), or copy the model's "
            "folder here and name it (--llm-model, --stt-model, --tts-model)"
        ) from None
    except (http.HTTPError, errors.LocalEntryNotFoundError) as error:
        raise unavailable(
            f"the connection broken off ({type(error).__name__}): run the command again, it resumes"
        ) from None
    except (OSError, ValueError) as error:
        raise unavailable(" ".join(str(error).split())[:200]) from None
