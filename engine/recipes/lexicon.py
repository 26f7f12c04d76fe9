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
# What callers ask about places, as (topic, questions, prompt sentence, reply); {v} is a value.
PLACE_FACTS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    (
        "wifi",
        "(do you have|is there) wifi|what('s| is) the wifi password|(can i|could i) get the "
        "wifi password",
        "The wifi password is {v}.|Wifi password: {v}.|Guests can use the wifi, the "
        "password is {v}.",
        "The wifi password is {v}.|(Sure|Yes), the password is {v}.",
        (
            "sunflower",
            "bluebird",
            "pineapple",
            "moonbeam",
            "raincloud",
            "teapot",
            "snowflake",
            "butterfly",
            "redwood",
            "seashell",
            "marshmallow",
            "firefly",
            "waterfall",
            "dragonfly",
        ),
    ),
    (
        "parking",
        "is there parking|where can i park|do you have (a parking lot|parking)",
        "Parking is {v}.|Guests can park {v}.|There is parking {v}.",
        "(Yes|Sure), you can park {v}.|There's parking {v}.",
        (
            "behind the building",
            "across the street",
            "in the garage next door",
            "on the roof",
            "beside the church",
            "in front of the shop",
            "under the building",
            "around the corner",
            "next to the bank",
            "at the back",
            "along the river",
        ),
    ),
    (
        "dogs",
        "(can i bring|do you allow) (my dog|dogs|pets)|are (dogs|pets) allowed|is it "
        "okay to bring a dog",
        "Dogs {v}.|Pets: dogs {v}.",
        "Dogs {v}.",
        (
            "are welcome",
            "are not allowed",
            "are welcome outside",
            "are welcome on the terrace",
            "are welcome on a leash",
            "cannot come in",
            "are welcome in the garden",
        ),
    ),
    (
        "payment",
        "how can i pay|do you take (cards|cash|credit cards)|what payment do you (accept|take)",
        "We accept {v}.|Payment: {v}.|Customers can pay with {v}.",
        "You can pay with {v}.|We take {v}.",
        (
            "cash only",
            "cards only",
            "cash and cards",
            "cash, cards and checks",
            "all major cards",
            "cards and phone payments",
            "cash or debit",
            "vouchers and cards",
        ),
    ),
    (
        "manager",
        "who('s| is) (the manager|in charge)|what('s| is) the manager's name",
        "The manager is {v}.|Manager: {v}.|{v} is the manager.",
        "The manager is {v}.|(That's|It's) {v}.",
        FIRST_NAMES,
    ),
    (
        "owner",
        "who (owns|runs) (the place|this place|it)|who('s| is) the owner",
        "The owner is {v}.|{v} owns the place.|It is owned by {v}.",
        "The owner is {v}.|It's owned by {v}.",
        FIRST_NAMES,
    ),
    (
        "founded",
        "how long have you been (open|around|in business)|when did you open|what year did you open",
        "(It opened|We opened|Founded) in {v}.|In business since {v}.",
        "We opened in {v}.|We've been here since {v}.",
        tuple(str(year) for year in range(1921, 2025)),
    ),
    (
        "delivery",
        "do you deliver|is there delivery|can you deliver",
        "Delivery {v}.|We deliver: delivery {v}.",
        "(Delivery|Yes, delivery) {v}.",
        (
            "is free",
            "costs two dollars",
            "costs three dollars",
            "costs five dollars",
            "takes half an hour",
            "takes about an hour",
            "is only on weekdays",
            "is only downtown",
        ),
    ),
    (
        "seating",
        "do you have (outdoor|outside) (seating|tables)|can we sit outside",
        "Outdoor seating is {v}.|The outside tables are {v}.",
        "(Outdoor seating|It) is {v}.",
        (
            "on the terrace",
            "in the garden",
            "on the roof",
            "by the river",
            "in the courtyard",
            "on the balcony",
            "on the pier",
            "on the sidewalk",
        ),
    ),
    (
        "cancel",
        "what('s| is) (the|your) cancellation policy|can i cancel (my booking|later|for free)",
        "Cancellation is free until {v}.|Bookings can be cancelled for free until {v}.",
        "You can cancel for free until {v}.",
        (
            "noon the day before",
            "one day before",
            "two days before",
            "three hours before",
            "six hours before",
            "one hour before",
            "midnight the day before",
            "a week before",
        ),
    ),
    (
        "special",
        "what('s| is) (the|today's) special|(do you have|any) specials( today|)",
        "Today's special is {v}.|The special is {v}.",
        "Today's special is {v}.|The special is {v}.",
        tuple(f"the {item}" for item in MEALS[::2] + PASTRIES[::3]),
    ),
    (
        "gluten",
        "do you have (anything|something) (gluten free|vegan)|what('s| is) (vegan|gluten free)",
        "For vegans there is {v}.|Vegan and gluten free: {v}.",
        "(Yes|Sure), we have {v}.",
        tuple(f"the {item}" for item in MEALS[1::2] + PASTRIES[1::3]),
    ),
    (
        "kids",
        "(are kids|is it okay to bring kids|are children) (allowed|welcome|)|do you have a "
        "kids menu",
        "Children {v}.|Kids: children {v}.",
        "Children {v}.",
        (
            "are welcome",
            "eat for half price",
            "get a small toy",
            "under five eat free",
            "are welcome before 8 pm",
            "have their own menu",
            "must be with an adult",
        ),
    ),
    (
        "floor",
        "(which|what) floor are you on|what floor is it",
        "We are on the {v} floor.|It is on the {v} floor.",
        "We're on the {v} floor.",
        ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "ground", "top"),
    ),
    (
        "nearby",
        "where are you|where is it|how do i find you|what are you close to",
        "We are next to {v}.|You find us near {v}.|It is just past {v}.",
        "We're (right |)by {v}.",
        TOWNS,
    ),
    (
        "breakfast",
        "when is breakfast|what time is breakfast|how long is breakfast served",
        "Breakfast is served until {v}.|Breakfast ends at {v}.",
        "Breakfast is served until {v}.",
        ("10 am", "10:30 am", "11 am", "11:30 am", "noon", "9:30 am", "9 am", "1 pm"),
    ),
    (
        "discount",
        "do you have (a|any) (discounts|student discount)|is there a discount",
        "Students get {v} off.|There is a discount of {v} for students.",
        "Students get {v} off.",
        tuple(f"{n} percent" for n in (5, 10, 12, 15, 18, 20, 25, 30, 40)),
    ),
    (
        "music",
        "do you have (live |)music|when is the live music",
        "There is live music {v}.|Live music {v}.",
        "(Yes|Sure), there's live music {v}.",
        (
            "every Friday",
            "every Saturday",
            "on Sundays",
            "every Thursday night",
            "on Tuesdays",
            "on the first Monday",
            "every Wednesday evening",
            "once a month",
        ),
    ),
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
