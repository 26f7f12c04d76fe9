"""Services behind an agent, on one port, that fail as they are told and quote what they were sent.

Owns the shapes of such failures. Each answer holds the words of the request, and a word that only
the service knows: neither belongs into a log, a metric, a trace or an error on the wire.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

STATUSES = (400, 401, 422, 429, 500, 503)
NUMBER = re.compile(r"canarysaid(\d{3})x")


def word(kind: str, number: int) -> str:
    """A word that occurs nowhere else; kind: letters."""
    return f"canary{kind}{number:03d}x"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it goes over the line. is_cut: the line ends before the body does. is_raw: the
    body is all that is sent.
    """

    body: bytes
    status: str = "400 Bad Request"
    content_type: str = "application/json"
    headers: str = ""
    is_cut: bool = False
    is_raw: bool = False

    def encoded(self) -> bytes:
        if self.is_raw:
            return self.body
        n_bytes = len(self.body) + 100 * self.is_cut
        head = f"HTTP/1.1 {self.status}\r\nContent-Type: {self.content_type}\r\n{self.headers}"
        whole = f"{head}Content-Length: {n_bytes}\r\nConnection: close\r\n\r\n".encode()
        return whole + self.body


Shape = Callable[[str, str, int], Reply]  # what is quoted, one word of it, the status


def _json(value: object, status: int) -> Reply:
    return Reply(json.dumps(value).encode(), f"{status} X")


def _error(told: str, one: str, status: int) -> Reply:
    return _json({"error": {"message": told, "type": "invalid_request_error"}}, status)


def _codes(told: str, one: str, status: int) -> Reply:
    return _json({"error": {"message": "", "type": one, "code": one, "param": one}}, status)


def _input(told: str, one: str, status: int) -> Reply:
    return _json({"detail": [{"loc": ["body", one], "msg": told, "input": told}]}, status)


def _headers(told: str, one: str, status: int) -> Reply:
    quoting = f"X-Error: {one}\r\nRetry-After: {one}\r\nSet-Cookie: said={one}\r\n"
    return Reply(b"", f"{status} {one}", f"{one}/{one}", quoting)


SHAPES: dict[str, Shape] = {
    "OpenAI's error": _error,
    "codes that quote": _codes,
    "an error that is a text": lambda told, one, status: _json({"error": told}, status),
    "FastAPI's input": _input,
    "a list": lambda told, one, status: _json([told], status),
    "a text": lambda told, one, status: Reply(told.encode(), f"{status} X", "text/plain"),
    "a page": lambda told, one, status: Reply(
        f"<html><h1>{told}</h1></html>".encode(), f"{status} X", "text/html"
    ),
    "headers that quote": _headers,
    "bytes": lambda told, one, status: Reply(b"\xff\xfe" + told.encode(), f"{status} X"),
    "no HTTP": lambda told, one, status: Reply(f"{one} {told}\r\n\r\n".encode(), is_raw=True),
    "a header that is none": lambda told, one, status: Reply(
        f"HTTP/1.1 {status} X\r\n{told}\r\n{one}\r\n\r\n".encode(), is_raw=True
    ),
    "cut off": lambda told, one, status: Reply(told.encode(), f"{status} X", is_cut=True),
}


