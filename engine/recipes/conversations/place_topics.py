"""More of what callers ask a place, for practice calls alone.

The card's calls draw from `place_facts` and stay as they are; practice adds topics, wordings,
things that a prompt denies, and things that it is silent about.
"""

from __future__ import annotations

from .place_facts import PLACE_FACTS

# topic, questions, prompt sentence, reply, values of {v}: as PLACE_FACTS.
_MORE_TOPICS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    (
        "restroom",
        "(is there|do you have) a (restroom|bathroom|toilet)|where('s| is) the (restroom|toilet)",
        "The restroom is {v}.|Restrooms: {v}.",
        "(Yes, the|The) restroom is {v}.",
        ("upstairs", "downstairs", "at the back", "next to the counter", "by the entrance"),
    ),
    (
        "wheelchair",
        "(are you|is the place) (wheelchair accessible|accessible)|can i (come|get) in with a "
        "wheelchair|is there a ramp",
        "There is {v} for wheelchairs.|Wheelchairs: there is {v}.",
        "(Yes, there|There) is {v} for wheelchairs.",
        ("a ramp at the door", "an elevator", "a side entrance", "a lift at the back"),
    ),
    (
        "phone",
        "what('s| is) your (phone |)number|(can|could) i (get|have) your (phone |)number|"
        "which number can i call",
        "Our number is {v}.|Phone: {v}.|The phone number is {v}.",
        "(Our|The) number is {v}.",
        ("555 0142", "555 0187", "555 0119", "555 0163", "555 0155", "555 0108", "555 0191"),
    ),
    (
        "website",
        "(do you have|what('s| is)) (a|your) website|can i (look|find) you (up |)online",
        "The website is {v}.|Website: {v}.",
        "(Our|The) website is {v}.",
        tuple(f"{w} dot com" for w in ("mapleline", "bluedoor", "sunnyside", "oldmill", "redfox")),
    ),
    (
        "gift",
        "do you (sell|have|offer) gift cards|can i (buy|get) a (gift card|voucher)",
        "Gift cards {v}.|We sell gift cards: they {v}.",
        "(Yes, gift|Gift) cards {v}.",
        ("start at ten dollars", "cost twenty dollars", "are at the counter", "come by email"),
    ),
    (
        "wait",
        "how long (is the wait|do i have to wait|does it take)|is there a (long |)wait",
        "The wait is usually {v}.|It usually takes {v}.",
        "It usually takes {v}.|The wait is usually {v}.",
        ("ten minutes", "a quarter of an hour", "half an hour", "an hour", "five minutes"),
    ),
    (
        "walkin",
        "do i need (an appointment|a reservation|to book)|can i (just |)(walk|come) in",
        "Walk-ins are {v}.|Without a booking callers are {v}.",
        "Walk-ins are {v}.",
        ("welcome", "welcome before noon", "welcome on weekdays", "not possible"),
    ),
    (
        "insurance",
        "do you (take|accept) (my |)insurance|which insurance do you (take|accept)",
        "We accept {v} insurance.|Insurance: {v}.",
        "We accept {v} insurance.",
        ("most", "any private", "all public", "only private", "no"),
    ),
    (
        "languages",
        "(which|what) languages do you speak|do you speak (french|spanish|german)",
        "The staff speaks {v}.|We speak {v}.",
        "We speak {v}.",
        ("English and Spanish", "English and French", "English only", "English and German"),
    ),
    (
        "nuts",
        "(is there|are there|do you use) (any |)nuts|i have (a nut|an) allergy|what about "
        "allergies|(are|do) (they|the cakes) (contain|have) nuts",
        "Allergies: {v}.|About allergens: {v}.",
        "About allergens, {v}.",
        ("all cakes may contain nuts", "nothing contains nuts", "ask for the list"),
    ),
    (
        "smoking",
        "(can i|is it okay to|may i) smoke( there|)|is there a smoking area",
        "Smoking is {v}.",
        "Smoking is {v}.",
        ("not allowed", "allowed outside", "allowed on the terrace"),
    ),
    (
        "groups",
        "do you take (large |big |)groups|how big can a group be|can we come with (a|twenty) "
        "(group|people)",
        "Groups of up to {v} are welcome.|We take groups of up to {v}.",
        "Groups of up to {v} are welcome.",
        ("eight", "ten", "twelve", "fifteen", "twenty", "thirty"),
    ),
    (
        "catering",
        "do you (cater|do catering)|can you (cater|serve) (a party|our wedding|an office)",
        "Catering starts at {v}.|We cater from {v} on.",
        "(Yes, catering|Catering) starts at {v}.",
        ("ten people", "twenty people", "fifty dollars", "a hundred dollars"),
    ),
    (
        "bus",
        "which bus (do i take|stops there|goes there)|how do i get there by (bus|train)",
        "Bus {v} stops in front.|Take bus {v}.",
        "Take bus {v}.|Bus {v} stops in front.",
        ("12", "7", "31", "4", "19", "22", "58"),
    ),
    (
        "street",
        "what('s| is) (your|the) address|what street are you on|where exactly are you",
        "The address is {v}.|Address: {v}.|We are at {v}.",
        "(Our|The) address is {v}.|We're at {v}.",
        ("14 Mill Lane", "3 River Street", "27 Oak Avenue", "9 Station Road", "112 Hill Street"),
    ),
)
TOPICS = PLACE_FACTS + _MORE_TOPICS

