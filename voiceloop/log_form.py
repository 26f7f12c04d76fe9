"""How a line of the log is written: an exception by its kind and its frames, not by its words.

Words of an exception that nobody foresaw may quote a caller, whoever raised it: `KeyError("my
name is ...")`. Those of our own errors, of imports and of the system hold none.
"""

from __future__ import annotations

import logging
import re
import traceback
from types import TracebackType
from typing import TypeAlias

from voiceloop.errors import VoiceLoopError

# An address: its scheme, a name and password, its host and path, and what is asked of it. A comma
# or a quote ends it where nothing of it follows: behind it a list or a sentence goes on. A password
# may hold / ? or # as they are, behind a colon that no port follows: that is no address, but told.
ADDRESS = re.compile(
    r"""([a-z][a-z0-9+.-]{0,31}://)"""
    r"""(?:[^\s/?#"]*@|[^\s/?#"@:]+:(?!\d{1,5}[/?#])[^\s"@]*@)?([^\s?#'"]*)"""
    r"""(?:\?(?:[^\s#,'"]|[,'"](?=[^\s,'"\])}]))*)?""",
    re.IGNORECASE,
)

# How httpx says that nobody answers, or no more; of what it could not read it quotes the bytes.
IS_GONE = ("All connection attempts failed", "Server disconnected", "peer closed connection")
LONGEST_CHAIN = 8  # exceptions that led to one another
_Raised: TypeAlias = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)


class WordlessFormatter(logging.Formatter):
    """Writes where an exception came from, and of what kind it is."""

    def formatException(self, ei: _Raised) -> str:  # noqa: N802 - the library's name
        return traced(ei[1]) if ei[1] is not None else ""


def log_in_form(form: str, level: int | str = logging.WARNING) -> None:
    """Have this process log so; what another did before stands."""
    logging.basicConfig(format=form, level=level)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(WordlessFormatter(form))


def traced(error: BaseException) -> str:
    """Return where an exception came from, with those that led to it."""
    chain, one = [], error
    for _ in range(LONGEST_CHAIN):
        inner = one.exceptions[:LONGEST_CHAIN] if isinstance(one, BaseExceptionGroup) else ()
        chain.append("\nand\n".join(map(_framed, (one, *inner))))
        before = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
        if before is None:
            break
        one = before
    return "\nwhich led to:\n".join(reversed(chain))


def _framed(error: BaseException) -> str:
    return "".join(traceback.format_tb(error.__traceback__)) + named(error)


def keyless(text: str) -> str:
    """The text, its addresses without a password and without what their question marks ask."""
    return ADDRESS.sub(r"\1\2", text)


def named(error: BaseException) -> str:
    """Return the kind of an exception, and its words where they hold none of a caller's."""
    kind = type(error).__qualname__
    is_systems = isinstance(error, OSError) and error.errno is not None
    is_ours = isinstance(error, VoiceLoopError | ImportError)
    is_told = is_systems or is_ours or str(error).startswith(IS_GONE)
    return f"{kind}: {error}" if is_told else kind
