"""The tools of generated calls: random names, arguments and descriptions around fixed meanings.

Names vary from call to call, so that the schema in the prompt has to be read.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of this call: its schema and what the caller-facing argument names became."""

    schema: dict[str, Any]
    names: dict[str, str]

    @property
    def name(self) -> str:
        return str(self.schema["function"]["name"])


_ARGUMENT_NAMES = {
    "day": ("day", "date", "weekday", "on_day", "which_day", "when"),
    "time": ("time", "at", "start_time", "hour", "slot", "clock_time"),
    "people": ("people", "party_size", "guests", "n_people", "seats", "persons", "count"),
    "name": ("name", "customer", "guest_name", "customer_name", "caller", "booked_for"),
    "item": ("item", "product", "dish", "name", "article", "menu_item"),
    "items": ("items", "order", "products", "dishes", "articles"),
    "quantity": ("quantity", "count", "amount", "how_many", "n"),
    "code": ("code", "order_id", "reference", "booking_id", "number", "ticket"),
    "device": ("device", "entity", "target", "thing", "appliance"),
    "state": ("state", "action", "value", "set_to", "mode"),
    "reason": ("reason", "note", "topic", "why"),
}
_TYPES = {"people": "integer", "quantity": "integer", "items": "array"}
_TOOL_NAMES = {
    "hours": ("get_opening_hours", "opening_hours", "hours_for_day", "lookup_hours", "get_hours"),
    "total": ("order_total", "get_total", "calculate_total", "price_order", "sum_order"),
    "available": ("check_availability", "is_available", "find_slot", "availability", "check_slot"),
    "book": ("book", "make_booking", "create_reservation", "reserve", "book_table", "add_booking"),
    "status": ("order_status", "track_order", "find_order", "get_status", "lookup_order"),
    "price": ("get_price", "price_of", "lookup_price", "item_price", "find_price"),
    "cancel": ("cancel_booking", "cancel", "remove_booking", "delete_reservation", "cancel_order"),
    "transfer": ("transfer_call", "call_human", "forward_call", "escalate", "get_manager"),
    "times": ("find_times", "free_slots", "list_slots", "get_free_times", "open_slots", "slots_on"),
    "appoint": ("book_slot", "make_appointment", "schedule", "add_appointment", "reserve_time"),
    "quote": ("get_price", "price_of", "lookup_price", "item_price", "find_price"),
}
ARGUMENTS = {
    "hours": ("day",),
    "total": ("items",),
    "available": ("day", "time", "people"),
    "book": ("day", "time", "people", "name"),
    "status": ("code",),
    "price": ("item",),
    "cancel": ("code",),
    "transfer": ("reason",),
}
# Kinds that the card's calls never have.
PRACTICE_ARGUMENTS = {
    "times": ("day",),
    "appoint": ("day", "time", "name"),
    "quote": ("item",),
}
_DESCRIPTIONS = {
    "hours": ("Opening hours of a day", "When we are open", "Look up the hours"),
    "total": ("Total price of an order", "Add up an order", "Price of all items"),
    "available": ("Check for a free table", "Is a slot free", "Look for free places"),
    "book": ("Make a booking", "Reserve a table", "Book a slot for a guest"),
    "status": ("State of an order", "Find an order", "Where an order is"),
    "price": ("Price of one item", "What an item costs", "Look up a price"),
    "cancel": ("Cancel a booking", "Remove a booking", "Cancel by its code"),
    "transfer": ("Connect to a person", "Hand the call to staff", "Get a human"),
    "times": ("Free times of a day", "When there is room", "List the free slots"),
    "appoint": ("Book an appointment", "Reserve a time", "Put a caller into the book"),
    "quote": ("Price of one item", "What an item costs", "Look up a price"),
}


def random_tool(rng: random.Random, kind: str) -> Tool:
    """Draw a schema for one kind of tool."""
    names: dict[str, str] = {}
    for argument in (ARGUMENTS | PRACTICE_ARGUMENTS)[kind]:
        free = [n for n in _ARGUMENT_NAMES[argument] if n not in names.values()]
        names[argument] = rng.choice(free[:1] * 2 + free)
    order = list(names)
    if rng.random() < 0.4:
        rng.shuffle(order)
    properties: dict[str, Any] = {}
    for argument in order:
        kind_of = _TYPES.get(argument, "string")
        properties[names[argument]] = {"type": kind_of} | (
            {"items": {"type": "string"}} if kind_of == "array" else {}
        )
    schema = {
        "type": "function",
        "function": {
            "name": rng.choice(_TOOL_NAMES[kind][:1] * 2 + _TOOL_NAMES[kind]),
            "description": rng.choice(_DESCRIPTIONS[kind]) + ".",
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(properties),
            },
        },
    }
    return Tool(schema, {a: names[a] for a in order})
