"""Every (caller, agent, event) of turn-taking, and what is done about it.

``python -m tests.voiceloop.call.transitions`` prints the table, ``--write`` puts it into
`transitions.md` beside this file, and a test holds that to the code. Each state is reached as a
call reaches it, by events; each event is tried in the forms that its guards tell apart. Not tried
here but in the tests beside it: a reply that is taken back because the caller had not finished,
settings other than none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from voiceloop.agent import BargeIn
from voiceloop.call import events as told
from voiceloop.call.actions import name_of
from voiceloop.call.turn_taking import Agent, Caller, CallStatus, ReplyStatus, TurnTaking, is_legal
from voiceloop.errors import BackendError
from voiceloop.listening import events as heard
from voiceloop.listening.events import Activity, UserTurn
from voiceloop.realtime import commands as asked
from voiceloop.realtime.protocol import Protocol
from voiceloop.realtime.settings import SemanticVad, SessionSettings
from voiceloop.telemetry.record import TurnRecord
from voiceloop.tools.call_tools import Act, CallAct

PAGE = Path(__file__).with_suffix(".md")
HEAD = """# Every transition of turn-taking

`python -m tests.voiceloop.call.transitions --write` writes this page, and a test holds it to the
code. Each row was tried: what stands before the colon is what was tried, where it matters. A dash:
nothing is done. In brackets: the states of the agent, where they matter. *idle*, *not idle*:
whether the caller's silence is timed. Not in the table: a reply that is taken back because the
caller had not finished. A command of the client never finds the agent *early*: the session has such
a start stay first (`settle` of the listener).
"""

SETTINGS = SessionSettings(turn_detection=SemanticVad())
MANUAL = SessionSettings(turn_detection=None)
TURN = UserTurn(0, ("two", "lattes"), 0.0, 800.0, 0.0, 0.0, TurnRecord("turn"))
REPLY = ReplyStatus("resp", is_audible=True, heard_ms=900.0, item_heard_ms=900.0, released_s=-9.0)
STATUS_OF = {
    Agent.IDLE: CallStatus(SETTINGS, held_words=TURN.words),
    Agent.EARLY: CallStatus(SETTINGS, held_words=TURN.words),
    Agent.PREPARING: CallStatus(
        SETTINGS, ReplyStatus("resp", answers=TURN, released_s=0.0), is_answering=True
    ),
    Agent.REPLYING: CallStatus(SETTINGS, REPLY, is_answering=True),
    Agent.PAUSED: CallStatus(SETTINGS, REPLY, is_answering=True),
    Agent.INTERRUPTED: CallStatus(SETTINGS),
}
STATES = [state for state in product(Caller, Agent) if is_legal(*state)]


def activity(speech_ms: float, silence_ms: float = 0.0, voice: float = 1.0) -> Activity:
    return Activity(0.0, speech_ms, silence_ms, 100.0, voice)


def events() -> dict[str, list[tuple[str, told.CallEvent]]]:
    """By the event's name: each form that a guard tells apart, with what is special about it."""
    response = Protocol(SETTINGS).open_response()
    return {
        "SoundHeard": [
            ("the caller may go on", heard.SoundHeard(20.0, "back")),
            ("for 200 ms, louder than the room", heard.SoundHeard(200.0, "risen")),
            ("for 200 ms, perhaps a voice", heard.SoundHeard(200.0, "likely")),
            ("for 32 ms", heard.SoundHeard(32.0)),
            ("for 96 ms", heard.SoundHeard(96.0)),
            ("for 200 ms", heard.SoundHeard(200.0)),
        ],
        "SoundLost": [("", heard.SoundLost())],
        "SpeechStarted": [("", heard.SpeechStarted(activity(64.0)))],
        "SpeechWindow": [
            ("speech for 96 ms", heard.SpeechWindow(activity(96.0))),
            ("speech for 200 ms", heard.SpeechWindow(activity(200.0))),
            ("a voice for 1.2 s", heard.SpeechWindow(activity(1200.0))),
            ("a noise for 2.1 s", heard.SpeechWindow(activity(2100.0, voice=0.6))),
            ("silence", heard.SpeechWindow(activity(96.0, 300.0))),
        ],
        "WordsHeard": [
            ("a stop word, unstable", heard.WordsHeard((), ("stop",), is_full=False)),
            ("a backchannel, stable", heard.WordsHeard(("mhm",), (), is_full=False)),
            ("the same", heard.WordsHeard((), TURN.words, is_full=True)),
        ],
        "PauseWeighed": [("", heard.PauseWeighed(TURN.words, 0.9, 30.0, 200.0))],
        "EndIsLikely": [
            (
                "after the words that a reply is held to",
                heard.EndIsLikely(0, 800.0, TURN.words, 50.0),
            ),
            ("after others", heard.EndIsLikely(0, 800.0, ("stop",), 50.0)),
        ],
        "GroupHeard": [("", heard.GroupHeard())],
        "EndOfTurn": [
            ("with a stop word", heard.EndOfTurn(0, 800.0, ("stop",))),
            ("with a backchannel", heard.EndOfTurn(0, 800.0, ("mhm",))),
            ("without words", heard.EndOfTurn(0, 800.0, ())),
        ],
        "TurnTranscribed": [
            ("with words", heard.TurnTranscribed(TURN)),
            ("asked to wait", heard.TurnTranscribed(replace(TURN, words=("hold", "on")))),
            ("without words", heard.TurnTranscribed(replace(TURN, words=()))),
        ],
        "WordsLate": [("", heard.WordsLate(TURN))],
        "TranscriptionFailed": [("", heard.TranscriptionFailed(TURN, BackendError("gone")))],
        "SegmentCommitted": [("", told.SegmentCommitted(7))],
        "ReplyAudible": [("", told.ReplyAudible())],
        "ReplyEnded": [
            ("the agent's", told.ReplyEnded()),
            ("a line while an answer was late", told.ReplyEnded(line_said=True)),
            ("one beside it", told.ReplyEnded(had_floor=False)),
            ("one that ends the call", told.ReplyEnded(act=CallAct(Act.END))),
        ],
        "KeysPressed": [("", told.KeysPressed(900.0))],
        "KeysEntered": [("", told.KeysEntered(replace(TURN, segment=-1)))],
        "GreetingDue": [("", told.GreetingDue("Hello."))],
        "CallerIdle": [("", told.CallerIdle(0.0))],
        "AnswerOwed": [("", told.AnswerOwed())],
        "ClearAudio": [("", asked.ClearAudio())],
        "CreateResponse": [("", asked.CreateResponse(response))],
        "CancelResponse": [
            ("of the reply", asked.CancelResponse("resp")),
            ("of none", asked.CancelResponse(None)),
        ],
        "SettingsChanged": [("no turn detection", asked.SettingsChanged(SETTINGS, MANUAL))],
        "CallEnding": [("", told.CallEnding())],
    }


