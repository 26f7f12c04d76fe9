"""Keys one by one from a terminal, and the terminal as it was afterwards."""

from __future__ import annotations

import asyncio
import os
import termios

import pytest

from clients.errors import DeviceMissing
from clients.talk.keyboard import MAX_WAITING_KEYS, key_presses


async def test_a_key_is_told_when_it_is_pressed_and_the_terminal_is_left_as_it_was() -> None:
    master, terminal = os.openpty()
    try:
        before = termios.tcgetattr(terminal)
        with key_presses(terminal) as keys:
            os.write(master, b" ")
            assert await asyncio.wait_for(keys.get(), 5) == " "
            os.write(master, b"x" * (MAX_WAITING_KEYS + 5))
            await asyncio.wait_for(keys.get(), 5)
            await asyncio.sleep(0)
            assert keys.qsize() < MAX_WAITING_KEYS
        assert termios.tcgetattr(terminal) == before
    finally:
        os.close(master)
        os.close(terminal)


async def test_without_a_terminal_push_to_talk_is_refused() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(DeviceMissing, match="expected a terminal"), key_presses(reading):
            pass
    finally:
        os.close(reading)
        os.close(writing)
