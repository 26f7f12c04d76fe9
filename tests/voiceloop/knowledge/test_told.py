"""Which sentence of an agent's instructions answers a question, and which questions are a model's.

The business is of these tests alone: `benchmarks/strangers.py` measures on others.
"""

from time import process_time

import pytest

from tests.tables import each_row
from voiceloop.knowledge.hours import hours_on, opening_hours
from voiceloop.knowledge.told import DONT_HAVE, DONT_KNOW, line_of, quoted

SHOP = (
    "You are Tomas, the voice assistant of Wheelhouse, a bicycle shop. You help callers with "
    "repairs. We are open Tuesday to Friday from 10 am to 6 pm, Saturday from 9 am to 1 pm and "
    "closed on Sunday and Monday. You find us on River Road, behind the mill. Prices: a puncture "
    "$15, a tune-up $60, new brake pads $22. A tune-up takes two days. We do not repair scooters. "
    "Mr. Adler builds the wheels. Used bikes come with a warranty of six months. If you do not "
    "know something, say so. Answer in short sentences."
)
TOOLS = "repair status How far a repair is."


@each_row(
    ("asked", "said"),
    [
        ("What's your name?", "I'm Tomas."),
        ("how much is a tune-up", "A tune-up: $60."),
        ("What do new brake pads cost?", "New brake pads: $22."),
        ("How long does a tune-up take?", "A tune-up takes two days."),
        ("okay and are you open on monday", "No, we're closed on Monday."),
        ("Are you open on Saturday?", "Yes, on Saturday we're open from 9 am to 1 pm."),
        ("Are you closed on Monday?", "Yes, we're closed on Monday."),
        ("Do you close on Saturday?", "No, on Saturday we're open from 9 am to 1 pm."),
        ("When do you close on Wednesday?", "On Wednesday we're open from 10 am to 6 pm."),
        ("Where are you?", "You find us on River Road, behind the mill."),
        ("Do you repair scooters?", "We do not repair scooters."),
        ("Who builds the wheels?", "Mr Adler builds the wheels."),
        ("Do used bikes have a warranty?", "Used bikes come with a warranty of six months."),
        ("What prices do you have?", None),
        ("Do you sell helmets?", DONT_HAVE),
        ("Who is the president of France?", DONT_KNOW),
    ],
)
def test_a_question_gets_the_sentence_that_answers_it(asked: str, said: str | None) -> None:
    found = quoted(asked, SHOP, TOOLS)
    assert found == said if said is not None else found is not None and "$15" in found


@each_row(
    "asked",
    [
        "How far is my repair?",  # a tool's
        "Can you repeat that?",
        "How are you?",
        "I'd like a tune-up on Friday, please.",  # asks nothing
        "Could I have a tune-up please?",  # an order
        "Okay, can we get two new brake pads?",
        "How much is it?",  # of what was said before
        "My bike makes a strange sound when I ride it up the hill behind our house in the rain?",
        "",
    ],
)
def test_what_is_the_models_stays_the_models(asked: str) -> None:
    assert quoted(asked, SHOP, TOOLS) is None


@each_row(
    "asked",
    [
        "When do you close on Sunday?",
        "Could we come for four on Tuesday at 10:30 am?",
        "have you got anything on friday for two people",
        "What's the total for three lattes and a bagel?",
        "how much are a cold brew and two toasts",
    ],
)
def test_what_a_tool_may_know_is_not_denied(asked: str) -> None:
    sells = "You are Tom. We sell: latte, bagel and cold brew."
    tools = "get hours When we are open. check slot Is a slot free."
    assert quoted(asked, sells, tools, prices="get total.", knows_prices=False) is None


def test_an_agent_with_documents_may_know_what_its_instructions_do_not_say() -> None:
    assert quoted("Do you sell helmets?", SHOP, knows_all=False) is None


LENDS = (
    "You are Mara at Lindwood, a town library. You find us on Elm Square. Books are lent for three "
    "weeks. You can pay in cash only. A tour takes 90 minutes. Tours are ordered two days ahead. "
    "Guests are at least sixteen years old. Headphones are free. We sell postcards and maps. Open "
    "every day from 9 am to 8 pm."
)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("Where is the library?", "You find us on Elm Square."),
        ("How long can I keep a book?", "Books are lent for three weeks."),
        ("Can I pay by card?", "You can pay in cash only."),
        ("How far ahead do I order a tour?", "Tours are ordered two days ahead."),
        ("How old must I be?", "Guests are at least sixteen years old."),
        ("Do headphones cost extra?", "Headphones are free."),
        ("Do you sell postcards?", "We sell postcards and maps."),
        ("When do you close on Sunday?", "On Sunday we're open from 9 am to 8 pm."),
        ("How long does a tour take?", "A tour takes 90 minutes."),  # a tool has its price alone
    ],
)
def test_what_is_asked_in_other_words_than_it_is_told(asked: str, said: str) -> None:
    assert quoted(asked, LENDS, prices="get price Price of one item. tour") == said


