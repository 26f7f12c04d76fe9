"""Word lists of the call generator: people, places, dishes, prices, facts.

Every list is split by `pick`: nine tenths of the entries are for training, the rest appear only
in evaluation calls, so that a model cannot pass by remembering them.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence

FIRST_NAMES = tuple(
    """Ava Mia Zoe Lena Nora Ella Ruby Iris Maya Lucy Clara Alice Hazel Stella Rosa Vera Ivy June
    Tessa Nina Daisy Freya Greta Heidi Ingrid Jade Kira Luna Mabel Nadia Olive Paula Quinn Rita
    Sadie Thea Uma Willa Yara Zara Anna Bella Carla Diana Emma Fiona Gina Hannah Irene Julia Karen
    Laura Megan Naomi Opal Phoebe Rachel Sarah Tina Wendy Amber Brooke Chloe Dana Erin Faith Grace
    Max Leo Sam Ben Tom Jack Noah Liam Owen Finn Hugo Oscar Theo Felix Jasper Milo Otto Ravi Omar
    Diego Marco Luca Andre Pedro Ivan Boris Carl Dean Eric Frank Greg Henry Ian Jeff Kevin Louis
    Mark Neil Oliver Peter Ron Steve Ted Victor Walter Adam Brian Chris David Ethan Fred George
    Harry Isaac James Kyle Lucas Martin Nathan Patrick Robert Simon Thomas William Priya Anika Mei
    Yuki Kenji Chen Amir Layla Farah Hassan Fatima Sofia Elena Olga Pavel Sven Astrid Bjorn Nils
    Maria Carmen Jose Juan Pablo Raul Rico Ramona Lola Ines Beatriz Amara Zainab Kofi Kwame Abena
    Tariq Samir Dalia Noor Aiden Mason Logan Riley Taylor Jordan Casey Morgan Avery Parker Reese
    Skyler Rowan Sage River Emery Blake Drew Hayden Jamie Kendall Robin Sasha Terry Val Winnie
    """.split()
)
LAST_NAMES = tuple(
    """Smith Jones Brown Taylor Wilson Davies Evans Thomas Roberts Johnson Walker Wright Robinson
    Thompson White Hughes Edwards Green Hall Wood Harris Lewis Martin Jackson Clarke Clark Turner
    Hill Scott Cooper Morris Ward Moore King Watson Baker Harrison Morgan Patel Young Allen
    Mitchell James Anderson Phillips Lee Bell Parker Davis Bennett Miller Cook Shaw Cox Richards
    Marshall Carter Collins Gray Murphy Kelly Hunt Palmer Garcia Lopez Martinez Perez Kim Chen
    Nguyen Khan Singh Rossi Novak Larsen Weber Fischer Meyer Costa Silva Sato Tanaka Okafor Mensah
    """.split()
)
_PLACE_FIRST = tuple(
    """Maple Cedar Willow Birch Aspen Oak Elm Linden Laurel Poppy Clover Thistle Bramble Fern Ivy
    Heather Marigold Lavender Rosemary Saffron Pepper Olive Lemon Cherry Apple Plum Peach Fig Pear
    Copper Silver Golden Iron Marble Amber Coral Pearl Crystal Velvet Blue Red Green Black White
    Crimson Scarlet Indigo Sunny Misty Rainy Windy Snowy Harbor River Lake Ocean Meadow Valley
    Summit Canyon Prairie Garden Orchard Market Station Corner Central Union Liberty Grand Royal
    Little Happy Lucky Lazy Busy Hungry Merry Jolly Quiet Early Midnight Morning Evening Sunrise
    Sunset Moonlight Starlight North South East West Upper Lower Old New Twin Three Seven Fox Bear
    Wolf Otter Heron Robin Sparrow Falcon Eagle Owl Swan Raven Rabbit Badger Salmon Dolphin Tiger
    Rocket Comet Anchor Lantern Compass Bicycle Piano Violin Drum Paper Button Thimble Teapot
    Kettle Spoon Barrel Brick Stone Granite Pebble Bridge Tower Castle Chapel Mill Barn Cottage
    """.split()
)
_PLACE_LAST = tuple(
    """Street Lane Hill Park Grove Field Creek Brook Point Bay Cove Ridge Hollow Gate Square Yard
    House Room Table Spoon Cup Bean Leaf Tree Branch Root Moon Star Sun Sky Cloud Wave Shore Path
    Door Window Lantern Bell Wheel Crown Feather Kettle Hearth Nest Den""".split()
)
_SYLLABLES = tuple(
    """ba be bo bra bri ca co da del do fa fen fi ga gor ha hel in ja ka kel ki la lo lu ma mar mi
    mo na nel no o pa per po ra ri ro sa sel si so ta tel ti to tra va ver vi vo wa wen za zel zi zo
    """.split()
)
_ENDINGS = tuple("n na ra ri lo ta mo nix ro s la dor ley den ton by wick ford sy ko va".split())

DRINKS = tuple(
    """latte;cappuccino;espresso;double espresso;americano;flat white;mocha;macchiato;cortado;black
    coffee;drip coffee;iced coffee;cold brew;iced latte;vanilla latte;caramel latte;hazelnut
    latte;oat latte;pumpkin latte;chai latte;matcha latte;hot chocolate;white hot chocolate;green
    tea;black tea;mint tea;earl grey;ginger tea;chamomile tea;iced tea;peach iced
    tea;lemonade;raspberry lemonade;orange juice;apple juice;carrot juice;tomato juice;mango
    smoothie;berry smoothie;banana smoothie;green smoothie;vanilla milkshake;chocolate
    milkshake;strawberry milkshake;sparkling water;still water;cola;ginger ale;root beer;house
    wine;red wine;white wine;pale ale;lager;stout;cider;margarita;mojito;turmeric latte;rooibos
    tea;jasmine tea;coconut water;kombucha;grape juice;cranberry juice;affogato;ristretto;chicory
    coffee;decaf;decaf latte""".replace("\n    ", " ").split(";")
)
PASTRIES = tuple(
    """blueberry muffin;chocolate muffin;banana muffin;bran muffin;lemon muffin;butter
    croissant;almond croissant;ham croissant;cinnamon roll;apple danish;cheese danish;plain
    scone;cheese scone;cranberry scone;glazed donut;chocolate donut;jelly donut;oatmeal
    cookie;chocolate chip cookie;ginger cookie;peanut butter cookie;brownie;blondie;carrot
    cake;cheesecake;chocolate cake;lemon tart;apple pie;pecan pie;cherry pie;banana bread;pumpkin
    bread;sourdough loaf;rye loaf;baguette;plain bagel;sesame bagel;everything bagel;raisin
    bun;pretzel;churro;eclair;macaron;fruit tart;granola bar;rice pudding;tiramisu;fudge
    square;shortbread;waffle;pancake stack;crepe;raspberry tart;poppy seed cake;walnut cake;custard
    tart;coconut bun;date slice;plum cake""".replace("\n    ", " ").split(";")
)
MEALS = tuple(
    """cheeseburger;veggie burger;chicken burger;club sandwich;tuna sandwich;egg sandwich;ham
    sandwich;grilled cheese;turkey wrap;falafel wrap;chicken wrap;caesar salad;greek salad;garden
    salad;tomato soup;chicken soup;onion soup;lentil soup;mushroom soup;margherita pizza;pepperoni
    pizza;veggie pizza;four cheese pizza;hawaiian pizza;spaghetti;lasagna;ravioli;mushroom
    risotto;mac and cheese;fish and chips;grilled salmon;roast chicken;chicken
    wings;meatballs;steak;ribs;shrimp tacos;beef tacos;bean burrito;chicken
    burrito;quesadilla;nachos;fried rice;pad thai;chicken curry;vegetable curry;ramen;miso
    soup;sushi plate;spring rolls;dumplings;tempura;kebab plate;lamb stew;beef stew;chili bowl;poke
    bowl;rice bowl;noodle bowl;omelette;avocado toast;eggs benedict;breakfast burrito;french
    toast;porridge;granola bowl;hash browns;french fries;sweet potato fries;garlic bread;onion
    rings;coleslaw;side salad;paella;gnocchi;pesto pasta;eggplant bake;stuffed peppers;tofu
    bowl;baked potato;shepherd's pie;quiche;hummus plate;cheese plate""".replace(
        "\n    ", " "
    ).split(";")
)
SIZES = ("small", "medium", "large", "regular", "extra large")
MILKS = (
    "oat milk",
    "almond milk",
    "soy milk",
    "skim milk",
    "whole milk",
    "coconut milk",
    "extra foam",
    "no sugar",
    "two sugars",
    "whipped cream",
    "an extra shot",
    "vanilla syrup",
    "caramel syrup",
    "no ice",
    "extra ice",
    "cinnamon on top",
    "lemon",
    "honey",
)
FILM_TITLES = tuple(
    """The Last Harbor;Paper Moons;Silent Orchard;Night Train North;The Clockmaker;Red Canyon;Two
    Rivers;Dancing Bears;The Lost Garden;Iron Sky Road;Summer of Owls;Glass Mountain;The Tenth
    Letter;Winter Fox;Ocean of Stars;Hidden Valley;The Baker's Son;Velvet Thunder;Midnight
    Ferry;City of Kites;The Quiet Storm;Golden Hour;Little Giants;Broken Compass;A Song for
    Clara;The Pirate Queen;Desert Bloom;Robot Holiday;Shadow Street;The Great Escape Plan;Honey and
    Salt;Falling Leaves;Distant Drums;The Color of Rain;Space Pilots;The Secret Kitchen""".replace(
        "\n    ", " "
    ).split(";")
)
SERVICES = tuple(
    """haircut;beard trim;color treatment;manicure;pedicure;facial;massage;hot stone massage;eye
    exam;dental cleaning;check up;flu shot;oil change;tire change;brake check;car wash;bike tune
    up;yoga class;pilates class;spin class;guitar lesson;piano lesson;swimming lesson;dog
    grooming;nail trim;bouquet;watch repair;shoe repair;phone repair;tailoring;house
    tour;photo session;language lesson""".replace("\n    ", " ").split(";")
)
ROOM_TYPES = (
    "single room",
    "double room",
    "twin room",
    "family room",
    "suite",
    "garden room",
    "king room",
    "queen room",
    "loft room",
    "sea view room",
)
HOME_ROOMS = (
    "kitchen",
    "bedroom",
    "living room",
    "bathroom",
    "hallway",
    "office",
    "garage",
    "basement",
    "dining room",
    "porch",
    "garden",
    "attic",
    "nursery",
    "guest room",
    "laundry room",
)
HOME_DEVICES = (
    "light",
    "lamp",
    "fan",
    "heater",
    "blinds",
    "speaker",
    "television",
    "radio",
    "curtains",
    "plug",
    "thermostat",
    "air conditioner",
)
TOWNS = (
    "the airport",
    "the train station",
    "the harbor",
    "downtown",
    "the university",
    "city hall",
    "the museum",
    "the hospital",
    "the stadium",
    "the library",
    "the mall",
    "the old town",
    "the zoo",
    "the market square",
    "the bus station",
    "the concert hall",
    "the beach",
)


