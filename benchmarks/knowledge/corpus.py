"""A folder of 300 pages that a shop might have, and questions that callers might ask of it.

Owns both. Fifty products have six pages each, about one subject; all pages of a subject say alike
things in several wordings, so a page is found by its product and its subject together. Questions
name the product and ask in their own words, many of which stand on no page.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from voiceloop.knowledge.documents import Document

PRODUCTS = (
    "rain jacket", "camping stove", "sleeping bag", "walking boots", "electric kettle",
    "coffee grinder", "desk lamp", "garden hose", "pressure cooker", "bread maker",
    "washing machine", "vacuum cleaner", "steam iron", "hair dryer", "baby monitor",
    "car seat", "bicycle pump", "snow chains", "roof rack", "paddle board",
    "yoga mat", "rowing machine", "tennis racket", "golf trolley", "fishing rod",
    "acoustic guitar", "digital piano", "record player", "wireless headphones", "video projector",
    "photo printer", "paper shredder", "office chair", "bunk bed", "memory foam mattress",
    "wool blanket", "linen curtains", "oak bookcase", "glass cabinet", "picture frame",
    "cordless drill", "circular saw", "lawn mower", "hedge trimmer", "wheelbarrow",
    "fire pit", "patio heater", "hot tub", "solar panel", "smoke alarm",
)  # fmt: skip

# Of a subject: the name of its page, what pages say ({p}: product, {n}, {m}: numbers), and how
# callers ask.
SUBJECTS = (
    (
        "returns",
        (
            "You may return the {p} within {n} days of receipt.",
            "Pack the {p} in its original box; a courier collects it.",
            "The refund reaches your account after {m} working days.",
            "We deduct nothing as long as the {p} is unused and complete.",
        ),
        (
            "how long do i have to send back the {p}",
            "when do i get the money back for my {p}",
            "can i return a {p} that i have opened",
            "i don't want the {p} any more what should i do for a refund",
        ),
    ),
    (
        "warranty",
        (
            "The {p} carries a guarantee of {n} months.",
            "The warranty covers faults of material and workmanship, not wear.",
            "Register the {p} online to extend cover by {m} months.",
            "Keep the receipt: it is the proof we need for a claim.",
        ),
        (
            "how many months of warranty are there on the {p}",
            "is a fault in the {p} covered by the guarantee",
            "how do i make a claim for a broken {p}",
            "can i extend the cover of my {p}",
        ),
    ),
    (
        "delivery",
        (
            "We deliver the {p} to your door in {n} days.",
            "Shipping of the {p} costs {m} euros; above eighty euros it is free.",
            "The carrier sends a link to track the parcel.",
            "Islands and mountain villages take two days longer.",
        ),
        (
            "how much is the shipping for a {p}",
            "when will my {p} be delivered",
            "how can i track the parcel with the {p}",
            "do you deliver the {p} to an island",
        ),
    ),
    (
        "care",
        (
            "Clean the {p} with a damp cloth and mild soap.",
            "Never use bleach or solvents on the {p}.",
            "Store the {p} in a dry place; check it every {n} weeks.",
            "After {m} uses, rub it with a little oil.",
        ),
        (
            "what is the best way to clean a {p}",
            "may i use bleach on the {p}",
            "where should the {p} be stored in winter",
            "does my {p} need oil",
        ),
    ),
    (
        "assembly",
        (
            "The {p} comes in {n} parts with an instruction leaflet.",
            "Assembly takes one person about {m} minutes.",
            "You need a screwdriver and a spanner of size ten.",
            "Tighten every bolt of the {p} again after a week.",
        ),
        (
            "what tools do i need to put together the {p}",
            "how many minutes does the assembly of the {p} take",
            "i have lost the instruction leaflet of my {p}",
            "how many parts should there be for the {p}",
        ),
    ),
    (
        "spares",
        (
            "Spare parts for the {p} are kept for {n} years.",
            "Order by the part number that is printed under the {p}.",
            "A replacement usually costs between {m} and sixty euros.",
            "Our workshop fits parts while you wait on Thursdays.",
        ),
        (
            "can i order a spare part for the {p}",
            "where do i find the part number of my {p}",
            "what does a replacement cost for the {p}",
            "does your workshop fit parts for a {p}",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Question:
    """What a caller asks, and the page that answers it."""

    text: str
    path: str
    product: str


def pages(seed: int) -> Iterator[Document]:
    """All of them: the sentences of each in an order of their own, with numbers of their own."""
    dice = random.Random(seed)
    for product in PRODUCTS:
        for name, sentences, _ in SUBJECTS:
            numbers = {"p": product, "n": dice.randint(5, 60), "m": dice.randint(5, 60)}
            said = [sentence.format(**numbers) for sentence in sentences]
            dice.shuffle(said)
            heading = f"{product.capitalize()}: {name}"
            text = "\n\n".join((" ".join(said[:2]), " ".join(said[2:])))
            yield Document(_path(product, name), ((heading, text),))


def questions() -> Iterator[Question]:
    """Each wording about each product; every other one calls it by its last word alone.

    ("the jacket"), unless another product has that name too.
    """
    last_words = Counter(product.split()[-1] for product in PRODUCTS)
    for product in PRODUCTS:
        last = product.split()[-1]
        short = last if last_words[last] == 1 else product
        for name, _, wordings in SUBJECTS:
            for number, wording in enumerate(wordings):
                text = wording.format(p=short if number % 2 else product)
                yield Question(text, _path(product, name), product)


def _path(product: str, name: str) -> str:
    return f"{product.replace(' ', '-')}/{name}.md"