CINEMA = (
    "You are Ina at the Globe, a cinema.\n- Opening hours: on weekdays ten in the morning-four "
    "fifteen in the afternoon, weekends closed\n- Menu: popcorn - $4, iced tea - 3 dollars 50\n- "
    "Films: The Well at 8 pm\n- Children sit in front\n- It is Friday.\n- In business since 1961\n"
    "- Cancellation is free until noon"
)


@each_row(
    ("asked", "said"),
    [
        ("i'd like to know the hours on monday", "On Monday we're open from ten in the morning to "
            "four fifteen in the afternoon."),
        ("i was wondering if you're open on sunday", "No, we're closed on Sunday."),
        ("Could you tell me where kids sit?", "Children sit in front"),
        ("Tell me a joke.", DONT_KNOW),
        ("Do you know who won the game?", DONT_KNOW),
        ("right but are you guys open tomorrow", "No, we're closed on Saturday."),
        ("and the uh iced tea how much is is it", "Iced tea: 3 dollars 50."),
        ("stop can you read me the menu", "We have popcorn and iced tea."),
        ("What do you have?", "We have popcorn and iced tea."),
        ("Have you got popcorn?", "Yes. Popcorn: $4."),
        ("do you do hot dogs", DONT_HAVE),
        ("is there a noodle bowl", DONT_HAVE),
        ("How long have you been in business?", "In business since 1961"),
        ("where do kids sit", "Children sit in front"),
        ("can i cancel", "Cancellation is free until noon"),
        ("who is the president of france", DONT_KNOW),
        # The model's: of the call, of tonight, of a kind of things, of what was asked before.
        ("What was the number?", None),
        ("Can you read my number back?", None),
        ("Which films are on tonight?", None),
        ("what sweets have you got", None),
        ("And the other one?", None),
        ("what about the pretzel", None),
        ("Under Willa, please?", None),
        ("what does it cost", None),
    ],
)  # fmt: skip
def test_a_list_of_lines_and_spoken_questions(asked: str, said: str | None) -> None:
    assert quoted(asked, CINEMA) == said


GARDEN = (
    "You answer the phone at Greenleaf, a garden centre.\n- Roses: $12\n- Lavender: $5\n"
    "- Delivery within ten miles is $15,\n  on Mondays alone\nOpening times: Tuesday to Friday 8 "
    "am to 6 pm and Saturday until noon. If it is Monday, seeds are half price. Courses run on the "
    "first Saturday of the month. The manager is Joan Price."
)


@each_row(
    ("asked", "said"),
    [
        ("How much is delivery?", "Delivery within ten miles is $15, on Mondays alone"),
        ("When are you open on Saturday?", "Opening times: Tuesday to Friday 8 am to 6 pm and "
            "Saturday until noon."),
        ("When are you open tomorrow?", "Opening times: Tuesday to Friday 8 am to 6 pm and "
            "Saturday until noon."),
        ("Who is the manager?", "The manager is Joan Price."),
        ("What options are there for delivery?", None),
        ("What options do you have?", "We have roses and lavender."),
        ("When did you open?", None),
        ("Have a nice evening.", None),
        ("How are you doing today?", None),
        ("Are you a bot?", None),
    ],
)  # fmt: skip
def test_what_stands_beside_the_answer_is_not_taken_for_it(asked: str, said: str | None) -> None:
    assert quoted(asked, GARDEN) == said


def test_of_a_long_list_seven_are_named() -> None:
    things = "tea cake soup rolls pie milk plums eggs rice".split()
    menu = ", ".join(f"{thing} - ${price}" for price, thing in enumerate(things, 1))
    said = quoted("What do you have?", f"You answer for a stall. Menu: {menu}.")
    assert said == "We have tea, cake, soup, rolls, pie, milk, plums and more."


def test_nobody_is_told_that_there_are_no_nuts_and_no_ramp() -> None:
    assert quoted("Are there any nuts?", SHOP) == DONT_KNOW
    assert quoted("Do you have wheelchair access?", SHOP) == DONT_KNOW


SWEEPS = (
    "You are Ned, the voice assistant of Mill Street Sweeps. We come Monday to Saturday between 7 "
    "am and 3 pm. A visit takes an hour. We pay for what we break."
)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("Where are you?", None),  # its name has a street
        ("How can I pay?", None),  # it pays, and nothing says how callers do
        ("What are your hours?", "We come Monday to Saturday between 7 am and 3 pm."),
        ("Do you come on Sunday?", "No, we're closed on Sunday."),
    ],
)
def test_a_sentence_of_another_subject_is_not_said(asked: str, said: str | None) -> None:
    assert quoted(asked, SWEEPS) == said


def test_the_days_are_told_where_no_time_is() -> None:
    drive_in = "You are Kim. We are open Thursday to Sunday, also in rain. Bring a blanket."
    assert quoted("Are you open on Friday?", drive_in) == "Yes, on Friday we're open."
    assert quoted("Are you open on Monday?", drive_in) == "No, we're closed on Monday."


