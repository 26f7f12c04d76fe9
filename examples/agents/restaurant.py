"""A restaurant that takes an order: ``voiceloop serve --agent examples/agents/restaurant.py``."""

from typing import Literal

from voiceloop.python_agent import Agent, Answer, tool

MENU = {"soup": 6.5, "pasta": 12.0, "salad": 9.0, "lemonade": 3.5}
Dish = Literal["soup", "pasta", "salad", "lemonade"]


class Restaurant(Agent):
    name = "Rosa"
    greeting = "Olive Table, this is Rosa. What would you like?"
    instructions = (
        "You are Rosa of the restaurant Olive Table. You take orders to be collected. "
        "Look up prices and add dishes with your tools. Answer in one or two short sentences."
    )
    hotwords = ("soup", "pasta", "salad", "lemonade")

    def on_call(self) -> str | None:
        self.order: dict[str, int] = {}
        name = self.caller["claims"].get("name")
        return f"Welcome back to Olive Table, {name}. What would you like?" if name else None

    @tool(side_effect_free=True)
    def price(self, dish: Dish) -> str:
        """What a dish costs."""
        return f"${MENU[dish]:.2f}"

    @tool
    def add(self, dish: Dish, number: int = 1) -> dict[str, object]:
        """Put a dish into the order."""
        self.order[dish] = self.order.get(dish, 0) + number
        return {"order": self.order, "total": self._total()}

    def on_user_turn(self, words: str) -> str | None:
        # A sum is said by this code, word for word: no model adds up.
        asks = any(ask in words.lower() for ask in ("the total", "how much is all", "that's all"))
        if asks and self.order:
            listed = " and ".join(f"{number} {dish}" for dish, number in self.order.items())
            return Answer(f"That is {listed}, {self._total()} in all. It is ready in half an hour.")
        return None

    def _total(self) -> str:
        return f"${sum(MENU[dish] * number for dish, number in self.order.items()):.2f}"