# More wordings of a question, by topic of PLACE_FACTS.
WORDINGS = {
    "payment": "can i pay (with|using|by) (a |my |)(credit card|debit card|visa|phone|check|cash)|"
    "(do you|you) (accept|take) (visa|card|cards|apple pay|google pay|checks)|is it cash only|how "
    "do i pay|how (do|would|should) (i|we) pay|what can i pay with|(can|could) i pay cash|do i pay "
    "(cash|by card)|can i use (my |a )(card|credit card)|which cards do you (take|accept)",
    "parking": "(can|where do) i park( near you| there| my car| nearby|)|is there (a parking lot|"
    "somewhere to park|any parking|free parking)|do you have (any |)(parking|parking spaces)|"
    "where should i (park|leave my car)|what about parking",
    "wifi": "(is there|do you have|have you got) (free |any |)(wifi|internet)|can i use (the|your) "
    "(wifi|internet)|what's the password (for the wifi|of the wifi)|how do i get on the wifi",
    "dogs": "(can|could) i (bring|take) my (dog|puppy|cat|pet)( along| with me|)|are you dog "
    "friendly|do you (take|like|mind) dogs|is my dog welcome|what about (dogs|pets)",
    "delivery": "(can|could) you (bring|send) it (to me|to my house|over)|how much is delivery|do "
    "you do (deliveries|delivery)|can i get (it|that) delivered|is delivery free",
    "seating": "(can|could) (i|we) (eat|sit|be) outside|is there (a terrace|a garden|seating "
    "outside)|do you have a terrace|are there tables outside",
    "gluten": "(is|what's) (anything|something) (vegan|gluten free|vegetarian|dairy free)|do you "
    "have (any |)(vegan|gluten free|vegetarian|dairy free|sugar free|nut free) (options|food|"
    "things)|i('m| am) (vegan|vegetarian|lactose intolerant), what can i (have|eat)",
    "nearby": "where (exactly |)(is that|are you located|can i find you)|how do i get (there|to "
    "you)|what's your location|what are you near|whereabouts are you",
    "kids": "(can|may|could) i bring (my |)(kids|children|baby)|are you (good|okay) for (kids|"
    "children)|do (kids|children) get anything",
    "discount": "(is|are) there (any |)(discounts|deals|offers)|do (students|seniors) pay less|any "
    "discounts",
    "special": "what do you recommend|what's good today|is there anything special( today|)",
    "manager": "who runs the shop|can you tell me who the manager is|who's your boss",
    "music": "is there (any |)(live |)music( tonight|)|do bands play there",
    "founded": "how old is the (place|shop|business)|since when are you (there|open)",
    "floor": "what floor do i go to|do i have to take the stairs",
    "breakfast": "until when do you serve breakfast|can i still get breakfast",
}

