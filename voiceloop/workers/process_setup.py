"""Settings of a worker process made before anything numeric is imported."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys

from voiceloop.cell import make_undumpable
from voiceloop.log_form import log_in_form
from voiceloop.rooms import prefer_own_rooms
from voiceloop.workers.messages import WorkerSpec


def die_with_parent() -> None:
    """Have the kernel end this process with its parent; elsewhere than Linux the socket does."""
    if not sys.platform.startswith("linux"):
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def limit_threads(n_threads: int) -> None:
    """Set the thread counts that numeric libraries read when they are first imported.

    Waiting threads sleep instead of spinning: on two cores a spinning pool starves the gateway.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(n_threads)
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ["KMP_BLOCKTIME"] = "0"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def refuse_pickles() -> None:
    """Whichever package reads a file of torch's: tensors, and no code in it."""
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"


def prepare(spec: WorkerSpec) -> None:
    """Set up this process, before anything numeric is imported."""
    prefer_own_rooms()
    die_with_parent()
    # Asked for by the supervisor before it kills: where this process stood is the only evidence.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    log_in_form(f"%(levelname)s worker {spec.name}: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the gateway's; it closes the socket
    make_undumpable()  # callers' words would be in a core
    limit_threads(spec.n_threads)
    refuse_pickles()
