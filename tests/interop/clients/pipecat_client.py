"""pipecat's OpenAI realtime service against a server, in its whole pipeline."""

from __future__ import annotations

import asyncio
import warnings
from contextlib import asynccontextmanager

warnings.simplefilter("ignore")  # of its own imports

from loguru import logger  # noqa: E402
from pipecat.adapters.schemas.function_schema import FunctionSchema  # noqa: E402
from pipecat.adapters.schemas.tools_schema import ToolsSchema  # noqa: E402
from pipecat.frames.frames import (  # noqa: E402
    ErrorFrame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMRunFrame,
    TTSAudioRawFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
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
from scenario import (  # noqa: E402
    ASKED,
    CHOSEN,
    CHUNK_S,
    INSTRUCTIONS,
    LIMIT_S,
    PARAMETERS,
    RESULT,
    SPEECH,
    URL,
    USE_THE_TOOL,
    chunks,
    passed,
)

problems = []
logger.remove()
logger.add(problems.append, level="WARNING")
# Said of the pipeline above, not of what the server sends.
IGNORED = ("deprecated", "is not emitting turn frames")


class Sink(FrameProcessor):
    def __init__(self):
        super().__init__()
        self.n_audio = self.n_starts = self.n_ends = 0
        self.changed = asyncio.Condition()

    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        self.n_audio += isinstance(frame, TTSAudioRawFrame)
        self.n_starts += isinstance(frame, UserStartedSpeakingFrame)
        self.n_ends += isinstance(frame, LLMFullResponseEndFrame)
        if isinstance(frame, ErrorFrame):
            problems.append(str(frame))
        async with self.changed:
            self.changed.notify_all()
        await self.push_frame(frame, direction)

    async def until(self, holds):
        async with asyncio.timeout(LIMIT_S), self.changed:
            await self.changed.wait_for(lambda: holds(self))


class Call:
    """A running pipeline: what the scenarios push in, and what came out."""

    def __init__(self, turn_detection, messages, tools):
        audio_in = events.AudioInput(
            transcription=events.InputAudioTranscription(), turn_detection=turn_detection
        )
        audio = events.AudioConfiguration(input=audio_in)
        properties = events.SessionProperties(instructions=INSTRUCTIONS, audio=audio)
        if tools is not None:
            properties.tool_choice = "auto"
        self.service = OpenAIRealtimeLLMService(
            api_key="none", base_url=f"{URL}/v1/realtime", session_properties=properties
        )
        self.context = LLMContext(messages, tools) if tools is not None else LLMContext(messages)
        pair, self.sink = LLMContextAggregatorPair(self.context), Sink()
        stages = [pair.user(), self.service, self.sink, pair.assistant()]
        params = PipelineParams(audio_in_sample_rate=24_000, audio_out_sample_rate=24_000)
        self.task = PipelineTask(Pipeline(stages), params=params)

    async def say(self, frame):
        await self.task.queue_frames([frame])

    async def feed(self, data, pause_s=CHUNK_S):
        for piece in data:
            await self.say(InputAudioRawFrame(piece, sample_rate=24_000, num_channels=1))
            await asyncio.sleep(pause_s)

    def roles(self):
        return [message["role"] for message in self.context.messages]


@asynccontextmanager
async def running(messages, turn_detection=None, tools=None):
    if turn_detection is None:
        turn_detection = events.SemanticTurnDetection()
    call = Call(turn_detection, messages, tools)
    runner = asyncio.create_task(PipelineRunner(handle_sigint=False).run(call.task))
    try:
        yield call
        noted = [str(one) for one in problems if not any(word in str(one) for word in IGNORED)]
        assert not noted, noted
    finally:
        await call.task.cancel()
        await runner


def user(text):
    return [{"role": "user", "content": text}]


async def text_turn():
    async with running(user("hello")) as call:
        await call.say(LLMRunFrame())
        await call.sink.until(lambda sink: sink.n_audio and sink.n_ends)


async def spoken_turn():
    async with running(user("hello")) as call:
        await call.say(LLMRunFrame())
        await call.sink.until(lambda sink: sink.n_ends == 1)
        await asyncio.sleep(3)  # what was sent is played before the caller speaks
        feeding = asyncio.create_task(call.feed(chunks(SPEECH, 3)))
        await call.sink.until(lambda sink: sink.n_ends == 2)
        await feeding
        assert call.sink.n_starts == 1 and call.roles()[:3] == ["user", "assistant", "user"]


async def tool_call():
    called = []

    async def hours(params):
        called.append(params.arguments)
        await params.result_callback(RESULT)

    schema = FunctionSchema(
        name="hours",
        description="Opening hours of a day.",
        properties=PARAMETERS["properties"],
        required=["day"],
    )
    tools = ToolsSchema(standard_tools=[schema])
    async with running(user(USE_THE_TOOL), tools=tools) as call:
        call.service.register_function("hours", hours)
        await call.say(LLMRunFrame())
        await call.sink.until(lambda sink: called and sink.n_audio)
        assert len(called) == 1 and isinstance(called[0]["day"], str), called


async def barge_in():
    async with running(user(ASKED)) as call:
        await call.say(LLMRunFrame())
        await call.sink.until(lambda sink: sink.n_audio)
        feeding = asyncio.create_task(call.feed(chunks(SPEECH, 4)))
        await call.sink.until(lambda sink: sink.n_starts and sink.n_ends >= 2)
        await feeding
        assert call.sink.n_starts == 1
        async with asyncio.timeout(LIMIT_S):  # its words may come after the sound has ended
            while call.roles()[:3] != ["user", "assistant", "user"]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)


async def manual_commit():
    async with running(user("hello"), turn_detection=False) as call:
        await call.say(LLMRunFrame())
        await call.sink.until(lambda sink: sink.n_ends == 1)
        n_audio = call.sink.n_audio
        await call.feed(chunks(SPEECH), pause_s=0.0)
        await call.say(UserStoppedSpeakingFrame())
        await call.sink.until(lambda sink: sink.n_audio > n_audio and sink.n_ends == 2)


async def cancel():
    async with running(user(ASKED), turn_detection=False) as call:
        await call.say(LLMRunFrame())
        await call.sink.until(lambda sink: sink.n_audio)
        await call.say(InterruptionFrame())
        await call.sink.until(lambda sink: sink.n_ends)


async def main():
    for name in CHOSEN:
        await globals()[name]()
        passed(name)


asyncio.run(main())
