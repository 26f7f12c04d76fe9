"""The desk of a clinic. It knows who is who, and hands what is about money to billing."""

from typing import Literal

from voiceloop.python_agent import Agent, Answer, HandOff, tool

FREE = {"monday": ["9 am", "2 pm"], "tuesday": ["11 am"], "friday": ["10 am"]}


class Desk(Agent):
    name = "Iris"
    greeting = "Mill Clinic, this is Iris. How can I help?"
    instructions = (
        "You are Iris at the desk of Mill Clinic. You book appointments with your tools. "
        "What is about a bill goes to billing. Answer in one or two short sentences."
    )
    transfers = (
        {
            "name": "billing",
            "to": "agent:billing",
            "words": ("my bill", "an invoice"),
            "history": "summary",
        },
    )

    def on_call(self) -> None:
        self.booked: list[str] = []

    @tool(side_effect_free=True)
    def free_slots(self, day: Literal["monday", "tuesday", "friday"]) -> list[str]:
        """The free appointments of a day."""
        return [time for time in FREE[day] if f"{day} {time}" not in self.booked]

    @tool
    def book(self, day: Literal["monday", "tuesday", "friday"], time: str, name: str) -> str:
        """Book an appointment."""
        if time not in self.free_slots(day):
            return f"{time} is not free"
        self.booked.append(f"{day} {time}")
        return f"booked for {name}"

    @tool
    def open_balance(self) -> HandOff | str:
        """What the caller owes."""
        if not self.caller["claims"].get("patient"):
            return HandOff("billing", summary="The caller asks what they owe.")
        return "nothing is owed"

    def before_reply(self, words: str) -> str | None:
        # A rule that no model may miss. It is asked once, when the turn is over.
        if any(danger in words.lower() for danger in ("chest pain", "cannot breathe")):
            return Answer("Please hang up and call 112 now.")
        return None
