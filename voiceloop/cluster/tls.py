"""TLS between gateways and workers: each end may ask for the other's certificate."""

from __future__ import annotations

import ssl
from pathlib import Path

from voiceloop.errors import ConfigError


def server_context(certfile: Path, keyfile: Path, client_ca: Path | None) -> ssl.SSLContext:
    """A worker's end. client_ca: who signs the certificates that gateways must show.

    Raises: ConfigError where a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load(context, certfile, keyfile)
    if client_ca is not None:
        _trust(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(ca: Path, certfile: Path | None, keyfile: Path | None) -> ssl.SSLContext:
    """A gateway's end. ca: who signs the workers' certificates. Raises: ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _trust(context, ca)
    if certfile is not None and keyfile is not None:
        _load(context, certfile, keyfile)
    return context


def _load(context: ssl.SSLContext, certfile: Path, keyfile: Path) -> None:
    try:
        context.load_cert_chain(certfile, keyfile)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"expected a certificate and its key in {certfile} and {keyfile}, found: {error}"
        ) from None


def _trust(context: ssl.SSLContext, ca: Path) -> None:
    try:
        context.load_verify_locations(ca)
    except OSError as error:
        raise ConfigError(f"expected certificates in {ca}, found: {error}") from None
