"""``voiceloop serve`` and ``voiceloop gateway``: from a command line to a server that runs."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from voiceloop.cell import make_undumpable
from voiceloop.config import Config, load_config
from voiceloop.errors import ConfigError
from voiceloop.log_form import log_in_form
from voiceloop.models.preset_check import REMOTE
from voiceloop.models.resolve import ROLE_KEYS, roles_here
from voiceloop.server.memory import give_back_large_blocks

LOG_FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def run_serve(file: Path | None, flags: Mapping[str, Any]) -> int:
    """Serve until a signal. Raises: as `process.serve`."""
    from voiceloop.models.presets import with_preset

    config, notes = with_preset(load_config(file, environ=os.environ, flags=flags))
    return _run(config, notes)


def run_gateway(
    file: Path | None, flags: Mapping[str, Any], *, shares_port: bool = False, tells: bool = False
) -> int:
    """The same without any model of its own. tells: of itself, in lines of JSON.

    Raises: as `process.serve`.
    """
    config = gateway_config(load_config(file, environ=os.environ, flags=flags))
    return _run(config, [], shares_port=shares_port, tells=tells)


def gateway_config(config: Config) -> Config:
    """Return the configuration of a server whose models are all elsewhere. Raises: ConfigError
    where one is not.
    """
    lacking = [role for role in ROLE_KEYS if role in roles_here(config)]
    if lacking:
        raise ConfigError(
            f"expected {ROLE_KEYS[lacking[0]]}_url or workers.list, for a gateway holds no models "
            "that answer; found none"
        )
    return replace(config, preset=REMOTE.name)


def log_at(level: str) -> None:
    """Log from this level on; of other packages nothing below info: their frames hold words."""
    log_in_form(LOG_FORM, "INFO" if level == "debug" else level.upper())
    if level == "debug":
        for package in ("voiceloop", "engine", "audio"):
            logging.getLogger(package).setLevel(logging.DEBUG)
    for package in ("httpx", "httpx2"):  # else a line for each clause spoken, with its address
        logging.getLogger(package).setLevel(logging.WARNING)
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it quotes what it cannot read


def _run(
    config: Config, notes: list[str], *, shares_port: bool = False, tells: bool = False
) -> int:
    from voiceloop.server.process import serve
    from voiceloop.server.progress import ServeProgress

    log_at(config.log_level)
    give_back_large_blocks()
    progress = ServeProgress(notes)
    serving = serve(
        config,
        ready=progress.ready,
        on_progress=progress.role_changed,
        shares_port=shares_port,
        tells=tells,
    )
    make_undumpable()  # it holds the keys, and what callers say
    asyncio.run(serving)
    return 0
