"""Keeps a GPU busy as a voice beside the engine does: a thread, or a process until its input ends.

    python -m benchmarks.engine.gpu_neighbour [DEVICE]

Every 20 ms it runs products of a few hundred rows for some milliseconds: a stand-in for speech, of
which a machine with no more than torch has no weights. It prints a line when the first are through.
"""

import sys
import time
from collections.abc import Callable
from threading import Thread

import torch

SIZE = 4096
PERIOD_S, BURST_S = 0.020, 0.005


def be_busy(device: str, is_over: Callable[[], bool], begun: Callable[[], None]) -> None:
    """begun: called once the first products are through."""
    size = SIZE if device.startswith("cuda") else 64
    rows = torch.randn(size // 8, size, device=device, dtype=torch.bfloat16)
    weight = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    is_told = False
    while not is_over():
        began = time.perf_counter()
        while time.perf_counter() - began < BURST_S:
            torch.mm(rows, weight)[0, 0].item()
        if not is_told:
            is_told = True
            begun()
        time.sleep(max(0.0, PERIOD_S - (time.perf_counter() - began)))


def main(device: str = "cuda") -> int:
    ended = Thread(target=sys.stdin.read, daemon=True)
    ended.start()
    be_busy(device, lambda: not ended.is_alive(), lambda: print("busy", flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
