"""The processes of an agent's class: ``voiceloop.tools.agent_host MODULE:CLASS FOLDER NETWORK FD``.

The first imports the author's module once and then forks: one process a call, in a millisecond,
which holds that call's instance and answers on a line of its own (`python_messages`). So what one
call's code does, blocks or loses is no other's, and what it starts ends with it: each such process
is the first of a group. The first itself runs none of the code after the import, and has no
threads, which a fork would not survive. FD: where the gateway says when to fork and what
to kill; without one it writes the class as a table, and ends.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from voiceloop.cell import end_with_parent, run_for_an_author
from voiceloop.child import kill_group
from voiceloop.python_agent import HOOKS, Agent, Answer, HandOff, arguments_of, table_of, tools_of
from voiceloop.tools.python_host import Host, find_function, import_authors
from voiceloop.tools.python_messages import Call, Ready, Returned, packed

ORDER = struct.Struct(">cI")  # what to do, and the number of the call's process
FORK, KILL, READY, REFUSED = b"F", b"K", b"R", b"N"
REAP_EVERY_S = 1.0


def find_class(spec: str, folder: str) -> type[Agent]:
    """The class of ``module:Class``; of a module alone, the one that is written there.

    Raises: LookupError, which says what is wrong.
    """
    module, _, name = spec.partition(":")
    if not name:
        written = [
            one
            for one in vars(import_authors(module)).values()
            if isinstance(one, type) and issubclass(one, Agent) and one.__module__ == module
        ]
        if len(written) != 1:
            raise LookupError(f"expected one class of Agent in {module!r}, found {len(written)}")
        return written[0]
    found = find_function(spec)
    if not (isinstance(found, type) and issubclass(found, Agent)):
        raise LookupError(f"{spec!r} is no class of voiceloop.python_agent.Agent")
    return found


class CallHost(Host):
    """One call's instance, in its own process. Methods run one at a time, apart from coroutines."""

    n_threads = 1

    def __init__(self, kind: type[Agent], answers: Any) -> None:
        super().__init__(kind, answers)
        self._instance = kind()
        self._tools = tools_of(kind)

    def target(self, request: Call) -> Callable[[], Any]:
        self._instance.caller = request.caller
        if request.method in HOOKS:
            return partial(getattr(self._instance, request.method), **request.arguments)
        arguments = msgspec.convert(request.arguments, arguments_of(self._tools[request.method]))
        method = getattr(self._instance, request.method)
        return partial(method, **msgspec.structs.asdict(arguments))

    def returned(self, number: int, result: Any) -> Returned:
        """An `Answer` says that it is one, and so does who hands the caller on."""
        if isinstance(result, HandOff):
            return Returned(number, hand_off=result)
        told = super().returned(number, result)
        return msgspec.structs.replace(told, is_answer=isinstance(result, Answer))


def serve_call(kind: type[Agent], line: socket.socket) -> None:
    """Serve a call until the gateway lets go of it."""
    with line.makefile("wb", buffering=0) as answers:
        try:
            host = CallHost(kind, answers)
        except Exception as error:
            traceback.print_exc()
            answers.write(packed(Ready(problem=type(error).__name__)))
            return

        async def serve() -> None:
            reader, _ = await asyncio.open_connection(sock=line)
            answers.write(packed(Ready(is_told=True)))
            await host.serve(reader)

        asyncio.run(serve())


def fork_calls(kind: type[Agent], gateway: socket.socket) -> None:
    """Fork and kill as the gateway says, until it is gone."""
    running: dict[int, int] = {}  # process ids by the gateway's numbers
    while True:
        ready, _, _ = select.select([gateway], [], [], REAP_EVERY_S)
        running = _without_ended(running)
        if not ready:
            continue
        order, lines, _, _ = socket.recv_fds(gateway, ORDER.size, 1)
        if len(order) < ORDER.size:
            break
        what, number = ORDER.unpack(order)
        if what == KILL and number in running:
            kill_group(running[number])
        elif what == FORK:
            line = socket.socket(fileno=lines[0])
            sys.stdout.flush()
            if (pid := os.fork()) == 0:
                os.setpgid(0, 0)
                end_with_parent()
                gateway.close()
                with suppress(BaseException):
                    serve_call(kind, line)
                kill_group(0)
            with suppress(OSError):  # here too: the order to kill it may come before it has run
                os.setpgid(pid, pid)
            running[number] = pid
            line.close()
    for pid in running.values():
        kill_group(pid)


def _without_ended(running: dict[int, int]) -> dict[int, int]:
    """Return those that run still; of the others what they have started is killed."""
    ended = os.WEXITED | os.WNOHANG
    with suppress(ChildProcessError):
        # Until it is waited for its number is no other's.
        while (over := os.waitid(os.P_ALL, 0, ended | os.WNOWAIT)) is not None:
            kill_group(over.si_pid)
            os.waitpid(over.si_pid, 0)
            running = {number: pid for number, pid in running.items() if pid != over.si_pid}
    return running


def main(spec: str, folder: str, network: str, fd: str = "") -> None:
    sys.path.insert(0, folder or os.getcwd())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.dup(1)
    os.dup2(2, 1)  # what the author prints goes to the log
    has_network = bool(network)
    if not fd:
        # The file says whether it has the network; until then it has none.
        run_for_an_author(has_network=False)
        os.write(answers, msgspec.json.encode(_described(spec, folder)))
        return
    run_for_an_author(has_network=has_network)
    gateway = socket.socket(fileno=int(fd))
    try:
        kind = find_class(spec, folder)
    except LookupError as error:
        gateway.sendall(REFUSED + str(error)[:500].encode())
        return
    hooks = (name for name in HOOKS if getattr(kind, name) is not getattr(Agent, name))
    gateway.sendall(READY + ",".join(hooks).encode())
    fork_calls(kind, gateway)
    kill_group(0)


def _described(spec: str, folder: str) -> dict[str, Any]:
    """The class as a file's table; under `problem`: why not."""
    try:
        kind = find_class(spec, folder)
        table = table_of(kind)
        table |= {"python": f"{spec.partition(':')[0]}:{kind.__name__}", "network": kind.network}
        for name in tools_of(kind):
            tool = next(one for one in table["tools"] if one["name"] == name)
            tool["python"] = f"{table['python']}.{name}"
        return {"table": msgspec.to_builtins(table)}
    except (LookupError, TypeError) as error:
        return {"problem": str(error)[:500]}


if __name__ == "__main__":
    main(*sys.argv[1:])
