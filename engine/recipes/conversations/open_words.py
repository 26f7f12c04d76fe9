"""Values outside the word lists: what keeps a model from learning the lists by heart.

A model that only ever sees two hundred names answers with the nearest of them instead of copying
the caller's. So a share of all training values is made up: an entry with one of its words changed,
a rare name, an invented word. Held-out values (see `lexicon.is_held_out`) are never made up.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from .lexicon import (
    DRINKS,
    FILM_TITLES,
    FIRST_NAMES,
    LAST_NAMES,
    MEALS,
    PASTRIES,
    SERVICES,
    invented_word,
    is_held_out,
    pick,
)

OPEN_SHARE = 0.45
_SMALL_WORDS = frozenset("a an the of and on in at to for from with is are only no next".split())
_RARE_NAMES = tuple(
    """Abigail Adele Agnes Aisha Albert Alec Aldo Alfie Ali Alma Alvin Anita Ansel Anton April
    Archie Ariel Arlo Arthur Asher Audrey August Axel Barbara Barney Basil Beau Becky Benita Bernard
    Bert Beth Betty Bonnie Boyd Brenda Bruno Bryce Byron Cal Cameron Candice Cara Carlos Carol
    Caspian Cecil Celia Chad Chandra Charlie Chester Cindy Claire Claude Cleo Clifford Clive Colin
    Connie Cora Craig Curtis Cynthia Cyrus Damon Daphne Darius Darren Dawn Deepak Della Denise
    Dennis Derek Dexter Dmitri Dolores Dominic Donna Dora Doris Dorothy Doug Duncan Dwight Earl
    Edgar Edith Edna Edwin Eileen Elaine Eleanor Eli Elijah Elise Elliot Ellis Elmer Elsie Emil
    Enzo Erica Ernest Esther Eugene Eunice Eva Evelyn Ezra Fabian Felicia Fergus Flora Florence
    Floyd Franklin Freddie Gabriel Gail Garth Gemma Gerald Gilbert Ginger Giovanni Gita Gladys
    Glenn Gloria Gordon Graham Greta Guy Gwen Hank Hans Harold Harriet Harvey Hector Helen Helga
    Herman Hiro Hope Howard Ida Ignacio Imogen Ira Irma Isabel Isla Jackie Jacob Jan Janet Jared
    Jean Jenny Jerome Jesse Jill Jim Joan Joaquin Jodie Joel Johanna John Jonas Joseph Joyce Judith
    Julian Kamal Karim Kate Kay Keira Ken Kendra Kent Kirk Klaus Kurt Lance Larry Lars Laurel Leah
    Leon Leroy Leslie Lester Levi Lewis Lila Linda Lionel Lloyd Lorenzo Lorna Lou Lydia Mack Maeve
    Malcolm Mandy Manuel Marcia Margot Marlon Martha Marvin Matilda Matt Maude Maurice Melanie
    Melvin Mick Miguel Mildred Miranda Mohammed Molly Mona Monica Muriel Myra Myrtle Nancy Natalie
    Ned Nelson Nigel Nicole Norma Norman Odette Olaf Oleg Orla Otis Pam Pamela Pascal Pat Patty
    Pearl Penny Percy Perry Phil Philippa Polly Preston Rahul Ralph Ramon Randy Raymond Rebecca
    Regina Renee Rex Rhoda Ricardo Rick Roger Roland Rory Rosalind Roxanne Roy Rufus Russell Ruth
    Sabina Sally Samantha Sandra Sanjay Saul Scott Sean Selma Seth Shannon Sharon Sheila Shirley
    Sidney Sonia Spencer Stan Stephanie Stuart Sue Susan Sylvia Tabitha Tania Tanya Tara Tatiana
    Terrence Tim Toby Todd Tracy Trevor Trudy Tyler Ursula Valerie Vanessa Vernon Vincent Viola
    Vivian Wade Wallace Warren Wayne Wesley Wilbur Wilma Xavier Yolanda Yosef Yvonne Zachary Zelda
    """.split()
)
_QUALITIES = tuple(
    """smoked grilled toasted baked fried roasted stuffed frozen spicy sweet sour salted creamy
    crispy fresh warm cold hot double triple mini giant classic royal country village summer winter
    autumn spring morning midnight golden silver black white green red blue purple pink dark light
    wild home old new lucky happy secret little big long short round square honey maple lemon lime
    orange grape peach pear plum fig date cherry apple mango melon kiwi papaya coconut pineapple
    apricot walnut almond pecan peanut pistachio chestnut sesame poppy pumpkin carrot beet spinach
    kale leek onion garlic pepper tomato potato cabbage celery bean lentil pea corn rice oat barley
    rye wheat chicken turkey duck beef pork lamb ham bacon salmon tuna trout shrimp crab lobster
    cheddar brie feta cream butter yogurt chocolate vanilla caramel cinnamon nutmeg mint basil
    thyme rosemary saffron curry chili mustard soy tofu egg express deluxe evening glazed""".split()
)
_HEADS = tuple(
    """tea coffee juice soda shake smoothie cocoa cordial punch brew cooler cup pot glass bottle
    pie tart cake bun roll loaf twist slice square cookie cracker biscuit bar cone cup tray box
    donut pastry pudding mousse parfait sundae bowl plate platter basket salad soup stew chowder
    broth sandwich wrap roll burger melt toast pizza pasta noodles risotto pilaf casserole roast
    skewer steak cutlet fillet taco burrito fritters hash dip special combo feast wine beer ale
    lesson class session trim wash check cleaning repair fitting tour consultation treatment
    polish rental lecture workshop""".split()
)
_THINGS = tuple(
    """river bridge castle window garden ladder pencil candle mirror basket hammer bucket blanket
    pillow kettle barrel lantern anchor feather pebble marble ribbon button needle thimble saddle
    wagon tunnel tower chapel meadow forest desert island harbor canyon glacier volcano valley
    summit market station corner theater museum library school college factory bakery pharmacy
    fountain statue playground courtyard balcony staircase elevator lobby hallway rooftop basement
    orchard vineyard stable barn cottage cabin palace temple monument gate fence pond lake beach
    cliff cave rainbow thunder lightning comet planet rocket galaxy eclipse dolphin penguin falcon
    badger otter rabbit squirrel hedgehog beaver leopard panther elephant giraffe camel donkey
    pony parrot pigeon sparrow cricket beetle dragon wizard pirate knight giant mermaid unicorn
    violin trumpet guitar drum flute piano cello banjo compass telescope camera wallet umbrella
    jacket sweater mitten slipper helmet bracelet necklace locket crystal emerald ruby diamond
    copper bronze velvet cotton leather paper canvas granite timber gravel clover daisy tulip
    orchid lily thistle ivy fern willow maple cedar birch acorn mushroom""".split()
)


def draw(rng: random.Random, words: Sequence[str], held_out: bool) -> str:
    """`lexicon.pick`, but a share of the training values is made up after the list's kind."""
    if held_out or rng.random() > OPEN_SHARE:
        return pick(rng, words, held_out)
    for _ in range(50):
        word = _made_up(rng, pick(rng, words, False))
        if not is_held_out(word):
            return word
    return pick(rng, words, held_out)


