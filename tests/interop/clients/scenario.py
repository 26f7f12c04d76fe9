"""What every Python client's script shares: the command line and the words that are said.

python CLIENT.py URL SPEECH SCENARIO...     (SPEECH: raw PCM16 mono at 24 kHz)
"""

from __future__ import annotations

import sys
from pathlib import Path

URL, SPEECH, CHOSEN = sys.argv[1], Path(sys.argv[2]).read_bytes(), sys.argv[3:]
HTTP_URL = URL.replace("ws://", "http://").replace("wss://", "https://")
N_CHUNK = 4800
CHUNK_S = N_CHUNK / 48_000
LIMIT_S = 30.0

# Near what the embedded agent is made for; a small model has little to say under others.
INSTRUCTIONS = (
    "You are Ava, the friendly voice assistant of Juniper Cafe, a small cafe. "
    "You help callers with orders and questions about the cafe. "
    "We are open Monday to Friday from 7 am to 7 pm, Saturday from 8 am to 6 pm and closed on "
    "Sunday. Pastries: blueberry muffin $3.25, butter croissant $3.50, carrot cake $4.25. "
    "Answer in short sentences."
)
ASKED = "What do you have to eat?"
USE_THE_TOOL = "Please use the tool: when are you open on monday?"
RESULT = "nine to five"
PARAMETERS = {
    "type": "object",
    "properties": {"day": {"type": "string"}},
    "required": ["day"],
    "additionalProperties": False,
}


def chunks(data: bytes, quiet_s: float = 0.0) -> list[bytes]:
    """100 ms pieces of the recording, then silence."""
    data += bytes(2 * int(24_000 * quiet_s))
    return [data[start : start + N_CHUNK] for start in range(0, len(data), N_CHUNK)]


def passed(name: str) -> None:
    print("passed", name, flush=True)
