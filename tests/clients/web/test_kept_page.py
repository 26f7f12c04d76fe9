"""The page of kept calls in a real browser: one call, many by filters, two runs side by side."""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from clients.server_process import running_server
from tests.clients.web.chromium import chromium, find_chromium

CHROMIUM = find_chromium()
pytestmark = [
    pytest.mark.call,
    pytest.mark.timeout(120),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
]
FAKES = (sys.executable, "-m", "benchmarks.calls.fake_server")


def turn(end_ms: float, heard: str, said: str, gap_ms: float, **fields: Any) -> dict[str, Any]:
    return {
        "heard": heard, "said": said, "gap_ms": gap_ms, "at_ms": end_ms + 2000,
        "marks_ms": {"speech_end": end_ms}, "stages": [{"name": "silence wait", "ms": gap_ms}],
        "endpoint": {"reason": "words", "needed_ms": 180.0, "p_end": 0.91}, **fields,
    }  # fmt: skip


def notes(*turns: dict[str, Any]) -> dict[str, Any]:
    sections = dict.fromkeys(("client", "said", "cuts", "calls", "results"), [])
    return {"form": 1, "agent": "Cafe", "seconds": 6.0, "turns": list(turns), **sections}


def flac() -> bytes:
    n_samples = np.arange(24_000 * 6)
    tone = (9000 * np.sin(n_samples / 20)).astype(np.int16)
    file = io.BytesIO()
    soundfile.write(file, np.stack([tone, tone], axis=1), 24_000, format="FLAC")
    return file.getvalue()


def choose(files: dict[str, bytes]) -> str:
    """JavaScript that has these files chosen."""
    told = json.dumps({name: base64.b64encode(data).decode() for name, data in files.items()})
    return f"""(() => {{
      const chosen = new DataTransfer();
      for (const [name, data] of Object.entries({told})) {{
        const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
        chosen.items.add(new File([bytes], name));
      }}
      const input = document.getElementById("files");
      input.files = chosen.files;
      input.dispatchEvent(new Event("change"));
    }})()"""


async def test_kept_calls_are_opened_filtered_and_compared(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    one = notes(turn(1000, "a table", "Booked.", 220.0), turn(4000, "<b>bye</b>", "Bye.", 900.0))
    other = notes(turn(1100, "a table", "No.", 300.0), turn(4000, "<b>bye</b>", "Bye.", 400.0))
    files = {
        "sess_1~.json": json.dumps(one).encode(), "sess_1~.flac": flac(),
        "sess_2~.json": json.dumps(other).encode(), "sess_3~.json": b"[]",
        "sess_0~.json": json.dumps(notes(turn(9000, "hello", "Hi.", 100.0))).encode(),
    }  # fmt: skip
    wav = tmp_path / "silence.wav"
    soundfile.write(wav, np.zeros(2400, np.int16), 24_000)
    log = tmp_path / "server.log"
    async with running_server(command=FAKES, log=log) as server, chromium(CHROMIUM, wav) as page:
        await page.goto(f"http://127.0.0.1:{server.port}/web/kept.html")
        await page.until("document.getElementById('filters') !== null")
        await page.evaluate(choose(files))
        await page.until("document.querySelectorAll('#calls button').length === 3")
        assert "sess_3" in await page.evaluate("document.getElementById('trouble').textContent")
        await page.evaluate("document.querySelector('#calls button').click()")
        await page.until("document.querySelectorAll('#turns > li').length === 2")
        text = await page.evaluate("document.getElementById('turns').textContent")
        assert "needed_ms 180" in text
        assert "<b>bye</b>" in text  # what was said is text, whatever it looks like
        drawn = "document.getElementById('wave').toDataURL().length > 3000"
        await page.until(drawn)
        await page.size(390, 800)  # nothing lies over the list of calls
        places = "['calls', 'kept'].map((id) => document.getElementById(id).getClientRects()[0])"
        assert await page.evaluate(f"(([a, b]) => b.top >= a.bottom)({places})")
        beside = "[...document.getElementById('other').options].map((one) => one.text).join('; ')"
        alike = "nothing; sess_2~: 2 turns alike; sess_0~: 0 turns alike"
        assert await page.evaluate(beside) == alike  # another run of the call stands first
        await page.evaluate(
            "(() => { const o = document.getElementById('other'); o.value = 'sess_2~';"
            " o.dispatchEvent(new Event('change')); })()"
        )
        assert await page.evaluate("document.querySelectorAll('#turns .differs').length") == 1
        await page.evaluate(
            "(() => { const g = document.getElementById('gap'); g.value = '800';"
            " g.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )
        assert await page.evaluate("document.querySelectorAll('#calls button').length") == 1
        assert page.console == []