def test_a_price_that_stands_nowhere_is_not_known_unless_a_tool_may_know_it() -> None:
    assert quoted("How much is a saddle?", SHOP, TOOLS) == DONT_KNOW
    assert quoted("How much are the wheels?", SHOP, TOOLS) == DONT_KNOW  # named, without a price
    assert quoted("How much are the wheels?", SHOP, TOOLS, prices="Price of wheels") is None
    assert quoted("How much do you sell pads for?", SHOP, TOOLS) is None  # of brakes, perhaps
    assert quoted("How much is a saddle?", SHOP, TOOLS, knows_prices=False) is None
    assert quoted("How much is a saddle?", SHOP, TOOLS, knows_all=False) is None


@pytest.mark.parametrize(
    ("day", "text", "hours"),
    [
        ("monday", "Open Monday and Tuesday from 9 am to noon.", "from 9 am to noon"),
        ("friday", "Closed Friday to Sunday, else open daily from 8 am to 4 pm.", None),
        ("sunday", "From 9:30 am to 5 pm Monday to Saturday.", None),
        ("tuesday", "We work 9 am to 5 pm, Monday to Friday.", "from 9 am to 5 pm"),
        ("sunday", "Closed on Saturday and Sunday.", None),
        ("tuesday", "Open Monday and Tuesday closed, Sunday 9 am-2 pm.", None),
        ("tuesday", "Monday closed and Tuesday to Sunday 9 am-2 pm.", "from 9 am to 2 pm"),
        ("friday", "Open Thursday from 10 am to 7 pm, closed Friday to Sunday.", None),
        ("sunday", "Open weekdays 6 am to 2 pm, on weekends 7 am-3:45 pm.", "from 7 am to 3:45 pm"),
        ("monday", "Open Tuesday to Sunday from 9 am to 6 pm; on Monday the lifts rest.", None),
        ("monday", "Open Monday to Friday from 9 am to 6 pm, closed Sunday.", "from 9 am to 6 pm"),
        ("friday", "Open Monday to Friday from 9 am to 6 pm, Sundays closed.", "from 9 am to 6 pm"),
        ("sunday", "Open Monday to Friday from 9 am to 6 pm, Sundays closed.", None),
        ("monday", "We come Monday to Friday between 7 am and 3 pm.", "between 7 am and 3 pm"),
        ("friday", "We are open Thursday to Sunday, also in rain.", ""),
        ("monday", "Open daily except Monday from 10 am to 4 pm.", None),
        ("tuesday", "Open daily except Monday from 10 am to 4 pm.", "from 10 am to 4 pm"),
    ],
)
def test_the_hours_of_a_day(day: str, text: str, hours: str | None) -> None:
    assert hours_on(day, text) == hours


@each_row(
    ("asked", "sentences", "said"),
    [
        ("are you open on sunday", ("Open daily from 9 am to 5 pm.", "We are closed on Sundays."),
         "No, we're closed on Sunday."),
        ("can i come on friday", ("There are no tours on Monday.", "Open daily 10 am to 4 pm."),
         "Yes, on Friday we're open from 10 am to 4 pm."),
        ("are you open on friday", ("There are no tours on Monday.",), None),
        ("when are you open on tuesday",
         ("Open daily from 8 am to 5 pm.", "Deliveries come on Tuesday between 6 am and 7 am."),
         "On Tuesday we're open from 8 am to 5 pm."),
        ("are you open on monday", ("Open Friday and Saturday.",), "No, we're closed on Monday."),
        ("when are you open on friday", ("Open Friday and Saturday.",), None),
        ("what are your hours", ("Open Friday and Saturday.",), None),
    ],
)  # fmt: skip
def test_the_sentence_of_a_day_tells_of_it_and_no_other(
    asked: str, sentences: tuple[str, ...], said: str | None
) -> None:
    assert opening_hours(asked.split(), sentences) == said


@pytest.mark.parametrize(
    ("result", "line"),
    [
        ('{"slots": "10 am"}', "Slots: 10 am."),
        ('{"price": "$90", "lasts_min": 30}', "Price: $90. Lasts min: 30."),
        ('{"error": "no such day"}', None),
        ('{"slots": ["10 am"]}', None),
        ("{}", None),
        ("10 am", None),
    ],
)
def test_a_short_result_is_said_as_it_stands(result: str, line: str | None) -> None:
    assert line_of(result) == line


def test_one_value_is_said_with_what_it_was_asked_of() -> None:
    error = '{"error": "not on the menu"}'
    assert line_of(error, "soup", is_authors=True) == "Soup: not on the menu."
    assert line_of('{"price": "$90"}', "cleaning") == "Cleaning: $90."
    assert line_of('{"state": "ready"}', "4711") == "State: ready."
    assert line_of('{"price": "$90", "lasts": 30}', "cleaning") == "Price: $90. Lasts: 30."


def test_long_instructions_of_a_client_are_read_in_no_time() -> None:
    long = "You are Tom. It is " + 2000 * "what you pay for " + "."
    began_s = process_time()
    assert quoted("Can I pay by card?", long) is None
    assert process_time() - began_s < 1.0  # of 12 ms: each word was a beginning, which took 20 s