# What a prompt denies: topic, its sentence, the reply, and the word that makes the reply right.
DENIALS: tuple[tuple[str, str, str, str], ...] = (
    ("parking", "There is no parking.|Parking: none.", "(Sorry|No), there is no parking.", "no"),
    (
        "delivery",
        "We do not deliver.|No delivery.",
        "(Sorry|No|I'm sorry), we don't deliver.",
        "don't deliver",
    ),
    ("wifi", "There is no wifi.|No wifi.", "(Sorry|No), there is no wifi.", "no wifi"),
    (
        "payment",
        "We do not take cards, only cash.|Cash only, no cards.",
        "(Sorry, we|We) take cash only.",
        "cash only",
    ),
    (
        "dogs",
        "No dogs.|Pets stay outside.|No pets, please.",
        "(Sorry|I'm sorry), no pets.",
        "no pets",
    ),
    (
        "seating",
        "There are no tables outside.",
        "(Sorry|No), there are no tables outside.",
        "no tables",
    ),
    ("discount", "There are no discounts.", "(Sorry|No), there are no discounts.", "no discounts"),
    (
        "gluten",
        "Nothing is gluten free or vegan.",
        "(Sorry|I'm sorry), nothing is gluten free or vegan.",
        "nothing",
    ),
    (
        "walkin",
        "Only with an appointment.|By appointment only.",
        "(Yes|Sorry), by appointment only.",
        "appointment only",
    ),
    ("gift", "We do not sell gift cards.", "(Sorry|No), we don't sell gift cards.", "don't sell"),
    ("smoking", "No smoking.", "(Sorry|No), no smoking.", "no smoking"),
    ("catering", "We do not cater.", "(Sorry|No), we don't cater.", "don't cater"),
)

# Things a place may have beside what it sells; a prompt never names these, so nobody knows.
AMENITIES = tuple(
    """high chairs;a playground;a private room;a fireplace;air conditioning;power outlets;a lost and
    found;newspapers;board games;an elevator;a bike rack;a charging station;a waiting room;a coat
    rack;a smoking area;a changing table;a loyalty card;a newsletter;a guest book;umbrellas;a
    piano;a television;a shuttle;lockers;a pool;a gym;a mailbox;a stage;a view;an app;a recycling
    bin;reusable cups;job openings;a refund policy;an invoice;a receipt;a rewards program;senior
    discounts;group rates;happy hour;a birthday deal;a family card""".replace("\n    ", " ").split(
        ";"
    )
)
# Kinds of food and drink that callers ask for by their common name.
COMMON_NAMES = tuple(
    """sandwich;salad;soup;pizza;burger;smoothie;milkshake;cookie;cake;pie;bagel;donut;muffin;
    croissant;scone;juice;tea;coffee;soda;beer;wine;cocktail;lemonade;water;wrap;taco;burrito;
    noodles;pasta;rice;steak;fish;fries;bread;toast;waffle;pancake;pudding;brownie;tart;espresso;
    cappuccino;latte;mocha;decaf;hot chocolate;ice cream;breakfast;lunch;salmon;chicken;sushi;curry
    """.replace("\n    ", "")
    .strip()
    .split(";")
)
COMMON_SERVICES = tuple(
    """root canal;crown;implant;x-ray;whitening;checkup;vaccination;surgery;haircut;perm;highlights;
    shave;manicure;massage;facial;tattoo;piercing;oil change;tire change;repair;inspection;wash;
    delivery;installation;consultation;lesson;rental;training;translation;engraving;fitting;
    alteration;dry cleaning;ironing;framing;printing;grooming;boarding;sharpening;pickup;upgrade
    """.replace("\n    ", "")
    .strip()
    .split(";")
)