def _chunk(delta: object, finish: object = None) -> dict[str, object]:
    return {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _call(name: str, arguments: str) -> dict[str, object]:
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": 0, "id": "call_1", "function": function}]}


def stream(*chunks: object) -> Reply:
    """A language model's answer; a text is sent as it is."""
    lines = [one if isinstance(one, str) else json.dumps(one) for one in chunks]
    told = "".join(f"data: {line}\n\n" for line in (*lines, "[DONE]"))
    return Reply(told.encode(), "200 OK", "text/event-stream")


def said(text: str) -> Reply:
    return stream(_chunk({"role": "assistant", "content": text}), _chunk({}, "stop"))


def asked(tool: str, arguments: str) -> Reply:
    return stream(_chunk(_call(tool, arguments)), _chunk({}, "tool_calls"))


# Answers of a language model that begin well.
BROKEN_STREAMS: dict[str, Callable[[str, str], Reply]] = {
    "an error within": lambda told, one: stream(
        _chunk({"content": "Well"}), {"error": {"message": told, "code": one, "type": one}}
    ),
    "no JSON": lambda told, one: stream("{" + told),
    "cut within": lambda told, one: Reply(
        stream(_chunk({"content": "Well"})).body + told.encode(), "200 OK", "text/event-stream",
        is_cut=True,
    ),
    "content of another kind": lambda told, one: stream(_chunk({"content": {one: told}})),
    "choices of another kind": lambda told, one: stream({"choices": told}),
    "a choice of another kind": lambda told, one: stream({"choices": [told]}),
    "another end": lambda told, one: stream(_chunk({"content": "Well."}), _chunk({}, one)),
    "a call of nothing": lambda told, one: asked(one, json.dumps({"what": one})),
    "a broken call": lambda told, one: asked("ask_shop", '{"what": ' + one),
    "a call with more": lambda told, one: asked("ask_shop", json.dumps({"what": one, one: told})),
    "usage of another kind": lambda told, one: stream(
        _chunk({"content": "Well."}), {"choices": [], "usage": told}
    ),
    "a page": lambda told, one: Reply(f"<p>{told}</p>".encode(), "200 OK", "text/html"),
    "one JSON": lambda told, one: Reply(json.dumps({"answer": told}).encode(), "200 OK"),
}  # fmt: skip


@dataclass(slots=True)
class Services:
    """What fails, and how: by the number of the failure. hearing: the one of the recognizer, which
    is sent no words. collected: what the collector of traces was sent.
    """

    url: str = ""
    hearing: int = 0
    by_path: dict[tuple[str, int], Callable[[str, str], Reply]] = field(default_factory=dict)
    tools: dict[int, str] = field(default_factory=dict)  # which one the model calls
    collected: list[bytes] = field(default_factory=list)
    asked: set[tuple[str, int]] = field(default_factory=set)

    def fail(self, path: str, number: int, shape: Callable[[str, str], Reply]) -> None:
        self.by_path[path, number] = shape

    def unmet(self) -> set[int]:
        """The failures for which the service that was to fail has not been asked yet."""
        return {number for _, number in self.by_path.keys() - self.asked}

    def answer(self, path: str, request: str, raw: bytes) -> Reply:
        numbers = NUMBER.findall(request)
        number = int(numbers[-1]) if numbers else self.hearing
        if path == "/v1/traces":
            self.collected.append(raw)
            return Reply(b"", "200 OK")
        if shape := self.by_path.get((path, number)):
            self.asked.add((path, number))
            return shape(f"cannot {word('service', number)}: {request}", word("said", number))
        return self._good(path, request, number)

    def _good(self, path: str, request: str, number: int) -> Reply:
        match path:
            case "/v1/chat/completions":
                if number in self.tools and '"role":"tool"' not in request.replace(": ", ":"):
                    what = json.dumps({"what": f"{word('said', number)} {word('args', number)}"})
                    return asked(self.tools[number], what)
                return said(f"So {word('said', number)} it is.")
            case "/v1/audio/transcriptions":
                return Reply(json.dumps({"text": word("said", number)}).encode(), "200 OK")
            case "/v1/audio/speech":
                return Reply(bytes(4800), "200 OK", "audio/pcm")
            case "/search":
                found = {"passages": [{"text": word("document", number), "path": "a.md"}]}
                return Reply(json.dumps(found).encode(), "200 OK")
            case "/mcp":
                return self._mcp(json.loads(request))
        return Reply(b'{"data": [{"id": "m"}]}', "200 OK")

    def _mcp(self, asked: dict[str, object]) -> Reply:
        results: dict[object, object] = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "shop", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "find", "inputSchema": {"type": "object",
                "properties": {"what": {"type": "string"}}}}]},
        }  # fmt: skip
        if "id" not in asked:
            return Reply(b"", "202 Accepted")
        told = {"jsonrpc": "2.0", "id": asked["id"], "result": results.get(asked["method"], {})}
        return Reply(json.dumps(told).encode(), "200 OK")


@asynccontextmanager
async def failing_services() -> AsyncIterator[Services]:
    services = Services()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            lengths = re.findall(r"(?im)^content-length: (\d+)", head)
            if lengths:
                body = await reader.readexactly(int(lengths[0]))
            else:
                body = await _chunks(reader) if "chunked" in head.lower() else b""
            path = head.split()[1].partition("?")[0]
            text = f"{head.partition('?')[2].partition(' ')[0]} {body.decode(errors='replace')}"
            text = text[1:] if text.startswith(" ") else text
            writer.write(services.answer(path, text, body).encoded())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=1 << 22)
    services.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield services
    finally:
        server.close()


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while n_bytes := int(await reader.readline(), 16):
        body += await reader.readexactly(n_bytes)
        await reader.readline()
    return body
