"""A server without manners behind the Realtime protocol, in calls that have them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.callers import Caller
from tests.fakes import FakeRecognizer, FakeVoice
from tests.omni_server import Call, OmniServer, heard_words, omni
from tests.tool_service import ANY, Service, box
from voiceloop.agent import AgentConfig, AgentTool, Waiting
from voiceloop.backends import Backends
from voiceloop.config import load_config
from voiceloop.errors import BackendRefused, ConfigError, Overloaded
from voiceloop.remote.upstream.call import UpstreamSocket
from voiceloop.remote.upstream.model import UpstreamModel

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
AGENT = AgentConfig(instructions="Be kind.", fallback="Pardon me?", waiting=Waiting(say=()))
LONG = "I am a speaker who goes on and on about many things and will not stop for anybody."


@asynccontextmanager
async def upstream(server: OmniServer, clock: Clock) -> AsyncIterator[Backends]:
    server.clock = clock
    async with omni(server) as url:
        model = UpstreamModel(url, key="sk-of-upstream", model="omni-7b", clock=clock)
        await model.start()
        recognizer = FakeRecognizer(["what is the time", "and tomorrow"], ms_per_word=100)
        yield Backends(recognizer, model, FakeVoice(), end_call=model.end_call)
        await model.close()


@asynccontextmanager
async def calling(
    server: OmniServer, clock: Clock, agent: AgentConfig = AGENT, **options: Any
) -> AsyncIterator[Caller]:
    async with upstream(server, clock) as backends:
        async with Caller(clock, backends, agent, **options) as caller:
            yield caller


async def turn(caller: Caller, count: int = 1) -> None:
    await caller.say(1000)
    await caller.listen_until("response.done", count=count)


async def test_a_spoken_turn_is_heard_and_answered_by_the_upstream(clock: Clock) -> None:
    server = OmniServer(["It is noon, and the sun is out."])
    async with calling(server, clock) as caller:
        await turn(caller)
        assert caller.transcript() == "It is noon, and the sun is out."
        assert caller.audio_ms() > 1500
        asked = server.sessions[-1]
        assert asked["instructions"] == "Be kind."
        assert asked["audio"]["input"]["turn_detection"] is None
    assert server.queries[-1] == {"model": ["omni-7b"]}
    heard, said = server.conversation
    assert 1000 < heard["ms"] < 2000
    assert said["text"] == "It is noon, and the sun is out."
    assert server.n_connections == 2  # the start's, and the call's


@pytest.mark.parametrize("leads", [True, False])
async def test_what_was_not_heard_is_truncated_upstream_and_not_in_history(
    clock: Clock, leads: bool
) -> None:
    server = OmniServer([LONG, "Yes?"], leads=leads)
    async with calling(server, clock) as caller:
        await caller.say(1000)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(1500)
        before_s = clock()
        await caller.say(1500)
        sent = [r for r in caller.of("response.output_audio.delta") if r.at_s > before_s + 0.6]
        assert sent == []  # silent, though the upstream has sent all of it long ago
        await caller.listen_until("response.done", count=2)
        first = caller.of("response.output_item.added")[0].event
        heard_ms, item_id = caller.audio_ms(first["response_id"]), first["item"]["id"]
        caller.send("conversation.item.retrieve", item_id=item_id)
        told = await caller.wait_for("conversation.item.retrieved")
    kept = told.event["item"]["content"][0]["transcript"].split()
    assert abs(len(kept) - heard_words(LONG, heard_ms)) <= 1
    [cut] = server.truncated
    assert abs(heard_words(LONG, cut["audio_end_ms"]) - len(kept)) <= 1
    assert server.errors == []


async def test_an_upstream_that_goes_on_after_cancel_is_left_for_another_connection(
    clock: Clock,
) -> None:
    server = OmniServer([LONG, "Yes?"], speed=0.5)
    async with calling(server, clock) as caller:
        await caller.say(1000)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(1500)
        await caller.say(800)
        await caller.listen_until("response.done", count=2, limit_ms=20_000)
        assert caller.statuses() == ["cancelled", "completed"]
        assert caller.transcript(caller.of("response.created")[1].event["response"]["id"]) == "Yes?"
    assert server.n_connections == 3
    roles = [role for role, _ in server.texts()]
    assert roles == ["user", "assistant", "user", "assistant"]  # the history in words, then sound


async def test_a_tool_runs_here_and_its_result_goes_upstream(clock: Clock) -> None:
    server = OmniServer([Call("look", '{"at": "sky"}'), "It is blue."])
    tool, sky = AgentTool("look", "Looks.", ANY, url="https://shop.test/"), Service()
    sky.answer = "blue"
    agent = AgentConfig(instructions="Be kind.", tools=(tool,), waiting=Waiting(say=()))
    async with calling(server, clock, agent, toolbox=box(clock, look=(tool, sky))) as caller:
        await turn(caller, 2)
        assert caller.transcript() == "It is blue."
    assert [tool["name"] for tool in server.sessions[-1]["tools"]] == ["look"]
    assert [role for role, _ in server.texts()] == [
        "user", "function_call", "function_call_output", "assistant",
    ]  # fmt: skip


async def test_a_connection_lost_in_mid_reply_is_told_and_the_next_turn_has_another(
    clock: Clock,
) -> None:
    server = OmniServer([LONG], drop_after=4)
    async with calling(server, clock) as caller:
        await turn(caller)
        [done] = caller.of("response.done")
        assert done.event["response"]["status"] == "failed"
        assert done.event["response"]["status_details"]["error"]["code"] == "backend_error"
        assert caller.transcript().endswith("Pardon me?")  # in our own voice
        server.drop_after = None
        await turn(caller, 2)
        assert caller.statuses()[1] == "completed"
    assert server.conversation[0]["role"] == "user" and server.conversation[0]["text"] != "sound"


async def test_a_connection_that_was_lost_in_silence_costs_no_turn(clock: Clock) -> None:
    server = OmniServer(["It is noon.", "It is one."])
    async with calling(server, clock) as caller:
        await turn(caller)
        server.drop_after = 0  # the next is cut before a word
        server.replies = ["", "It is one."]
        await caller.say(1000)
        await asyncio.sleep(0.3)
        server.drop_after = None
        await caller.listen_until("response.done", count=2)
        assert caller.statuses() == ["completed", "completed"]


async def test_a_response_that_the_upstream_refuses_ends_in_the_fallback(clock: Clock) -> None:
    server = OmniServer(refuses="rate_limit_exceeded")
    async with calling(server, clock) as caller:
        await turn(caller)
        assert caller.statuses() == ["failed"]
        assert caller.transcript() == "Pardon me?"


@pytest.mark.parametrize("fail_after", [None, 3])
async def test_an_error_that_names_no_event_is_soon_followed_by_the_fallback(
    clock: Clock, fail_after: int | None
) -> None:
    """Before the response begins, and in the middle of it."""
    refuses = "rate_limit_exceeded" if fail_after is None else ""
    server = OmniServer([LONG], names_event=False, refuses=refuses, fail_after=fail_after)
    async with calling(server, clock) as caller:
        await caller.say(1000)
        said_s = clock()
        await caller.listen_until("response.done", limit_ms=60_000)
        assert caller.statuses() == ["failed"]
        assert caller.transcript().endswith("Pardon me?")
        assert caller.of("response.done")[0].at_s - said_s < 4.0  # of which the sound takes some


@pytest.mark.parametrize(("first_ms", "speed"), [(0.0, 1.0), (3000.0, 1.0), (0.0, 20.0)])
async def test_an_error_of_no_consequence_costs_no_reply(
    clock: Clock, first_ms: float, speed: float
) -> None:
    """While the reply sounds, while the server thinks of it, and once all of it has come."""
    server = OmniServer([LONG, "Yes?"], names_event=False, speed=speed, first_ms=first_ms)
    async with calling(server, clock) as caller:
        await caller.say(1000)
        await caller.wait_for("response.created")
        await caller.wait_quietly(200)
        await server.complain()
        await caller.listen_until("response.done", limit_ms=60_000)
        assert caller.statuses() == ["completed"] and caller.transcript() == LONG


async def test_a_server_that_refuses_a_turns_sound_is_asked_in_words(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    server = OmniServer(["It is noon."], takes_sound=False)
    async with calling(server, clock) as caller:
        await turn(caller)
        await turn(caller, 2)
        assert caller.statuses() == ["completed"] * 2
    assert [text for role, text in server.texts() if role == "user"] == [
        "what is the time", "and tomorrow",
    ]  # fmt: skip
    assert sum("refuses the caller's sound" in r.message for r in caplog.records) == 1
    assert server.said.count("input_audio_buffer.commit") == 1


async def test_an_upstream_that_changes_its_session_is_told_once(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    form = {"type": "audio/pcm", "rate": 12_000}
    server = OmniServer(["It is noon."])
    server.says_session = {"model": "another", "audio": {"input": {}, "output": {"format": form}}}
    with caplog.at_level(logging.WARNING):
        async with calling(server, clock) as caller:
            await turn(caller)
            assert caller.audio_ms() > 1000  # half its rate: twice as long
    told = [r.message for r in caplog.records if "has changed its session" in r.message]
    assert any("rate 24000, found 12000" in line for line in told)
    assert any("model omni, found another" in line for line in told)


@pytest.mark.parametrize("speed", [20.0, 0.5])
async def test_a_server_that_answers_unasked_is_stopped_and_not_heard(
    clock: Clock, caplog: pytest.LogCaptureFixture, speed: float
) -> None:
    server = OmniServer(["It is noon."], detects_always=True, silence_ms=100.0, speed=speed)
    with caplog.at_level(logging.WARNING):
        async with calling(server, clock) as caller:
            await turn(caller)
            await caller.wait_quietly(3000)
            assert caller.transcript() == "It is noon."  # once
    assert [r.message for r in caplog.records if "others too" in r.message]


async def test_sound_that_cannot_be_read_is_refused_at_the_start(clock: Clock) -> None:
    server = OmniServer()
    output = {"format": {"type": "audio/pcmu"}}
    server.says_session = {"audio": {"input": {}, "output": output}}
    async with omni(server) as url:
        with pytest.raises(BackendRefused, match="expected audio/pcm .* found audio/pcmu"):
            await UpstreamModel(url, clock=clock).start()


async def test_a_typed_turn_goes_as_text_and_out_of_band_beside_the_conversation(
    clock: Clock,
) -> None:
    server = OmniServer(["It is noon.", "A summary."])
    async with calling(server, clock) as caller:
        said = [{"type": "input_text", "text": "What time is it?"}]
        item = {"type": "message", "role": "user", "content": said}
        caller.send("conversation.item.create", item=item)
        caller.send("response.create")
        await caller.wait_for("response.done")
        caller.send("response.create", response={"conversation": "none"})
        await caller.wait_for("response.done", count=2)
    assert server.texts() == [("user", "What time is it?"), ("assistant", "It is noon.")]
    assert server.asked[-1]["conversation"] == "none"
    assert [item["role"] for item in server.asked[-1]["input"]] == ["user", "assistant"]


async def test_a_line_that_takes_nothing_is_left_with_what_it_was_to_be_told(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, send, full = OmniServer(["It is noon."]), UpstreamSocket.send, [True]  # the line, once

    def send_or_refuse(socket: UpstreamSocket, event: dict[str, Any]) -> None:
        if full and event["type"] == "conversation.item.create":
            full.clear()
            raise Overloaded("expected a server that takes what is sent, found 500 waiting")
        send(socket, event)

    monkeypatch.setattr(UpstreamSocket, "send", send_or_refuse)
    async with calling(server, clock) as caller:
        for count, words in enumerate(("What time is it?", "And now?"), 1):
            said = [{"type": "input_text", "text": words}]
            item = {"type": "message", "role": "user", "content": said}
            caller.send("conversation.item.create", item=item)
            caller.send("response.create")
            await caller.listen_until("response.done", count=count)
        assert caller.statuses() == ["failed", "completed"]
    told = " ".join(text for _, text in server.texts())
    assert "What time is it?" in told and "And now?" in told
    assert server.n_connections == 3


async def test_a_server_that_tells_no_transcript_is_heard_all_the_same(clock: Clock) -> None:
    server = OmniServer(["It is noon."], has_transcript=False)
    async with calling(server, clock) as caller:
        await turn(caller)
        assert caller.audio_ms() > 500
        assert caller.statuses() == ["completed"]


async def test_a_reply_is_cut_at_the_most_words_and_the_upstream_told(clock: Clock) -> None:
    server = OmniServer([LONG, "Yes?"])
    async with calling(server, clock) as caller:
        caller.send("session.update", session={"type": "realtime", "max_output_tokens": 5})
        await caller.wait_for("session.updated")
        await turn(caller)
        assert caller.statuses() == ["incomplete"]
        assert caller.transcript().split() == LONG.split()[:5]
        assert "response.cancel" in server.said
        await turn(caller, 2)
        assert caller.statuses()[1] == "completed"


async def test_the_fallback_is_said_soon_for_an_upstream_that_begins_too_late(
    clock: Clock,
) -> None:
    server = OmniServer([LONG], first_ms=60_000.0)
    async with calling(server, clock) as caller:
        await caller.say(1000)
        asked_s = clock()
        await caller.listen_until("response.done", limit_ms=60_000)
        assert caller.transcript() == "Pardon me?"
        within_s = AGENT.waiting.first_token_ms / 1000
        assert caller.of("response.done")[0].at_s - asked_s < within_s + 5.0


@pytest.mark.parametrize(("speed", "n_words"), [(100.0, 90), (1.0, 20)])
async def test_a_long_reply_is_heard_to_its_end_however_fast_it_comes(
    clock: Clock, speed: float, n_words: int
) -> None:
    told = " ".join(f"interchangeable{number}" for number in range(n_words))
    server = OmniServer([told], speed=speed)
    async with calling(server, clock) as caller:
        await caller.say(1000)
        await caller.listen_until("response.done", limit_ms=200_000)
        assert caller.statuses() == ["completed"]
        assert caller.transcript() == told


async def test_a_client_that_reads_gets_the_text(clock: Clock) -> None:
    server = OmniServer(["It is noon."])
    async with calling(server, clock) as caller:
        caller.send("session.update", session={"type": "realtime", "output_modalities": ["text"]})
        await caller.wait_for("session.updated")
        await turn(caller)
        assert [r.event["text"] for r in caller.of("response.output_text.done")] == ["It is noon."]


async def test_the_key_of_the_configuration_opens_the_provider(tmp_path: Path) -> None:
    flags = {"realtime_url": "wss://h/v1#marin", "llm_key": "secret", "llm_model": "m"}
    config = load_config(flags=flags)
    assert config.llm_url == ("realtime+wss://h/v1#marin",)
    assert config.llm_key == ("secret",)
    with pytest.raises(ConfigError, match="realtime_url: expected no llm_url beside it"):
        load_config(flags={**flags, "llm_url": "http://h/v1"})
    with pytest.raises(ConfigError, match="llm_url: expected a server that speaks in realtime_url"):
        load_config(flags={"llm_url": "realtime+wss://h/v1"})
    file = tmp_path / "voiceloop.toml"
    file.write_text('[[models]]\nname = "omni"\nurl = "realtime+wss://h/v1"\n')
    with pytest.raises(ConfigError, match=r"models\[0\].url: expected a server that speaks"):
        load_config(file)
