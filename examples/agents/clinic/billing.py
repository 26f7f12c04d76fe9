"""Billing at the clinic: another voice, tools of its own, and nothing of what was said before."""

from voiceloop.python_agent import Agent, tool

BILLS = {"4711": "$120, due on the first of May"}


class Billing(Agent):
    name = "Otto"
    greeting = "Billing, this is Otto. What is the number of your bill?"
    instructions = (
        "You are Otto, who answers for bills at Mill Clinic. Ask for the number of the bill and "
        "look it up. You book no appointments. Answer in one or two short sentences."
    )
    speed = 0.95
    transfers = ({"name": "desk", "to": "agent:desk", "words": ("an appointment",)},)

    @tool(side_effect_free=True)
    def bill(self, number: str) -> str:
        """What a bill says."""
        return BILLS.get(number.strip(), "there is no such bill")

    def on_sentence(self, sentence: str) -> str | None:
        # A bill's number is said digit by digit, whatever the model wrote.
        return " ".join(
            " ".join(word) if word.strip(".,").isdigit() and "$" not in word else word
            for word in sentence.split(" ")
        )
