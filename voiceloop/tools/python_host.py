"""The process of one Python tool: ``voiceloop.tools.python_host module:function folder network``.

Owns the author's function and what it may not touch: its prints go to the log (standard error), its
exceptions become answers, and a result that is no JSON or too long is said to be so. A coroutine
function runs on this process's loop; any other function on a thread, so that calls overlap.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType
from typing import Any, BinaryIO

import msgspec

from voiceloop.cell import run_for_an_author
from voiceloop.tools.python_messages import (
    HEADER_BYTES,
    Abandon,
    Answer,
    Call,
    Ready,
    Returned,
    length_of,
    packed,
    request_of,
)

# Of one tool, as `limit.AT_ONCE`: the gateway never has more calls open in one process.
MAX_THREADS = 32
CALLER = "caller"


def import_authors(module_name: str) -> ModuleType:
    """An author's module. Raises: LookupError, which says what is wrong.

    Whatever an import raises is the author's to see: its traceback goes to the log.
    """
    try:
        return importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            raise LookupError(
                f"no module {missing!r} beside the agent file, nor installed"
            ) from None
        traceback.print_exc()
        raise LookupError(f"the module {module_name!r} cannot be imported ({error})") from error


def find_function(spec: str) -> Callable[..., Any]:
    """The function that ``module:function`` names. Raises: LookupError, as `import_authors`."""
    module_name, _, name = spec.partition(":")
    found: Any = import_authors(module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            raise LookupError(f"the module {module_name!r} has no {name!r}")
        found = getattr(found, part)
    if not callable(found):
        raise LookupError(f"{spec!r} is no function")
    function: Callable[..., Any] = found
    return function


def takes_caller(function: Callable[..., Any]) -> bool:
    """Whether it has a parameter for the caller."""
    try:
        return CALLER in inspect.signature(function).parameters
    except (TypeError, ValueError):  # one written in C may not say
        return False


class Host:
    """Reads requests until the gateway closes the pipe, and answers each call once."""

    n_threads = MAX_THREADS

    def __init__(self, function: Callable[..., Any], answers: BinaryIO) -> None:
        self._function = function
        self._answers = answers
        self.is_told = takes_caller(function)
        self._calls: dict[int, asyncio.Task[Returned]] = {}
        self._threads = ThreadPoolExecutor(self.n_threads, thread_name_prefix="tool")

    async def serve(self, requests: asyncio.StreamReader) -> None:
        while True:
            try:
                header = await requests.readexactly(HEADER_BYTES)
                request = request_of(await requests.readexactly(length_of(header)))
            except asyncio.IncompleteReadError:
                return  # the gateway has ended, or wants this process to
            match request:
                case Call(number=number):
                    running = asyncio.create_task(self._answered(request))
                    # Not at the end of the task: one that is abandoned before its first step, for
                    # both requests came at once, has no end of its own.
                    running.add_done_callback(partial(self._answer, number))
                    self._calls[number] = running
                case Abandon(number=number):
                    if number in self._calls:
                        self._calls[number].cancel()

    def _answer(self, number: int, over: asyncio.Task[Returned]) -> None:
        del self._calls[number]
        try:
            message = packed(over.result())
        except asyncio.CancelledError:
            message = packed(Returned(number, problem="abandoned"))
        except Exception as error:
            # Where it happened, without its words: they may quote what the caller said.
            kind = type(error).__name__
            print(f"{kind} at:", *traceback.format_tb(error.__traceback__), file=sys.stderr)
            message = packed(Returned(number, problem=kind))
        self._answers.write(message)
        self._answers.flush()

    def target(self, request: Call) -> Callable[[], Any]:
        """Return what is to be run. Raises whatever the arguments are refused with."""
        arguments = request.arguments
        arguments.pop(CALLER, None)  # that is never the model's to say
        if self.is_told:
            arguments[CALLER] = request.caller
        return partial(self._function, **arguments)

    def returned(self, number: int, result: Any) -> Returned:
        """A result as text."""
        text = str(result) if isinstance(result, str) else msgspec.json.encode(result).decode()
        return Returned(number, text, is_none=result is None)

    async def _answered(self, request: Call) -> Returned:
        try:
            return self.returned(request.number, await self._run(self.target(request)))
        except SystemExit:  # it would end the process with its words
            raise RuntimeError from None

    async def _run(self, target: Callable[[], Any]) -> Any:
        if inspect.iscoroutinefunction(target):
            return await target()
        loop = asyncio.get_running_loop()
        call = loop.run_in_executor(self._threads, target)
        try:
            result = await asyncio.shield(call)
        except asyncio.CancelledError:
            # A thread cannot be stopped. It counts as over only when it is: the gateway then knows
            # whether this process still works on something that nobody waits for.
            await asyncio.wait({call})
            raise
        return await result if inspect.isawaitable(result) else result


async def main(spec: str) -> None:
    # What the function prints must not come between the messages.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        function = find_function(spec)
    except LookupError as error:
        _say(answers, Ready(problem=str(error)[:500]))
        return
    host = Host(function, answers)
    _say(answers, Ready(is_told=host.is_told))
    requests = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    await host.serve(requests)


def _say(answers: BinaryIO, answer: Answer) -> None:
    answers.write(packed(answer))
    answers.flush()


if __name__ == "__main__":
    spec, folder, network = sys.argv[1:]
    sys.path.insert(0, folder or os.getcwd())
    # Ended by the gateway alone, which an interrupt at a terminal reaches too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run_for_an_author(has_network=bool(network))
    asyncio.run(main(spec))
    # Threads of calls that nobody waits for would keep the process: it has nothing else to end.
    # What the function has started ends with it, also where the gateway was killed.
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)
