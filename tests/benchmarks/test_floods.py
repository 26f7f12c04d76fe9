"""What a flood tells of a server: that it cuts its connections, or lets them last."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from benchmarks.hostile.__main__ import Flooded, Found, bars_of
from benchmarks.hostile.floods import FLOODS, UNVERIFIED, Flood, Held
from clients.server_process import ServerProcess
from voiceloop.cluster.tls import draw_certificate
from voiceloop.server.connections import RESET_AT_CLOSE

FOR_S = 1.5
CUT_S = 0.2


@asynccontextmanager
async def scripted(tmp_path: Path, *, endless: bool) -> AsyncIterator[ServerProcess]:
    """A server with TLS that sends a megabyte to whoever comes, and hangs up, or never."""
    pem = tmp_path / "both.pem"
    pem.write_bytes(draw_certificate()[0])
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pem)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(1_000_000))
        if not endless:
            await asyncio.sleep(CUT_S)
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE
            )
            writer.transport.abort()

    server = await asyncio.start_server(
        serve, "127.0.0.1", 0, ssl=tls, ssl_handshake_timeout=60.0 if endless else CUT_S
    )
    async with server:
        yield ServerProcess(0, server.sockets[0].getsockname()[1], 0.0, UNVERIFIED)


def hasty(flood: Flood) -> Flood:
    return Flood(flood.name, flood.one, 2, most_s=FOR_S / 2, again_s=0.05)


async def hold(name: str, server: ServerProcess) -> Held:
    [flood] = [one for one in FLOODS if one.name == name]
    return await hasty(flood).hold(server, FOR_S)


@pytest.mark.parametrize("name", ["silent TLS", "slow readers"])
async def test_a_flood_tells_how_long_the_server_lets_it_last(name: str, tmp_path: Path) -> None:
    async with scripted(tmp_path, endless=False) as server:
        bounded = await hold(name, server)
    async with scripted(tmp_path, endless=True) as server:
        endless = await hold(name, server)
    assert bounded.n_cut >= 2 and bounded.longest_s < 1.0
    assert endless.n_cut == 0 and endless.longest_s >= FOR_S
    if name == "slow readers":  # slow, and a reader: some of what was sent, and never all
        assert 0 < endless.n_bytes_read < 10_000


@pytest.mark.parametrize(("longest_s", "n_cut"), [(2.0, 0), (9.0, 4)])
def test_a_server_that_bounds_nothing_misses_its_bars(longest_s: float, n_cut: int) -> None:
    flooded = Flooded("slow readers", 30.0, 1.0, 20.0, 5, 1.0, 100, longest_s, 8.0, 4, n_cut)
    assert not all(bar.holds for bar in bars_of(Found(floods=[flooded])))