def is_held_out(word: str) -> bool:
    """Whether a list entry is kept for evaluation only (one tenth, by its CRC)."""
    return zlib.crc32(word.lower().encode()) % 10 == 0


def pick(rng: random.Random, words: Sequence[str], held_out: bool) -> str:
    """Draw an entry from the training part of a list, or from its evaluation part."""
    for _ in range(200):
        word = rng.choice(words)
        if is_held_out(word) == held_out:
            return word
    return rng.choice(words)


def invented_word(rng: random.Random, held_out: bool) -> str:
    """A made-up proper name such as `Velmora`; the two parts of the split never meet."""
    while True:
        word = "".join(rng.choice(_SYLLABLES) for _ in range(rng.choice((1, 2, 2))))
        word = (word + rng.choice(_ENDINGS)).capitalize()
        if len(word) > 3 and is_held_out(word) == held_out:
            return word


def place_name(rng: random.Random, held_out: bool) -> str:
    """The proper part of a business name, such as `Copper Kettle`, `Rosa's` or `Velmora`."""
    first = pick(rng, _PLACE_FIRST, held_out)
    match rng.randrange(6):
        case 0:
            return first
        case 1 | 2:
            return f"{first} {pick(rng, _PLACE_LAST, held_out)}"
        case 3:
            return f"{pick(rng, FIRST_NAMES, held_out)}'s"
        case 4:
            return f"{first} and {pick(rng, _PLACE_FIRST, held_out)}"
        case _:
            return invented_word(rng, held_out)
