"""A headless Chromium with a WAV as its microphone, driven over the DevTools protocol.

No driver and no package but websockets: a page, evaluate, keys, a screenshot is all a test needs.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

START_TIMEOUT_S = 30.0
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# Evaluated before a page's own scripts: the last events of a call either way, but for its sound.
KEEP_EVENTS = """(() => {
  const kept = globalThis.lastEvents = [];
  const keep = (arrow, text) => {
    if (typeof text !== "string" || !text.startsWith("{")) return;
    const { type, ...rest } = JSON.parse(text);
    if (!type || /audio.delta|buffer.append/.test(type)) return;
    const at = Math.round(performance.now());
    kept.push(`${at} ${arrow} ${type} ${JSON.stringify(rest).slice(0, 200)}`);
    if (kept.length > 80) kept.shift();
  };
  const data = Object.getOwnPropertyDescriptor(MessageEvent.prototype, "data");
  Object.defineProperty(MessageEvent.prototype, "data", {
    ...data,
    get() {
      const text = data.get.call(this);
      keep("<", text);
      return text;
    },
  });
  for (const { prototype } of [WebSocket, RTCDataChannel]) {
    const { send } = prototype;
    prototype.send = function (text) {
      keep(">", text);
      return send.call(this, text);
    };
  }
})()"""
# What a page knows of its call: read where a test waited in vain.
KNOWN = """(() => {
  const { voiceloop: call } = globalThis;
  const { playing, stats, openResponse, isHeld, isReady, flushes, isRtc } = call ?? {};
  const known = { playing, stats, openResponse, isHeld, isReady, flushes, isRtc };
  return JSON.stringify({ ...known, line: document.body.dataset.line, now: performance.now() }) +
    "\\n" + globalThis.lastEvents.join("\\n");
})()"""


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab. ``console``: what the page logged or threw."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._n_sent = 0
        self.console: list[str] = []
        self._session = ""

    async def run(self) -> None:
        async for frame in self._socket:
            message = json.loads(frame)
            if "id" in message:
                answer = self._answers.pop(message["id"])
                if not answer.done():  # who waited for it in vain has gone
                    answer.set_result(message)
            elif message["method"] == "Runtime.exceptionThrown":
                self.console.append(json.dumps(message["params"]["exceptionDetails"])[:600])
            elif message["method"] == "Log.entryAdded":
                entry = message["params"]["entry"]
                self.console.append(f"{entry['level']}: {entry['text']} {entry.get('url', '')}")
            elif message["method"] == "Runtime.consoleAPICalled":
                self.console.append(json.dumps(message["params"]["args"])[:600])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._n_sent += 1
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[self._n_sent] = answer
        request: dict[str, Any] = {"id": self._n_sent, "method": method, "params": params}
        if self._session:
            request["sessionId"] = self._session
        await self._socket.send(json.dumps(request))
        async with asyncio.timeout(20):
            found = await answer
        assert "error" not in found, f"{method}: {found['error']}"
        result: dict[str, Any] = found["result"]
        return result

    async def attach(self) -> None:
        """Make the first tab the one that is spoken to."""
        targets = (await self.call("Target.getTargets"))["targetInfos"]
        tab = next(one["targetId"] for one in targets if one["type"] == "page")
        found = await self.call("Target.attachToTarget", targetId=tab, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call("Page.addScriptToEvaluateOnNewDocument", source=KEEP_EVENTS)

    async def goto(self, url: str) -> None:
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def evaluate(self, expression: str) -> Any:
        found = await self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
            userGesture=True,
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, expression: str, timeout_s: float = 20.0) -> Any:
        """Wait until the expression is true; its value."""
        try:
            async with asyncio.timeout(timeout_s):
                while not (value := await self.evaluate(expression)):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        except TimeoutError:
            known = await self.evaluate(KNOWN)
            told = f"never true: {expression}; console: {self.console}; the page knows:\n{known}"
            raise AssertionError(told) from None
        return value

    async def key(self, code: str, text: str, *, is_down: bool) -> None:
        kind = "keyDown" if is_down else "keyUp"
        await self.call("Input.dispatchKeyEvent", type=kind, code=code, key=text, text=text)

    async def click(self, selector: str) -> None:
        """With the mouse, which unlike a script's click moves the focus as a person's does."""
        found = await self.evaluate(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])"
            f"(document.querySelector('{selector}').getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.call(
                "Input.dispatchMouseEvent",
                type=kind, x=found[0], y=found[1], button="left", clickCount=1,
            )  # fmt: skip

    async def color_scheme(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def size(self, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    async def screenshot(self, path: Path, kind: str = "png", *, whole: bool = True) -> None:
        """Of the whole page, else of what the window shows."""
        found = await self.call("Page.captureScreenshot", captureBeyondViewport=whole, format=kind)
        path.write_bytes(base64.b64decode(found["data"]))  # noqa: ASYNC240 - nothing else runs


@asynccontextmanager
async def chromium(executable: str, microphone: Path) -> AsyncIterator[Page]:
    """Start the browser; the WAV is heard once, from the moment a page opens the microphone."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            executable,
            "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--remote-debugging-port=0", f"--user-data-dir={profile}",
            "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream",
            f"--use-file-for-fake-audio-capture={microphone}%noloop",
            "--autoplay-policy=no-user-gesture-required", "--log-level=3",
            "--disable-background-networking", "--disable-component-update",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            address = await _devtools_address(process)
            async with connect(address, max_size=None, ping_interval=None, proxy=None) as socket:
                page = Page(socket)
                reading = asyncio.create_task(page.run())
                await page.attach()
                yield page
            await reading
        finally:
            if process.returncode is None:
                process.terminate()
            await process.communicate()


async def _devtools_address(process: asyncio.subprocess.Process) -> str:
    """What the browser prints once it listens; what follows is read until it ends."""
    assert process.stderr is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while raw := await process.stderr.readline():
                line = raw.decode(errors="replace").strip()
                lines.append(line)
                if line.startswith("DevTools listening on "):
                    return line.removeprefix("DevTools listening on ")
    except TimeoutError:
        pass
    raise AssertionError(f"Chromium did not start: {lines[-3:]}")
