"""Pipecat as a peer: run by its own environment's Python, not by ours.

    python benchmarks/peers/pipecat_agent.py --port N --services http://.../v1 --settings
    default|tuned

Its quick-start pipeline (transport, STT, user aggregator, LLM, TTS, transport, assistant
aggregator) on its FastAPI WebSocket transport. The wire is bare: PCM16 at 16 kHz comes in, PCM16 at
24 kHz goes out, and the text "clear" says that the caller interrupts.
"""

from __future__ import annotations

import argparse
import sys

import uvicorn
from fastapi import FastAPI, WebSocket
from loguru import logger
from pipecat.audio.turn.smart_turn.base_smart_turn import SmartTurnParams
from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.frames.frames import (
    Frame,
    InputAudioRawFrame,
    InterruptionFrame,
    OutputAudioRawFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineParams, PipelineTask
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.serializers.base_serializer import FrameSerializer
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.stt import OpenAISTTService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.transports.websocket.fastapi import FastAPIWebsocketParams, FastAPIWebsocketTransport
from pipecat.turns.user_stop import TurnAnalyzerUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies

IN_HZ, OUT_HZ = 16_000, 24_000
# The tuned settings: a sentence that Smart Turn holds to be unfinished waits 1 s instead of 3.
TUNED_STOP_SECS = 1.0


class BareAudio(FrameSerializer):
    async def serialize(self, frame: Frame) -> str | bytes | None:
        if isinstance(frame, OutputAudioRawFrame):
            return frame.audio
        return "clear" if isinstance(frame, InterruptionFrame) else None

    async def deserialize(self, data: str | bytes) -> Frame | None:
        return InputAudioRawFrame(audio=data, sample_rate=IN_HZ, num_channels=1)


async def serve_call(websocket: WebSocket, services: str, settings: str) -> None:
    params = FastAPIWebsocketParams(
        serializer=BareAudio(), audio_in_enabled=True, audio_out_enabled=True, allowed_origins=[]
    )
    transport = FastAPIWebsocketTransport(websocket, params)
    stt = OpenAISTTService(api_key="none", base_url=services)
    llm = OpenAILLMService(api_key="none", base_url=services)
    tts = OpenAITTSService(api_key="none", base_url=services)
    user_params = LLMUserAggregatorParams(vad_analyzer=SileroVADAnalyzer())
    if settings == "tuned":
        analyzer = LocalSmartTurnAnalyzerV3(params=SmartTurnParams(stop_secs=TUNED_STOP_SECS))
        stop = TurnAnalyzerUserTurnStopStrategy(turn_analyzer=analyzer)
        user_params.user_turn_strategies = UserTurnStrategies(stop=[stop])
    messages = [{"role": "system", "content": "You are a friendly voice assistant."}]
    pair = LLMContextAggregatorPair(LLMContext(messages), user_params=user_params)
    pipeline = Pipeline(
        [transport.input(), stt, pair.user(), llm, tts, transport.output(), pair.assistant()]
    )
    rates = PipelineParams(audio_in_sample_rate=IN_HZ, audio_out_sample_rate=OUT_HZ)
    task = PipelineTask(pipeline, params=rates, idle_timeout_secs=None)

    @transport.event_handler("on_client_disconnected")
    async def over(*_: object) -> None:
        await task.cancel()

    await PipelineRunner(handle_sigint=False).run(task)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True, help="loopback port to listen on")
    parser.add_argument("--services", required=True, metavar="URL", help="of stub_services, to /v1")
    parser.add_argument(
        "--settings", choices=("default", "tuned"), required=True, help="what it is given"
    )
    chosen = parser.parse_args()
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    app = FastAPI()

    @app.get("/readyz")
    async def ready() -> dict[str, bool]:
        return {"ready": True}

    @app.websocket("/call")
    async def call(websocket: WebSocket) -> None:
        await websocket.accept()
        await serve_call(websocket, chosen.services, chosen.settings)

    uvicorn.run(app, host="127.0.0.1", port=chosen.port, log_level="warning")


if __name__ == "__main__":
    main()
