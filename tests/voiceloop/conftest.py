"""Fixtures of the gateway's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from tests.remote_service import Remote, Service, scripted_remote
from voiceloop.remote import service as remote
from voiceloop.remote.service import RemoteService


@pytest.fixture
async def remote_service(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Remote]:
    """A scripted OpenAI-compatible server, and no pause before a second try."""
    monkeypatch.setattr(remote, "RETRY_PAUSES_S", (0.0, 0.0))
    async with scripted_remote() as running:
        yield running


@pytest.fixture
def service(remote_service: Remote) -> Service:
    return remote_service.service


@pytest.fixture
def connect(remote_service: Remote) -> Callable[..., RemoteService]:
    return remote_service.connect
