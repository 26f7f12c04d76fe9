"""The pictures and the sound of the manual: ``python -m tests.manual.pictures``.

Plays the recorded caller of `voiceloop demo` to the server, keeps its report, has Chromium take
the web page in a call and the report, light and dark, and writes twenty seconds of the call. Takes
two minutes, one core and a browser; nothing is downloaded.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import soundfile

from clients.recording import read_flac, write_wav
from clients.server_process import running_server
from tests.clients.web.chromium import Page, chromium, find_chromium

PICTURES = Path(__file__).resolve().parents[2] / "voiceloop" / "docs" / "pictures"
VOICE = Path(__file__).resolve().parents[2] / "clients" / "call" / "heart"
SCHEMES = ("light", "dark")
MOST_BYTES = 100_000  # of one file
SOUND_S = 20.0
RATE_HZ = 24_000
SIZE = 1100, 980  # of each picture, so that they stand side by side
CALLER = (5.0, "1_hours", 4.5, "5_price", 8.0)  # recordings, and silences in seconds


def demo(out: Path) -> None:
    """One recorded call; its sound and report lie in ``out``."""
    command = [sys.executable, "-m", "voiceloop", "demo", "--out", str(out)]
    subprocess.run(command, check=True)


def sound(conversation: Path, into: Path) -> None:
    """The first seconds as Opus: the caller on the left, the agent on the right."""
    samples, rate_hz = soundfile.read(conversation, dtype="float32")
    start = int(np.argmax(np.abs(samples).max(axis=1) > 0.02))
    part = samples[start : start + int(SOUND_S * rate_hz)]
    fade = np.linspace(1.0, 0.0, rate_hz // 2, dtype=np.float32)
    part[-fade.size :] *= fade[:, None]
    soundfile.write(into, part, rate_hz, format="OGG", subtype="OPUS", compression_level=0.95)


async def take(page: Page, name: str) -> None:
    """WebP: a fifth of a PNG."""
    for scheme in SCHEMES:
        await page.color_scheme(scheme)
        await asyncio.sleep(0.3)  # a change of colors is drawn over some frames
        await page.screenshot(PICTURES / f"{name}-{scheme}.webp", "webp", whole=False)


async def web_page(scratch: Path) -> None:
    pieces = [
        read_flac(VOICE / f"{part}.flac").at_rate(RATE_HZ).samples
        if isinstance(part, str)
        else np.zeros(int(part * RATE_HZ), np.int16)
        for part in CALLER
    ]
    wav = scratch / "caller.wav"
    write_wav(wav, (np.concatenate(pieces),), RATE_HZ)
    executable = find_chromium()
    assert executable is not None, "no Chromium here: apt-get install chromium"
    log = scratch / "server.log"
    async with running_server(log=log) as server, chromium(executable, wav) as page:
        await page.size(*SIZE)
        await page.call("Emulation.setScrollbarsHidden", hidden=True)
        await page.goto(f"http://127.0.0.1:{server.port}/?transport=websocket")
        await page.evaluate("document.getElementById('start').click()")
        says = "document.querySelectorAll('.says.agent p').length >= 3"
        await page.until(says, timeout_s=60)
        await asyncio.sleep(3.0)  # the last answer's figures
        await take(page, "page")


async def report(html: Path, scratch: Path) -> None:
    executable = find_chromium()
    assert executable is not None
    wav = scratch / "silence.wav"
    write_wav(wav, (np.zeros(2400, np.int16),), RATE_HZ)
    async with chromium(executable, wav) as page:
        await page.size(*SIZE)
        await page.call("Emulation.setScrollbarsHidden", hidden=True)
        await page.goto(html.as_uri())
        await take(page, "report")


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        demo(scratch / "demo")
        sound(scratch / "demo" / "conversation.wav", PICTURES / "call.ogg")
        asyncio.run(report(scratch / "demo" / "report.html", scratch))
        asyncio.run(web_page(scratch))
    for path in sorted(PICTURES.iterdir()):
        size = path.stat().st_size
        print(f"{size:7d} bytes  {path.name}")
        assert size <= MOST_BYTES, f"expected {MOST_BYTES} bytes at most, found {size}"


if __name__ == "__main__":
    main()