def _made_up(rng: random.Random, entry: str) -> str:
    """An entry of the same kind as `entry`."""
    if entry in FIRST_NAMES or entry in LAST_NAMES:
        if rng.random() < 0.75:
            return rng.choice(_RARE_NAMES)
        if rng.random() < 0.5:
            return rng.choice(_THINGS).capitalize()
        return invented_word(rng, False)
    if entry in DRINKS or entry in PASTRIES or entry in MEALS or entry in SERVICES:
        return _made_up_item(rng, entry)
    if entry in FILM_TITLES:
        first, second = rng.choice(_QUALITIES), rng.choice(_THINGS)
        return rng.choice(("{} {}", "The {} {}", "{} and {}")).format(
            first.capitalize(), second.capitalize()
        )
    parts = entry.split()
    at = [index for index, part in enumerate(parts) if part.lower() not in _SMALL_WORDS]
    if at:
        parts[rng.choice(at)] = rng.choice(_THINGS)
    return " ".join(parts)


def _made_up_item(rng: random.Random, entry: str) -> str:
    match rng.randrange(5):
        case 0:
            return f"{rng.choice(_QUALITIES)} {rng.choice(_HEADS)}"
        case 1:
            return f"{rng.choice(_QUALITIES)} {entry.split()[-1]}"
        case 2:
            return f"{rng.choice(_THINGS)} {rng.choice(_HEADS)}"
        case 3:
            return f"{rng.choice(_QUALITIES)} {rng.choice(_QUALITIES)} {rng.choice(_HEADS)}"
        case _:
            name = rng.choice(_THINGS) if rng.random() < 0.5 else invented_word(rng, False).lower()
            return name if rng.random() < 0.4 else f"{name} {entry.split()[-1]}"
