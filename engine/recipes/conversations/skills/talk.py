"""Call moves of any call: greetings, thanks, repeats, small talk, refusals, half turns."""

from __future__ import annotations

from collections.abc import Sequence

from ..call import Call
from ..lexicon import entries, is_held_out
from ..wording import expand

# Wordings of questions no agent here should answer, by template; a tenth is kept for evaluation.
_OFF_TOPIC = tuple(
    """what's the weather (like |)(today|tomorrow|in {t}|this weekend)~who won the (game|match|
    election|world cup|super bowl)( last night| yesterday|)~what's the capital of {t}~tell me a
    (joke|story|poem|riddle|fun fact)~(can|could) you (write|do) my
    (homework|essay|paper|resume)~what is {n} (times|plus|divided by|minus) {m}~what's the square
    root of {n}~who is the president of {t}~what do you think (about|of) (politics|the
    president|abortion|gun control|religion|taxes)~which stocks should i buy~should i (invest
    in|buy) (bitcoin|gold|stocks|crypto)~i have a (headache|fever| rash|cough), what should i
    take~what (medicine|pills) should i take for (pain|my back|a cold)~is it safe to (mix|take)
    (aspirin|ibuprofen) (with|and) alcohol~(can|could) you (write|fix) (some|my)
    (code|python|program|software)~how do i (fix|repair) my (car|sink|computer|phone|washing
    machine)~translate (hello|good morning|thank you) (to|into)
    (french|spanish|german|chinese)~how do you say (thank you|goodbye|cheese) in
    (french|spanish|german|italian)~how far is the moon~how old is the (universe|earth|sun)~when
    did (world war two|the civil war) end~who (wrote|directed|painted| invented) (hamlet|the
    telephone|star wars|the mona lisa|harry potter)~what's the (news|stock price| exchange rate)(
    today|)~play (some |)(music|jazz|a song)~call my (mother|brother|boss|wife| friend)~send (a
    text|an email|a message) to my (boss|wife|sister|friend)~what's my horoscope( today| )~what
    are the lottery numbers~how do i (get rich|lose weight|learn guitar|quit smoking)~(can you
    |)(help me |)(sue|with suing) my (neighbor|landlord|boss)~do i need a lawyer~how many people
    live in {t}~what language do they speak in {t}~how tall is (the eiffel tower|mount
    everest|lebron james)~ what's the best (phone|car|laptop|movie)( to buy|)~who would win, a
    (lion|bear|shark) or a (tiger| wolf|gorilla)~what's the meaning of life~are you
    (single|married|in love)~will you (marry|date) me~ what happens after we die~how (do i|to)
    make a (bomb|cake from scratch|paper plane)~spell (encyclopedia|onomatopoeia|rhythm)~how many
    (ounces|grams|feet|inches) in a (pound|cup|mile| yard)~what year was (lincoln|einstein|mozart)
    born~(book|find) me a flight to {t}~what's on tv tonight~remind me to (call mom|buy milk|take
    my pills)~tell me about (quantum physics|dinosaurs|the romans|black holes)~how do
    (planes|engines|magnets|computers) work~what time is it in {t}~who is (taylor swift|elon
    musk|beyonce|albert einstein)~do aliens exist~what should i (name my (dog|cat|baby)|wear
    today)""".replace("\n    ", " ").split("~")
)
# More of what callers ask an agent about itself, for training only.
_PERSONAL = entries("personal")
_FAR_PLACES = entries("far_places")
_FRAGMENTS = entries("fragments")
_REFUSALS = (
    "(I'm sorry|Sorry), (but |)I can't help with that. {r}",
    "(I'm afraid|Sorry,) that's (outside what I do|not something I can help with). {r}",
    "(I'm sorry|Sorry), I (only|can only) help with {s}. {r}",
    "I'm (not able to|afraid I can't) (answer|help with) that(, but I can help with {s}|). {r}",
    "(Sorry|I'm sorry), I don't know about that. {r}",
    "That's (beyond me|not my area), (sorry|I'm afraid). {r}",
)
_REDIRECTS = {
    "food": "(Would you like to order something?|Can I (get|bring) you something?|What (can|may) I "
    "get you?|Would you like to hear the menu?)",
    "hotel": "(Would you like to book a room?|Can I help with a booking?)",
    "ride": "(Do you need a ride?|Where would you like to go?)",
    "cinema": "(Would you like tickets?|Which film would you like to see?)",
    "salon": "(Would you like to book an appointment?|Can I help with an appointment?)",
}


