"""One large file of a model into the cache, going on where an earlier command was interrupted.

huggingface_hub resumes within one download and throws the rest away when the process ends; a model
of 8 GB over a slow line needs more. The bytes go to ``blobs/ETAG.partial`` through the library's
own transfer (retries, resuming, progress bar), are checked, and are put where
``snapshot_download`` looks for them.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from voiceloop.errors import ModelUnavailable

READ_BYTES = 1 << 20
SHA256 = re.compile(r"[0-9a-f]{64}")  # the etag of a file in large-file storage is its hash


def fetch_file(repo_id: str, name: str, commit: str, hub: Path, endpoint: str) -> None:
    """Fetch ``name`` of a repository at ``commit`` unless its blob is there.

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
    if metadata.etag is None or metadata.size is None:
        return  # a hub that names neither: left to snapshot_download
    blobs = hub / f"models--{repo_id.replace('/', '--')}" / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    blob = blobs / metadata.etag
    if blob.exists():
        return
    partial = blob.with_name(f"{blob.name}.partial")
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
        if SHA256.fullmatch(metadata.etag) and _sha256(partial) != metadata.etag:
            partial.unlink()
            raise ModelUnavailable(
                f"expected {name} of {repo_id} with the hub's checksum, found another: it was "
                "removed, run the command again"
            )
        partial.rename(blob)


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


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()
