"""Tiny random checkpoints of the real voice architectures, made once a session."""

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """torch on one thread: the models are tiny, and the machine's other cores are in use."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
