"""Support that answers from documents: ``voiceloop serve --agent examples/agents/support.py``."""

from typing import Any

from voiceloop.python_agent import Agent, Answer, tool


class Support(Agent):
    name = "Lee"
    greeting = "Support, this is Lee. What can I look up for you?"
    instructions = (
        "You are Lee of the support of Acorn Speakers. Answer from the notes behind the caller's "
        "words. If they do not say it, open a ticket. Answer in one or two short sentences."
    )
    knowledge = ({"source": "support_handbook"},)
    tools = (
        {
            "name": "open_ticket",
            "description": "Open a ticket for a person to answer.",
            "parameters": {
                "type": "object",
                "required": ["about"],
                "properties": {"about": {"type": "string"}},
            },
            "result": "opened: a person writes within a day",
        },
    )

    def on_call(self) -> None:
        self.n_tickets = 0
        self.unknown: list[str] = []

    @tool(side_effect_free=True)
    def status_of(self, part: str) -> str:
        """Whether something runs: the shop, the app, the delivery."""
        return "all runs" if part.lower() in ("shop", "app", "delivery") else "unknown"

    def on_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        # Whatever the model is talked into, a caller opens two tickets at the most.
        if name != "open_ticket":
            return None
        self.n_tickets += 1
        self.unknown.append(str(arguments.get("about", "")))
        return Answer("there are two open already") if self.n_tickets > 2 else None

    def on_end(self) -> None:
        for about in self.unknown:
            print("nobody could answer:", about)