def off_topic_question(call: Call) -> str:
    """One out-of-scope question; training and evaluation use different templates."""
    rng = call.rng
    while True:
        personal = not call.held_out and rng.random() < 0.12
        template = rng.choice(_PERSONAL if personal else _OFF_TOPIC)
        if is_held_out(template) == call.held_out:
            return expand(
                rng,
                template,
                t=rng.choice(_FAR_PLACES),
                n=str(rng.randint(2, 99)),
                m=str(rng.randint(2, 99)),
            )


def refuse(call: Call, questions: Sequence[str] = ()) -> None:
    """An out-of-scope question is declined and the caller led back. `questions`: real ones."""
    rng = call.rng
    use_real = bool(questions) and rng.random() < 0.6
    text = rng.choice(questions) if use_real else off_topic_question(call)
    call.user("{q}", q=text.rstrip(".?"))
    place = call.place
    scope = place.scope if place else "the lights and devices at home"
    redirect = (
        "(What (else |)can I (do for you|help with)?|(How|What else) can I help you with?|Is "
        "there anything (else |)I can (do|help with)?)"
    )
    if place and rng.random() < 0.75:
        redirect = _REDIRECTS["food" if place.sells_food else place.kind]
    call.agent(
        rng.choice(_REFUSALS).replace("How can I help you with", "How can I help"),
        kind="refusal",
        r=expand(rng, redirect).replace("How can I help you with", "How can I help you"),
        s=scope,
    )


def greet(call: Call) -> None:
    place = call.place
    assert place is not None
    call.user(
        "hello|hi|hi there|good (morning|afternoon|evening)|hey|hello there|hi {a}|hello is "
        "anyone there|hey there",
        a=place.agent,
    )
    call.agent(
        "(hello|hi|hi there|welcome|good day|hello there)(,|!) (this is {a} (at|from) {n}. |"
        "welcome to {n}. |{n}, {a} speaking. |you've reached {n}. |)(how|what) can i (help|do "
        "for) you( today|)?".replace(
            "(how|what) can i (help|do for) you", "(how can i help (you|)|what can i do for you)"
        ),
        a=place.agent,
        n=place.name,
    )


def small_talk(call: Call, pairs: Sequence[tuple[str, str]]) -> None:
    """A pair of the chit-chat data, or how-are-you."""
    rng = call.rng
    if not pairs or rng.random() < 0.35:
        call.user(
            "how are you( doing|)( today|)|how's it going|how's your day|are you well|you okay|"
            "how have you been"
        )
        call.agent(
            "(i'm|i am) (doing |)(very |)(well|great|good|fine), (thank you|thanks)( for "
            "asking|). (how can i help( you|)|what can i (get|do for) you)?"
        )
        return
    question, answer = rng.choice(pairs)
    call.user("{q}", q=question.rstrip(".?"))
    call.reply(
        answer
        + (
            rng.choice((" How can I help?", " What can I do for you?"))
            if rng.random() < 0.4 and not answer.endswith("?")
            else ""
        )
    )


def thanks(call: Call) -> None:
    call.user(
        "thanks|thank you|thank you (so|very) much|thanks a lot|great, thanks|okay thank you|"
        "perfect, thank you|cool|awesome thanks|that's great|okay great|thanks {a}",
        a=call.place.agent if call.place else "",
    )
    call.agent(
        "(you're welcome|my pleasure|no problem|happy to help|of course|any time)(!|.|.)( (is "
        "there |)anything else( i can (do|help with)|)?| (can|may) i help with anything "
        "else?|)"
    )


