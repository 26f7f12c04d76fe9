"""The processes of a server as the machine sees them, by name, and what the server itself holds."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.request import ProxyHandler, Request, build_opener

from prometheus_client.parser import text_string_to_metric_families

from clients.connection import own_key
from clients.server_process import ServerProcess, process_tree

GATEWAY = "gateway"
_SPEC = "--spec-json="  # of a worker's command line, where its name stands


# What nobody holds any more when no call is there, by its name in /metrics. The rest of the KV
# cache is kept on purpose: prefixes that the next call may begin with.
HELD = {
    "voiceloop_sessions": "calls",
    "voiceloop_tasks": "tasks",
    "voiceloop_worker_streams": "streams of workers",
    "voiceloop_kv_blocks": "KV blocks held",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """What one process holds at one time.

    at_s: since the soak began. rss_mb: resident memory, 10**6 bytes. n_descriptors: open files.
    """

    name: str
    pid: int
    at_s: float
    rss_mb: float
    n_descriptors: int


def workers_of(pid: int) -> dict[str, int]:
    """The process ids of a server's workers, by the name that its configuration gives them."""
    found: dict[str, int] = {}
    for child in process_tree(pid)[1:]:
        with suppress(OSError):  # it ended while we looked
            arguments = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            for argument in arguments:
                if argument.startswith(_SPEC):
                    found[json.loads(argument.removeprefix(_SPEC))["name"]] = child
    return found


def n_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def sample(pid: int, at_s: float) -> list[Sample]:
    """The server's processes now; one that ends meanwhile is left out."""
    page_mb = os.sysconf("SC_PAGE_SIZE") / 1e6
    samples = []
    for name, process in {GATEWAY: pid, **workers_of(pid)}.items():
        with suppress(OSError):
            n_pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
            samples.append(Sample(name, process, at_s, n_pages * page_mb, n_descriptors(process)))
    return samples


async def metrics_of(server: ServerProcess) -> str:
    """What its /metrics say. Raises: OSError."""
    url = f"http://127.0.0.1:{server.port}/metrics"
    key = own_key(url)
    headers = {"Authorization": f"Bearer {key}"} if key else {}

    def read() -> str:
        opener = build_opener(ProxyHandler({}))
        with opener.open(Request(url, headers=headers), timeout=5.0) as answer:  # noqa: S310
            return str(answer.read().decode())

    return await asyncio.to_thread(read)


async def held(server: ServerProcess) -> dict[str, float]:
    """What a server holds for its calls, by the names of `HELD`; empty where it does not say."""
    try:
        text = await metrics_of(server)
    except OSError:
        return {}
    found = dict.fromkeys(HELD.values(), 0.0)
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            if one.name in HELD and one.labels.get("state", "held") == "held":
                found[HELD[one.name]] += one.value
    return found


def slope_mb_per_h(samples: list[Sample], name: str, after_s: float) -> float | None:
    """How fast a process grows, by least squares over its samples from `after_s` on.

    None where they are fewer than ten, or of two processes: a worker that was started anew.
    """
    own = [one for one in samples if one.name == name and one.at_s >= after_s]
    if len(own) < 10 or len({one.pid for one in own}) > 1:
        return None
    mean_at = sum(one.at_s for one in own) / len(own)
    mean_mb = sum(one.rss_mb for one in own) / len(own)
    spread = sum((one.at_s - mean_at) ** 2 for one in own)
    return 3600.0 * sum((o.at_s - mean_at) * (o.rss_mb - mean_mb) for o in own) / spread
