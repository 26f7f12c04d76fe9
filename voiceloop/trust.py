"""Owns which certificates the server's own clients trust: one context for all of them.

To read the authorities takes 40 ms, in which no call is served: once, and not for each service.
"""

from __future__ import annotations

import os
import ssl
from functools import cache

import httpx


def trusted() -> ssl.SSLContext:
    """As httpx makes it: of SSL_CERT_FILE or SSL_CERT_DIR, else the authorities of certifi."""
    return _made(os.environ.get("SSL_CERT_FILE", ""), os.environ.get("SSL_CERT_DIR", ""))


@cache
def _made(file: str, folder: str) -> ssl.SSLContext:
    """file, folder: what was in the environment."""
    return httpx.create_ssl_context()