def goodbye(call: Call) -> None:
    """The end of a call."""
    place = call.place
    call.user(
        "bye|goodbye|(okay|alright|great), bye|(no|nope)(,|) that's (all|it)( thanks| thank "
        "you|)(, bye|)|that's all (for today|i needed|thank you)|thanks(,|) bye|(no|) thank you "
        "(very much|) goodbye|see you( later|)|have a (good|nice|great) (day|one|evening)|thank "
        "you goodbye|that'll be all|talk to you later|take care|i'm good thanks bye"
    )
    call.agent(
        "(thank you|thanks) for calling( {n}|)(.|!) (have a (great|nice|good|lovely) (day|one)|"
        "goodbye|see you soon|take care|bye)(.|!)|(goodbye|bye|you're welcome)(,|!) (and |)"
        "(have a (great|nice|lovely) day|see you soon|take care)(.|!)",
        n=place.name if place else "",
    )


def repeat(call: Call) -> None:
    """Say the last reply again."""
    last = call.last_reply()
    if not last:
        return
    call.user(
        "(can|could|would) you (please |)(repeat|say) that( again|)( please|)|(sorry|pardon|"
        "excuse me)(, what (was that|did you say)|)|what did you (just |)say|say (that|it) "
        "again( please|)|i didn't (catch|get|hear) that|what|one more time please|come again"
    )
    lead = call.rng.choice(
        ("Sure. ", "Of course. ", "I said: ", "Sure, I said: ", "No problem. ", "")
    )
    call.reply(lead + last)


def half_turn(call: Call) -> None:
    """A turn that stops in the middle or is not understood."""
    form = call.rng.randrange(3)
    if form == 0:
        call.user(
            "i'd like (a|the|some|to)|can i (get|have)( a|)|i want to (book|order|ask)|(and|"
            "could i) get a|do you have (a|any)|i was (wondering|thinking)( if| about|)|i need "
            "(a|to)|my (number|name) is|what (about|is) the|how much is( the|)",
            exact=True,
        )
        call.messages[-1]["content"] = call.messages[-1]["content"].rstrip(".?")
        call.agent(
            "(sure|of course|okay|yes|alright), (go ahead|i'm listening|what would you like|"
            "please go on|take your time)(.|.|.)"
        )
    elif form == 1:
        call.user(
            "um|uh|hmm|let me (see|think)|one (second|moment)|hold on|wait( a second| a moment|)|"
            "give me a (second|minute)|just a (second|moment)",
            exact=True,
        )
        call.agent(
            "(sure|of course|no problem|okay)(,|.) take your time.|(no rush|take your time)"
            "(.|, i'm here.)|(sure|okay), i'll wait."
        )
    else:
        words = [
            call.noise.clean(w, call.rng)
            for w in call.rng.sample(
                _FRAGMENTS,
                call.rng.randint(1, 4),
            )
        ]
        call.user("{w}", w=" ".join(words), exact=True)
        call.agent(
            "(sorry|i'm sorry|pardon), i didn't (catch|get|understand) that. (could|can) you "
            "(say (it|that) again|repeat that)( please|)?|(sorry, |)could you (say|repeat) that"
            "( again|)( please|)?"
        )


def interrupted(call: Call) -> None:
    """Cut the last reply where the caller broke in; the next turn starts like an interruption."""
    index = len(call.messages) - 1
    if index < 1 or call.messages[index]["role"] != "assistant":
        return
    words = str(call.messages[index]["content"]).split()
    if len(words) < 6:
        return
    keep = call.rng.randint(2, len(words) - 2)
    call.messages[index]["content"] = " ".join(words[:keep]).rstrip(",")
    call.unlearned.add(index)
    call.checks = [check for check in call.checks if check.index != index]
    call.pending_prefix = call.rng.choice(
        (
            "Actually,",
            "Wait,",
            "Stop,",
            "Sorry,",
            "Okay okay,",
            "No,",
            "Hold on,",
            "Excuse me,",
            "Actually stop,",
            "Yeah but",
            "Right, but",
            "One second,",
            "Never mind that,",
            "",
        )
    )
