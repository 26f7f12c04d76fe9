"""The right to drive Ray: it belongs to the holders of its token.

Without one whoever reaches Ray's ports runs code as this user. Ray reads its mode from the
environment as it is imported, so this comes before `ray.py`, and imports nothing of Ray's.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import MutableMapping
from pathlib import Path

from voiceloop.errors import ConfigError

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
# Where Ray itself looks for a token, so that any command of this user finds the one of `up`.
DEFAULT_PATH = Path(".ray") / "auth_token"
TOKEN_BYTES = 32  # as Ray's own


def close_door(environ: MutableMapping[str, str], *, is_new: bool) -> None:
    """Have Ray ask for a token, unless ``RAY_AUTH_MODE`` says otherwise.

    is_new: the cluster starts here; a token is drawn where none is named.

    Raises: ConfigError where there is no token, or its file cannot be used.
    """
    if environ.setdefault(MODE, "token") != "token" or environ.get(TOKEN):
        return
    named = environ.get(TOKEN_PATH)
    path = Path(named) if named else Path.home() / DEFAULT_PATH
    try:
        if is_new and not named and not path.exists():
            _draw(path)
        _keep_private(path)
    except FileNotFoundError:
        raise ConfigError(
            f"No token of the Ray cluster in {TOKEN} or {path}. Start one by voiceloop cluster up, "
            f"or set {MODE}=disabled for one that needs none."
        ) from None
    except OSError as error:
        raise ConfigError(f"expected the token of a Ray cluster in {path}, found {error}") from None


def _draw(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "w") as stream:
        stream.write(secrets.token_hex(TOKEN_BYTES))


def _keep_private(path: Path) -> None:
    """Ray's own command lets everybody on the machine read it."""
    if path.stat().st_uid == os.getuid() and path.stat().st_mode & 0o077:
        path.chmod(0o600)
