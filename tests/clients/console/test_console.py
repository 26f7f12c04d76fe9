"""A call that is driven turn by turn: over the mock server, and by commands over their socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from clients.call.result import CallResult
from clients.console.held_call import HeldCall, Say
from clients.console.holding import Holder
from clients.console.line import MAX_REQUEST_BYTES, Answer, ask, serve, socket_of
from clients.errors import ClientError, ConnectionFailed
from tests.clients.call.test_simulated_call import says, voice
from tests.clients.mock_server import memory_call

Clock = Callable[[], float]
WORDS = Say("words", says(voice(1000, 100)))


@asynccontextmanager
async def held(clock: Clock) -> AsyncIterator[tuple[HeldCall, asyncio.Task[CallResult]]]:
    async with memory_call(clock, reply_ms=2000.0) as (connection, _):
        call = HeldCall(connection, {}, clock=clock)
        running = asyncio.create_task(call.run())
        await call.greeted.wait()
        yield call, running
        await asyncio.wait([running])


@pytest.mark.virtual_time
async def test_a_turn_tells_what_was_heard_answered_and_waited_for(clock: Clock) -> None:
    async with held(clock) as (call, running):
        assert call.greeting == "Hello, Juniper Cafe."
        told = await call.say(WORDS)
        assert told["heard"] == "words"
        assert told["answer"].startswith("A latte")
        assert told["gap_ms"] == pytest.approx(200, abs=0.5)
        assert told["errors"] == []
        call.stop()
    assert len(running.result().turns) == 1


@pytest.mark.virtual_time
async def test_the_figures_at_the_end_count_typed_turns_beside_spoken_ones(
    clock: Clock, tmp_path: Path
) -> None:
    async with memory_call(clock) as (connection, session):
        call = HeldCall(connection, {}, clock=clock)
        holder = Holder(call, "", None, {"voice": "default", "out": tmp_path})
        running = asyncio.create_task(call.run())
        await call.greeted.wait()
        await call.say(WORDS)
        typing = asyncio.create_task(call.say(Say("and this", None)))
        await asyncio.sleep(0.1)
        await session.answer("Six, please.")  # the mock answers sound alone
        assert (await typing)["answer"] == "Six, please."
        call.stop()
        holder.end(await running)
    answers: list[dict[str, Any]] = []

    async def answer(one: Mapping[str, Any]) -> None:
        answers.append(dict(one))

    await holder.obey({"verb": "stop"}, answer)
    assert (answers[0]["n_turns"], answers[0]["unanswered"]) == (2, 0)
    kept = json.loads((tmp_path / "turns.json").read_text())
    assert (len(kept["turns"]), [one["said"] for one in kept["typed"]]) == (1, ["and this"])


@pytest.mark.virtual_time
async def test_a_turn_that_is_not_waited_for_can_be_interrupted(clock: Clock) -> None:
    async with held(clock) as (call, _):
        assert (await call.say(Say("words", WORDS.utterance, waits=False)))["answer"] is None
        told = await call.say(Say("words", WORDS.utterance, after_s=0.5))
        assert told["barge_in"] is not None
        call.stop()


@pytest.mark.virtual_time
async def test_one_turn_at_a_time(clock: Clock) -> None:
    async with held(clock) as (call, _):
        first = asyncio.create_task(call.say(WORDS))
        await asyncio.sleep(0.0)
        with pytest.raises(ClientError, match="Another turn is under way"):
            await call.say(WORDS)
        call.stop()  # waits for the turn
        assert (await first)["answer"]


@pytest.mark.virtual_time
async def test_events_are_numbered_and_without_sound(clock: Clock) -> None:
    async with held(clock) as (call, _):
        whole = call.events(0)
        assert [event["n"] for event in whole] == list(range(len(whole)))
        assert whole[0]["type"] == "session.created"
        assert "response.output_audio.delta" not in {event["type"] for event in whole}
        assert call.events(len(whole) - 1) == whole[-1:]
        call.stop()


@pytest.mark.virtual_time
async def test_a_call_that_nobody_drives_ends(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clients.console.held_call.IDLE_S", 90.0)  # its frames are all played
    async with held(clock) as (_, running):
        begun_s = clock()
        await running
    assert clock() - begun_s == pytest.approx(90.0, abs=1.0)


@pytest.mark.virtual_time
async def test_a_turn_of_a_call_that_broke_off_says_so(clock: Clock) -> None:
    async with memory_call(clock) as (connection, _):
        call = HeldCall(connection, {}, clock=clock)
        running = asyncio.create_task(call.run())
        await call.greeted.wait()
        turn = asyncio.create_task(call.say(WORDS))
        await asyncio.sleep(0.2)
        await connection.close()
        with pytest.raises(ConnectionFailed, match="the call ended"):
            await turn
        with pytest.raises(ConnectionFailed, match="hung up|connection closed"):
            await running


# --- the socket of the commands -------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return socket_of("mine")


async def echoes(request: dict[str, Any], answer: Answer) -> None:
    await answer(request)
    await answer({"n": 2})


async def test_each_answer_is_a_line_of_its_own(path: Path) -> None:
    async with await serve(path, echoes):
        answers = [one async for one in ask(path, {"verb": "say", "text": "Grüße\n"})]
    assert answers == [{"verb": "say", "text": "Grüße\n"}, {"n": 2}]


@pytest.mark.parametrize("frame", [b"no JSON\n", b"x" * (MAX_REQUEST_BYTES + 9) + b"\n"])
async def test_a_request_that_is_none_ends_its_connection_alone(path: Path, frame: bytes) -> None:
    async with await serve(path, echoes):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(frame)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        assert len([one async for one in ask(path, {})]) == 2


async def test_a_call_that_ended_meanwhile_is_told(path: Path) -> None:
    async def breaks(request: dict[str, Any], answer: Answer) -> None:
        await answer({"n": 1})
        raise OSError

    async with await serve(path, breaks):
        with pytest.raises(ConnectionFailed, match="The call has ended"):
            _ = [one async for one in ask(path, {})]


async def test_without_a_call_the_command_that_opens_one_is_named(path: Path) -> None:
    with pytest.raises(ConnectionFailed, match="voiceloop call start"):
        _ = [one async for one in ask(path, {})]


@pytest.mark.parametrize("name", ["", "a/b", "..", "n" * 33, "a b"])
def test_a_name_is_no_path(name: str, path: Path) -> None:
    with pytest.raises(ConnectionFailed, match="1 to 32 letters"):
        socket_of(name)


def test_a_folder_that_others_can_reach_is_refused(path: Path) -> None:
    path.parent.chmod(0o755)
    with pytest.raises(ConnectionFailed, match="yours alone"):
        socket_of("mine")
