"""A model hub on a local port that does what a test says: serves, refuses, hangs or breaks off."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40
LARGE_BYTES = 1000


@dataclass
class Hub:
    """files: of the one repository. status: what every question is answered with (200: truly).

    drops: how many transfers of large files break off after ``drop_after`` bytes. asked: method,
    path and range. etags: what it says of files in place of the truth, which is of those of
    LARGE_BYTES their SHA-256, of others that of a git blob.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    status: int = 200
    error_code: str = ""
    hangs: bool = False
    drops: int = 0
    drop_after: int = 0
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    url: str = ""
    etags: dict[str, str] = field(default_factory=dict)
    released: threading.Event = field(default_factory=threading.Event)


@contextmanager
def scripted_hub(hub: Hub) -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:  # noqa: N802 - the library's name
            answer(hub, self)

        def do_HEAD(self) -> None:  # noqa: N802
            answer(hub, self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        hub.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def answer(hub: Hub, request: BaseHTTPRequestHandler) -> None:
    path = unquote(urlsplit(request.path).path)
    hub.asked.append((request.command, path, request.headers.get("Range", "")))
    if hub.hangs:
        hub.released.wait()
        request.close_connection = True
        return
    if hub.status != 200:
        headers = {"X-Error-Code": hub.error_code} if hub.error_code else {}
        send(request, hub.status, b"{}", headers)
    elif path.startswith("/api/models/") and "/tree/" in path:
        entries = [_entry(name, data) for name, data in hub.files.items()]
        send(request, 200, json.dumps(entries).encode(), {"X-Repo-Commit": COMMIT})
    elif path.startswith("/api/models/"):
        siblings = [{"rfilename": name, "size": len(data)} for name, data in hub.files.items()]
        body = {"id": "owner/name", "sha": COMMIT, "siblings": siblings}
        send(request, 200, json.dumps(body).encode(), {})
    else:
        send_file(hub, request, path.partition("/resolve/")[2].partition("/")[2])


def _entry(name: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(data), "oid": etag(data)[:40]}


def etag(data: bytes) -> str:
    if len(data) < LARGE_BYTES:
        return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    return hashlib.sha256(data).hexdigest()


def send_file(hub: Hub, request: BaseHTTPRequestHandler, name: str) -> None:
    data = hub.files.get(name)
    if data is None:
        send(request, 404, b"{}", {"X-Error-Code": "EntryNotFound"})
        return
    start = int((request.headers.get("Range") or "bytes=0-").partition("=")[2].partition("-")[0])
    headers = {
        "ETag": f'"{hub.etags.get(name, etag(data))}"',
        "X-Repo-Commit": COMMIT,
        "Accept-Ranges": "bytes",
    }
    status = 200
    if start:
        headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        status = 206
    if request.command == "GET" and hub.drops and len(data) >= LARGE_BYTES:
        hub.drops -= 1
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data) - start)}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(data[start : start + hub.drop_after])
        request.wfile.flush()
        request.close_connection = True
        return
    send(request, status, data[start:], headers)


def send(
    request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str]
) -> None:
    request.send_response(status)
    for name, value in {**headers, "Content-Length": str(len(body))}.items():
        request.send_header(name, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)
