"""pipecat's OpenAI realtime service against a server: a first reply, then a barge-in over it."""

from __future__ import annotations

import asyncio
import sys
import warnings

warnings.simplefilter("ignore")

from loguru import logger  # noqa: E402
from pipecat.frames.frames import (  # noqa: E402
    ErrorFrame,
    InputAudioRawFrame,
    LLMRunFrame,
    TTSAudioRawFrame,
    UserStartedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline  # noqa: E402
from pipecat.pipeline.runner import PipelineRunner  # noqa: E402
from pipecat.pipeline.task import PipelineParams, PipelineTask  # noqa: E402
from pipecat.processors.aggregators.llm_context import LLMContext  # noqa: E402
from pipecat.processors.aggregators.llm_response_universal import (  # noqa: E402
    LLMContextAggregatorPair,
)
from pipecat.processors.frame_processor import FrameProcessor  # noqa: E402
from pipecat.services.openai.realtime import events  # noqa: E402
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService  # noqa: E402

URL, SPEECH = sys.argv[1], open(sys.argv[2], "rb").read()
FRAME = 960
logger.remove()


class Sink(FrameProcessor):
    def __init__(self):
        super().__init__()
        self.n_audio = 0
        self.n_starts = 0
        self.errors = []
        self.speaks = asyncio.Event()

    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.n_audio += 1
            self.speaks.set()
        self.n_starts += isinstance(frame, UserStartedSpeakingFrame)
        if isinstance(frame, ErrorFrame):
            self.errors.append(frame)
        await self.push_frame(frame, direction)


async def drive(task, sink, context):
    await task.queue_frames([LLMRunFrame()])
    async with asyncio.timeout(10):
        await sink.speaks.wait()
    print("first reply ok", flush=True)
    data = SPEECH + bytes(24_000 * 3)
    for start in range(0, len(data), FRAME):
        piece = data[start : start + FRAME]
        await task.queue_frames([InputAudioRawFrame(piece, sample_rate=24000, num_channels=1)])
        await asyncio.sleep(FRAME / 48_000)
    await asyncio.sleep(4)
    assert not sink.errors, sink.errors
    assert sink.n_starts == 1
    roles = [message["role"] for message in context.messages]
    assert roles == ["user", "assistant", "user", "assistant"], context.messages
    print("barge_in ok", flush=True)
    await task.cancel()


async def main():
    audio = events.AudioConfiguration(
        input=events.AudioInput(
            transcription=events.InputAudioTranscription(),
            turn_detection=events.SemanticTurnDetection(),
        )
    )
    properties = events.SessionProperties(instructions="Be brief.", audio=audio)
    service = OpenAIRealtimeLLMService(
        api_key="none", base_url=f"{URL}/v1/realtime", session_properties=properties
    )
    context = LLMContext([{"role": "user", "content": "Say hello."}])
    pair, sink = LLMContextAggregatorPair(context), Sink()
    params = PipelineParams(audio_in_sample_rate=24000, audio_out_sample_rate=24000)
    task = PipelineTask(Pipeline([pair.user(), service, sink, pair.assistant()]), params=params)
    running = asyncio.create_task(PipelineRunner(handle_sigint=False).run(task))
    try:
        await drive(task, sink, context)
    finally:
        await task.cancel()
        await running


asyncio.run(main())
