"""The entry point: the command ``voiceloop``, and ``python -m voiceloop``.

The rooms are found before the command line imports any of them.
"""

from __future__ import annotations

import sys

from voiceloop.rooms import prefer_own_rooms

NOT_ON_WINDOWS = (
    "voiceloop: expected Linux or macOS, found Windows: its processes talk over Unix sockets. "
    "Run it in WSL 2, where all of it works as on Linux"
)


def main() -> int:
    """Run one command; returns its exit code."""
    if sys.platform == "win32":
        print(NOT_ON_WINDOWS, file=sys.stderr)
        return 2
    prefer_own_rooms()
    from voiceloop.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