def in_state(caller: Caller, agent: Agent) -> tuple[TurnTaking, CallStatus]:
    """Turn-taking that events have brought there, and what the rest of the call looks like.

    The agent's state is set, but for a pause, which is the judge's too.
    """
    turn_taking, status = TurnTaking(BargeIn()), STATUS_OF[agent]
    alone = replace(status, reply=None, is_answering=False)
    match caller:
        case Caller.OVERLAPPING:
            over = STATUS_OF[Agent.REPLYING] if agent is Agent.IDLE else status
            turn_taking.agent = Agent.REPLYING
            turn_taking.on(heard.SpeechStarted(activity(64.0)), over)
            if agent is Agent.PAUSED:
                turn_taking.on(heard.SpeechWindow(activity(200.0)), over)
            if agent is Agent.IDLE:  # the reply ended under the sound
                turn_taking.on(told.ReplyEnded(), status)
        case Caller.SPEAKING | Caller.PAUSED:
            turn_taking.on(heard.SpeechStarted(activity(64.0)), alone)
            if caller is Caller.PAUSED:
                turn_taking.on(heard.SpeechWindow(activity(400.0, 64.0)), alone)
        case Caller.KEYING:
            turn_taking.on(told.KeysPressed(0.0), alone)
        case Caller.TRANSCRIBING:
            turn_taking.on(heard.SpeechStarted(activity(64.0)), alone)
            turn_taking.on(heard.EndOfTurn(0, 800.0, ()), alone)  # no words so far
    if agent is not Agent.PAUSED:
        turn_taking.agent = agent
        turn_taking.interrupted_id = "resp" if agent is Agent.INTERRUPTED else None
    return turn_taking, status


@dataclass(frozen=True, slots=True)
class Transition:
    caller: Caller
    agent: Agent
    event: str
    form: str
    actions: tuple[str, ...]
    becomes: Caller

    @property
    def outcome(self) -> str:
        """What is done, and what the caller does then if that is another thing."""
        done = ", ".join(self.actions) or "-"
        return done + (f" -> **{self.becomes.value}**" if self.becomes is not self.caller else "")


def transitions() -> Iterator[Transition]:
    """All of them. Raises nothing: an event that is out of place asks nothing."""
    for (caller, agent), (name, forms) in product(STATES, events().items()):
        for form, event in forms:
            turn_taking, status = in_state(caller, agent)
            assert (turn_taking.caller, turn_taking.agent) == (caller, agent)
            if isinstance(event, asked.SettingsChanged):
                status = replace(status, settings=MANUAL)
            done = turn_taking.on(event, status)
            yield Transition(
                caller, agent, name, form, tuple(map(name_of, done)), turn_taking.caller
            )


def table() -> str:
    """Markdown: a row an answer to an event; the forms and states that it holds for share it."""
    states: dict[tuple[str, str, str], list[tuple[Caller, Agent]]] = {}
    for one in transitions():
        states.setdefault((one.event, one.outcome, one.form), []).append((one.caller, one.agent))
    forms: dict[tuple[str, str, str], list[str]] = {}
    for (event, outcome, form), where in states.items():
        forms.setdefault((event, told_states(where), outcome), []).append(form)
    lines = [
        "| event | caller (agent) | done, in order -> what the caller does then |",
        "|---|---|---|",
    ]
    order = list(events())
    for (event, where, outcome), tried in sorted(forms.items(), key=lambda r: order.index(r[0][0])):
        is_any = len(tried) == len(events()[event])
        lines.append(
            f"| {event} | {where} | {'' if is_any else ' or '.join(tried) + ': '}{outcome} |"
        )
    return "\n".join(lines)


def told_states(where: list[tuple[Caller, Agent]]) -> str:
    """The callers of these states; in brackets the agents, where not all of that caller's are."""
    if len(where) == len(STATES):
        return "any"
    told = []
    for caller in dict.fromkeys(caller for caller, _ in where):
        agents = [agent.value for one, agent in where if one is caller]
        is_all = len(agents) == sum(one is caller for one, _ in STATES)
        told.append(caller.value if is_all else f"{caller.value} ({', '.join(agents)})")
    return "; ".join(told)


def main(arguments: list[str]) -> int:
    if "--write" not in arguments:
        print(table())
        return 0
    PAGE.write_text(f"{HEAD}\n{table()}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
