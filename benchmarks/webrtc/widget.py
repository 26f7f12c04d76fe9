"""The widget in a browser: ``python -m benchmarks.webrtc.widget URL``.

Opens the example page of a running server in a headless Chromium, clicks, and waits for the state
"speaking", which the widget shows at the first loud sample; then loads the page anew. Prints how
long that took, and what the widget is over the wire, as one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from clients.recording import write_wav
from clients.report.percentiles import Distribution
from tests.clients.web.chromium import chromium, find_chromium

N_CLICKS = 9  # the first is not counted: the browser has not made a microphone before
WIDGET = "document.querySelector('voice-loop')"
CLICK = f"""(() => {{
  const widget = {WIDGET};
  globalThis.clickedAt = performance.now();
  widget.addEventListener("voiceloop-state", ({{ detail }}) => {{
    if (detail === "speaking") globalThis.spokeAt ??= performance.now();
  }});
  widget.shadowRoot.querySelector(".primary").click();
}})()"""
LOADED = """performance.getEntriesByType("resource")
  .filter((one) => /\\/(embed|web\\/\\w+)\\.js$/.test(one.name))
  .reduce((sum, one) => sum + one.transferSize, 0)"""


async def measure(url: str) -> dict[str, Any]:
    executable = find_chromium()
    if executable is None:
        raise SystemExit("expected Chromium (apt-get install chromium), found none")
    took_ms, n_bytes, carriers = [], 0, []
    with tempfile.TemporaryDirectory() as folder:
        silence = Path(folder) / "caller.wav"
        write_wav(silence, (np.zeros(24_000 * 60, np.int16),), 24_000)
        async with chromium(executable, silence) as page:
            for number in range(N_CLICKS):
                await page.goto(f"{url}/embed?{number}")
                await page.until(f"{WIDGET}?.shadowRoot != null")
                await page.evaluate(CLICK)
                await page.until("globalThis.spokeAt !== undefined")
                took_ms.append(await page.evaluate("spokeAt - clickedAt"))
                carriers.append(await page.evaluate(f"{WIDGET}.carrier"))
                n_bytes = n_bytes or await page.evaluate(LOADED)
    counted = Distribution.of(took_ms[1:])
    told = {"n": counted.n, "p50": counted.p50, "p95": counted.p95, "bytes": n_bytes}
    return {**told, "took_ms": [round(one) for one in took_ms], "carriers": carriers}


def main() -> None:
    print(json.dumps(asyncio.run(measure(sys.argv[1]))), flush=True)


if __name__ == "__main__":
    main()
