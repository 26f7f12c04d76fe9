"""An agent as a Python class: what its author imports.

Owns the base class, the mark of a method that is a tool, and the tables that a class stands for,
which are those of an agent's file. Nothing of the server is imported here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar, get_type_hints

import msgspec

HOOKS = ("on_call", "on_user_turn", "before_reply", "on_sentence", "on_tool", "on_end")
_TOOL = "_voiceloop_tool"
F = TypeVar("F", bound=Callable[..., Any])


class Answer(str):
    """The answer of `Agent.on_user_turn` and `before_reply`: what is said in the model's place,
    word for word.
    """


class HandOff(msgspec.Struct, frozen=True):
    """A tool's result that hands the caller on. to: the name of one of `transfers`. summary: for
    who takes the call. say: before it goes; "": `call.transferring`.
    """

    to: str
    summary: str = ""
    say: str = ""


class Agent:
    """An agent whose keys are class attributes, whose tools are methods, and whose calls are
    instances: what a method keeps in `self` is of one call.

    Each call has a process of its own. Its methods run one at a time, apart from coroutines. One
    that does not return costs its own turn; then the call goes on with a new instance.

    caller: who calls, as a tool of an agent's file is told it: key, secret, number, claims, call.
    """

    network: ClassVar[bool] = False
    caller: Mapping[str, Any]

    def on_call(self) -> str | None:
        """A call begins, up to 500 ms before the greeting. Returns a greeting for this caller;
        None: that of the class. Where it takes longer the other methods wait for it.
        """

    def on_user_turn(self, words: str) -> str | None:
        """Return what the agent should know or say of these words of the caller, within 150 ms.

        Returns an `Answer`, which is said; or notes, which stand behind the words for the model; or
        None. It is asked while the caller speaks, of words that may yet change, and again: it must
        do nothing.
        """

    def before_reply(self, words: str) -> str | None:
        """The caller's turn is over, and these are its words: within 150 ms, before the answer.

        It is asked once a turn, so it may act. Returns as `on_user_turn`; what was prepared ahead
        of an answer or notes is thrown away, which costs time: what can be told before the turn
        is over, `on_user_turn` tells.
        """

    def on_sentence(self, sentence: str) -> str | None:
        """The model says this next: what is said instead, within 150 ms. "": nothing; None: itself.

        It is asked ahead, of sentences that may never be said: it must do nothing. Where it fails
        the reply ends with the agent's `fallback`, for nobody knows whether the sentence may be
        said.
        """

    def on_tool(self, name: str, arguments: dict[str, Any]) -> dict[str, Any] | str | None:
        """The server calls this tool next: within 150 ms. Returns other arguments; or an `Answer`,
        which the model is told in place of a call; or None: as it is.

        Of a tool that is `side_effect_free` it is asked ahead, too. Where it fails no call is made.
        """

    def on_end(self) -> None:
        """The call is over. The process lives for two more seconds."""


def tool(method: F | None = None, **keys: Any) -> Any:
    """Mark a method as a tool. Its name, its docstring and the types of its parameters tell the
    model what it is. keys: of a `[[tools]]` table, as `side_effect_free`, `say`, `confirm`.
    """

    def mark(function: F) -> F:
        setattr(function, _TOOL, keys)
        return function

    return mark if method is None else mark(method)


def tools_of(kind: type[Agent]) -> dict[str, Callable[..., Any]]:
    """The class's tools by name, in the order in which they are written."""
    found: dict[str, Callable[..., Any]] = {}
    for base in reversed(kind.__mro__):
        for name, value in vars(base).items():
            if hasattr(value, _TOOL):
                found[name] = getattr(kind, name)
    return found


def arguments_of(method: Callable[..., Any]) -> type[msgspec.Struct]:
    """A method's parameters as a type: its JSON schema, and the check of what a model wrote.

    Raises: TypeError: a parameter has no type, or one that JSON has not.
    """
    hints = get_type_hints(method)
    fields: list[Any] = []
    for name, parameter in list(inspect.signature(method).parameters.items())[1:]:  # not self
        if name not in hints or parameter.kind in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        ):
            raise TypeError(f"{method.__qualname__}: expected a type for {name!r}, found none")
        is_needed = parameter.default is inspect.Parameter.empty
        fields.append((name, hints[name]) if is_needed else (name, hints[name], parameter.default))
    return msgspec.defstruct(method.__name__, fields, forbid_unknown_fields=True, kw_only=True)


def table_of(kind: type[Agent]) -> dict[str, Any]:
    """The agent's file that this class stands for: its attributes, and a table for each tool.

    Raises: TypeError: as `arguments_of`.
    """
    table: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base not in (object, Agent):
            table |= {
                name: value
                for name, value in vars(base).items()
                if not name.startswith("_")
                and name not in (*HOOKS, "network", "caller")
                and not inspect.isroutine(value)
                and not isinstance(value, property)
            }
    table["tools"] = [*table.get("tools", ()), *map(_tool_table, tools_of(kind).values())]
    return table


def _tool_table(method: Callable[..., Any]) -> dict[str, Any]:
    schema, parts = msgspec.json.schema_components([arguments_of(method)])
    own = dict(parts.pop(method.__name__, schema[0]))
    own.pop("title", None)
    if parts:
        own["$defs"] = parts
    table = {
        "name": method.__name__,
        "description": " ".join((inspect.getdoc(method) or "").split()),
        **getattr(method, _TOOL),
    }
    return table | ({"parameters": own} if own.get("properties") else {})
