"""A call is a trace: the call, its turns, their stages; no word of it unless that is asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice, instant_backends
from voiceloop.agent import AgentConfig
from voiceloop.backends import Usage
from voiceloop.config import Config
from voiceloop.errors import MissingExtra
from voiceloop.server.app import Gateway
from voiceloop.telemetry.record import Mark, TurnEnd, TurnRecord
from voiceloop.telemetry.traces import SdkTraces, Traces, open_traces


class Collected:
    """Traces whose spans stay here."""

    def __init__(self, clock: Callable[[], float], *, with_words: bool = False) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.traces = SdkTraces(provider, clock, with_words=with_words)

    def spans(self, name: str = "") -> list[ReadableSpan]:
        return [s for s in self._exporter.get_finished_spans() if name in ("", s.name)]


def a_turn() -> TurnRecord:
    record = TurnRecord("resp_1")
    marks = {Mark.SPEECH_END: 10.0, Mark.ENDPOINT_DECISION: 10.3, Mark.FIRST_TOKEN: 10.2,
             Mark.FIRST_BYTE_ON_WIRE: 10.45, Mark.TURN_END: 12.0}  # fmt: skip
    for mark, at_s in marks.items():
        record.mark(mark, at_s)
    usage = Usage(n_prompt_tokens=90, n_cached_tokens=60, n_reply_tokens=9, n_unheard_tokens=3)
    record.finish(TurnEnd("cancelled", usage, heard="a latte", said="Sure."))
    return record


def length_ms(span: ReadableSpan) -> float:
    assert span.start_time is not None and span.end_time is not None
    return (span.end_time - span.start_time) / 1e6


def test_a_turn_is_built_when_it_is_over_from_its_marks() -> None:
    now = [9.0]
    collected = Collected(lambda: now[0])
    before_ns = time.time_ns()
    call = collected.traces.begin("sess_1")
    now[0] = 12.5
    cut = a_turn()
    cut.note_cut("soft", 41.6)
    call.turn(cut)
    call.end(1000)
    [whole], [turn] = collected.spans("voiceloop.call"), collected.spans("voiceloop.turn")
    assert length_ms(whole) == pytest.approx(3500) and length_ms(turn) == pytest.approx(2000)
    assert whole.start_time is not None and turn.start_time is not None
    assert before_ns <= whole.start_time <= time.time_ns()  # of the epoch, not of the clock
    assert turn.start_time - whole.start_time == pytest.approx(1e9, abs=1e3)
    assert turn.parent is not None and turn.parent.span_id == whole.context.span_id
    stages = {
        s.name: length_ms(s) for s in collected.spans() if s.name not in (whole.name, turn.name)
    }
    assert stages == {
        "voiceloop.silence_wait": pytest.approx(300),
        "voiceloop.writer": pytest.approx(150),  # what is done ahead has no length
    }
    told = dict(turn.attributes or {})
    assert told["gen_ai.usage.input_tokens"] == 90 and told["gen_ai.usage.output_tokens"] == 12
    assert told["gen_ai.usage.cache_read.input_tokens"] == 60
    assert told["voiceloop.gap_ms"] == pytest.approx(450) and told["voiceloop.was_interrupted"]
    assert (told["voiceloop.cut"], told["voiceloop.cut_over_ms"]) == ("soft", 41.6)
    assert dict(whole.attributes or {})["voiceloop.close_code"] == 1000


@pytest.mark.parametrize("with_words", [False, True])
def test_words_are_told_only_where_they_are_asked_for(with_words: bool) -> None:
    collected = Collected(lambda: 9.0, with_words=with_words)
    collected.traces.begin("sess_1").turn(a_turn())
    [turn] = collected.spans("voiceloop.turn")
    told = {name: text for name, text in (turn.attributes or {}).items() if ".pii." in name}
    words = {"voiceloop.pii.heard": "a latte", "voiceloop.pii.said": "Sure."}
    assert told == (words if with_words else {})
    assert with_words or "latte" not in str(turn.to_json())


@pytest.mark.virtual_time
async def test_a_call_is_traced_from_its_beginning_to_its_end(clock: Callable[[], float]) -> None:
    collected = Collected(clock, with_words=True)
    backends = instant_backends(
        recognizer=FakeRecognizer(("what time is it",)),
        language_model=FakeLanguageModel(["It is noon."]),
        voice=FakeVoice(first_audio_ms=50),
    )
    async with Caller(clock, backends, traces=collected.traces) as caller:
        await caller.say(800)
        await caller.listen_until("voiceloop.timeline")
        assert not collected.spans("voiceloop.call")
    [call], [turn] = collected.spans("voiceloop.call"), collected.spans("voiceloop.turn")
    told = dict(turn.attributes or {})
    assert told["voiceloop.pii.heard"] == "what time is it"
    assert told["voiceloop.pii.said"] == "It is noon."
    assert told["gen_ai.conversation.id"] == caller.session.protocol.session_id
    gap_ms = caller.of("voiceloop.timeline")[0].event["timeline"]["gap_ms"]
    assert told["voiceloop.gap_ms"] == pytest.approx(gap_ms, abs=0.01)
    assert call.context.trace_id == turn.context.trace_id


async def test_spans_reach_a_collector_over_http() -> None:
    got: list[tuple[str, str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, self.headers["Content-Type"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1/traces"
        traces = open_traces(url, time.monotonic, with_words=False)
        call = traces.begin("sess_1")
        call.turn(a_turn())
        call.end(1000)
        await asyncio.to_thread(traces.close)  # as the server does at its end
        server.shutdown()
    [(path, kind, body)] = got
    assert (path, kind) == ("/v1/traces", "application/x-protobuf")
    assert b"voiceloop.turn" in body and b"latte" not in body


def test_without_a_collector_nothing_is_traced_and_nothing_imported() -> None:
    assert type(Gateway(Config(), AgentConfig()).calls.traces) is Traces


def test_traces_without_the_extra_are_refused_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(MissingExtra, match="voiceloop\\[otel\\]"):
        open_traces("http://127.0.0.1:1/", time.monotonic, with_words=False)
