"""How an agent ends a call and hands it on: the tables `[call]` and `[[transfers]]` of its file.

Owns these keys. `call/acts.py` does what they say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from voiceloop.backends import TOOL_NAME
from voiceloop.config_reader import Words, key

AGENT = "agent:"  # before the name of another of the server's agents, in `transfers.to`


@dataclass(frozen=True, slots=True)
class Transfer:
    """A target that the agent may hand a call to: a person, or another agent of the server."""

    name: str = key(
        ...,
        "The name by which the tool `transfer` calls them. 1 to 64 letters, digits, `_` and `-`.",
        pattern=TOOL_NAME.pattern,
        wanted="1 to 64 letters, digits, _ or -",
    )
    to: str = key(
        ...,
        "Their number or address, as `tel:+49301234567` or `sip:desk@pbx`. The server refuses "
        "what its `phone.transfer_to` does not allow. `agent:billing` is another agent of the "
        "folder `agents`, on any line: the call goes on with its voice, tools and documents.",
        pattern=r"tel:\+?[0-9]{2,20}|sips?:[A-Za-z0-9_.!~*'()&=+$,;?/%@:-]{1,200}|agent:[^/]{1,100}",
        wanted="tel: and digits, a sip: address, or agent: and its name",
    )
    words: tuple[Words, ...] = key(
        (),
        'Words of a caller, as "talk to a person", after which the call is transferred without '
        "asking the model.",
    )
    warm: bool = key(
        False,
        "The person who takes the call hears a summary before the caller is there. Off: the "
        "line is handed over at once.",
    )
    history: Literal["all", "summary", "none"] = key(
        "all",
        "What another agent's model is shown of the call so far. `summary`: what this one's model "
        "writes as it hands the call on.",
    )

    @property
    def agent(self) -> str:
        """The name of the server's agent that it is; "" where it is none."""
        return self.to.removeprefix(AGENT) if self.to.startswith(AGENT) else ""


@dataclass(frozen=True, slots=True)
class CallManners:
    """How the agent ends a call, and hands it on."""

    tools: tuple[Literal["end_call", "send_digits"], ...] = key(
        (),
        "Tools that the model has. `end_call`: the line closes once the goodbye has been heard, "
        "unless the caller speaks again. `send_digits` presses keys of a telephone.",
    )
    end_words: tuple[Words, ...] = key(
        (),
        'A turn of nothing but such words, as "goodbye", ends the call without asking the model.',
    )
    goodbye: str = key("Goodbye.", "Said before the line closes where the model has said nothing.")
    transferring: str = key(
        "One moment, I am connecting you.",
        "Said before a transfer where the model has said nothing.",
    )
    still_there: str = key(
        "Are you still there?",
        "Asked on a telephone line after 10 s without a word. Empty: never, and no "
        "silence ends the call.",
    )
    machine: Literal["ignore", "tell", "message", "hang_up"] = key(
        "ignore",
        "What the server does if a machine answers a call that it placed. `tell`: it tells "
        "the client (`voiceloop.answered_by`). `message`: it says `call.message` after the "
        "tone, and hangs up. `hang_up`: it hangs up at once. With all values but `ignore` the"
        " model has the tool `voicemail`, which it calls if it recognizes a machine first.",
    )
    message: str = key("", "Said to a machine, after its tone.")
    screening: str = key(
        "",
        "Said in a call that this server has placed to who asks who is calling and why, as call "
        "screening does. Empty: the model answers.",
    )
    not_transferred: str = key(
        "I am sorry, nobody could take the call. What else can I do for you?",
        "Said to a caller whose transfer failed.",
    )
