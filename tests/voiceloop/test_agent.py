"""The agent file: every value is checked at the start, and its tools answer as it says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from audio.tts import hibari_model
from audio.tts.espeak import EspeakVoice
from tests.tables import each_row
from voiceloop.agent import AgentConfig, AgentTool
from voiceloop.agent_file import embedded_agent, load_agent, shipped_agents
from voiceloop.capabilities import OPENAI_VOICES
from voiceloop.config import Config
from voiceloop.errors import ConfigError
from voiceloop.knowledge.answers import ApprovedAnswers
from voiceloop.knowledge.documents import read_folder
from voiceloop.knowledge.index import KnowledgeIndex
from voiceloop.knowledge.passages import passages_of
from voiceloop.models import resolve
from voiceloop.models.catalog import ESPEAK, HIBARI
from voiceloop.models.presets import resolve_agent
from voiceloop.realtime.settings import SemanticVad
from voiceloop.reply.answerers import Heard, SaidWithCall
from voiceloop.reply.answers.call import answer
from voiceloop.slots.form import Form
from voiceloop.tools.call_tools import Act, with_call_tools

SLOT = "[[slots]]\nasked = 'what'\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_the_embedded_agent_is_whole() -> None:
    agent = embedded_agent()
    assert agent.name == "Ava" and agent.greeting.startswith("Hi, this is Ava at Juniper Cafe.")
    assert "\n" not in agent.instructions
    settings = agent.session_settings()
    assert settings.turn_detection == SemanticVad(eagerness="auto")
    assert settings.instructions == agent.instructions
    assert agent.crisis.answers("I just WANT to  die") and not agent.crisis.answers("a latte")


EXAMPLE = Path(__file__).resolve().parents[2] / "voiceloop" / "agents" / "pizzeria.toml"


def test_the_example_with_tools_answers_from_its_file() -> None:
    agent = load_agent(EXAMPLE)
    price, hours = agent.tools
    assert price.answer('{"item": "Pepperoni pizza"}') == '{"price": "$11.00"}'
    assert price.answer('{"item": "sushi"}') == '{"error": "not on the menu"}'
    assert hours.answer('{"day": "monday"}') == '{"hours": "11 am to 10 pm"}'


@pytest.mark.parametrize(
    ("said", "is_connected"),
    [
        ("Can I speak to a person, please?", True),
        ("I want to talk to somebody", True),
        ("Please connect me", True),
        ("Are you a real person?", False),
        ("I gave the form to someone yesterday", False),
        ("Is the reception open on Sunday?", False),
    ],
)
def test_the_clinic_connects_who_asks_for_a_person_and_no_one_else(
    said: str, is_connected: bool
) -> None:
    agent = with_call_tools(
        load_agent(EXAMPLE.with_name("clinic.toml")), frozenset(Act), lambda to: True
    )
    answered = answer(Heard(said, (), agent, Form(), ApprovedAnswers()))
    assert isinstance(answered, SaidWithCall) == is_connected


SHOP = 'name = "shop"\nurl = "https://shop.test/mcp"\ntools = ["search"]\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[[mcp]]\nname = "shop"\ntools = ["*"]', "expected url or command, found neither"),
        (f'[[mcp]]\n{SHOP}command = ["run"]', "expected url or command, found both"),
        ('[[mcp]]\nname = "shop"\nurl = "https://shop.test/mcp"', "mcp[0].tools: expected names"),
        (f'[[mcp]]\n{SHOP}environment = {{ A = "b" }}', "mcp[0].environment: expected command"),
        (f"[[mcp]]\n{SHOP}[[mcp]]\n{SHOP}", "mcp[0].name: expected each name once"),
        (
            '[[tools]]\nname = "a"\nmcp = "shop"',
            "tools[0].mcp: expected the name of one of",
        ),
        (f"[[mcp]]\n{SHOP}headers = {{ key = 1 }}", "mcp[0].headers.key: expected a string"),
    ],
)
def test_an_mcp_server_says_where_it_is_and_what_it_may_offer(
    tmp_path: Path, text: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        load_agent(write(tmp_path / "agent.toml", text))
    whole = write(tmp_path / "agent.toml", f"[[mcp]]\n{SHOP}")
    assert load_agent(whole).mcp[0].tools == ("search",)


@pytest.mark.parametrize(
    ("name", "tools"),
    [
        ("pizzeria", ["get_price", "get_opening_hours", "book"]),
        ("dentist", ["get_price", "find_free_slots", "book_appointment"]),
    ],
)
def test_the_tool_that_an_example_shows_in_a_comment_is_the_clients(
    name: str, tools: list[str], tmp_path: Path
) -> None:
    text = EXAMPLE.with_name(f"{name}.toml").read_text(encoding="utf-8")
    agent = load_agent(write(tmp_path / "a.toml", re.sub(r"(?m)^# (?=\[|\w+ = )", "", text)))
    assert [tool.name for tool in agent.tools] == tools
    assert agent.tools[-1].answer("{}") is None


TOOL = """
[[tools]]
name = "get_opening_hours"
description = "Opening hours of a day."
side_effect_free = true
[tools.parameters]
type = "object"
properties = { day = { type = "string" } }
[tools.result]
monday = "9 to 5"
"*" = "closed"
"""


OF_A_DAY = {"type": "object", "properties": {"day": {"type": "string"}}}


def test_a_tool_of_the_agent_file_answers_by_table(tmp_path: Path) -> None:
    agent = load_agent(write(tmp_path / "a.toml", TOOL))
    tool = agent.tool("get_opening_hours")
    assert tool is not None and tool.side_effect_free
    assert tool.answer('{"day": "Monday"}') == "9 to 5"
    assert tool.answer('{"day": "Sunday"}') == "closed"
    assert tool.answer("not json") == "closed"
    assert agent.session_settings().tools[0].parameters["properties"] == {"day": {"type": "string"}}


def test_a_tool_without_an_answer_is_the_clients() -> None:
    assert AgentTool("book").answer("{}") is None
    assert AgentTool("hours", result="9 to 5").answer("{}") == "9 to 5"
    missing = AgentTool("hours", parameters=OF_A_DAY, result={"monday": "9"}).answer("{}")
    assert missing == '{"error": "nothing known for day None"}'


@each_row(("text", "words"), [
    ("greting = 'x'", "the nearest is 'greeting'"),
    ("speed = 9.0", "speed: expected 0.25 to 1.5, found 9"),
    ("instructions = ' '", "instructions: expected a text"),
    ("eagerness = 'very'", "eagerness: expected one of auto, low, medium, high"),
    ("[barge_in]\nspeaker = 3", "found 'barge_in.speaker'; the nearest is 'speakers'"),
    ("[tools.a]\nname = 'a'", "tools: expected a list: [[tools]], found {'a'"),
    ("[[tools]]\ndescription = 'x'", "tools[0].name: expected a value, found nothing"),
    ("[[tools]]\nnam = 'x'", "found 'tools[0].nam'; the nearest is 'name'"),
    ("[[tools]]\nname = 'x'\nparams = {}", "found 'tools[0].params'; the nearest is 'parameters'"),
    ("hotwords = 'latte'", "hotwords: expected a list"),
    ("[[tools]]\nname = 'a'\nurl = 'http://a'\nheaders = 'Bearer key'",
     "tools[0].headers: expected a table, found another value"),
    ("hotwords = ['latte', ' ']", "hotwords[1]: expected words, found ' '"),
    ("try_saying = ['']", "try_saying[0]: expected words, found ''"),
    (f"try_saying = {['hi'] * 7}", "try_saying: expected at most 6 sentences, found 7"),
    (f"try_saying = ['{'a' * 101}']", "try_saying[0]: expected at most 100 characters, found 101"),
    ("voice = ''", "voice: expected the name of a voice, found ''"),
    ("language = 'english!'", "language: expected a language like en or de-AT"),
    ("[limits]\nmax_reply_tokens = -3", "limits.max_reply_tokens: expected 1 to 4096, found -3"),
    ("[limits]\ntemperature = -3", "limits.temperature: expected 0 to 2, found -3"),
    ("[limits]\ntemperature = nan", "limits.temperature: expected 0 to 2, found nan"),
    ("[barge_in]\nleast_words = 0", "barge_in.least_words: expected 1 to 100, found 0"),
    ("[[answer]]\nquestions = ['when']", "answer[0].text: expected a value, found nothing"),
    ("[[answer]]\nquestions = ['?']\ntext = 'x'", "answer[0].questions[0]: expected words"),
    ("[[slots]]\nasked = ' '\nkind = 'phone'", "slots[0].asked: expected words, found ' '"),
    (SLOT + "kind = 'date'\ndigits = 3", "slots[0].digits: expected a slot of kind 'number', "),
    (SLOT + "kind = 'phone'\ndigits = 41", "slots[0].digits: expected 1 to 40, found 41"),
    (SLOT + "kind = 'choice'\nvalues = ['a']", "slots[0]: expected a name beside values"),
    (SLOT + "kind = 'phone'\nname = 'a b'", "slots[0].name: expected 1 to 64 letters"),
    (SLOT + "kind = 'open'\nname = 'x'", "slots[0].kind: expected one of phone, number, "),
    ("language = 'de'\n" + SLOT + "kind = 'name'\nname = 'x'",
     "slots[0].name: expected an agent that speaks English, found language 'de'"),
    (SLOT + "kind = 'name'\nread_back = 'It is {value}, right?'",
     "slots[0]: expected a name beside read_back, found none"),
    (SLOT + "kind = 'name'\nname = 'x'\nread_back = 'Right?'",
     "slots[0].read_back: expected a text with {value}"),
    (SLOT + "kind = 'choice'\nname = 'x'", "slots[0].values: expected 1 to 50 of them, found 0"),
    (SLOT + "kind = 'name'\nname = 'x'\nvalues = ['a']", "slots[0].values: expected none"),
    (SLOT + "kind = 'choice'\nname = 'x'\nvalues = ['?']", "slots[0].values[0]: expected words"),
    ("[crisis]\nwords = ['help']", "crisis.answer: expected a text beside crisis.words"),
])  # fmt: skip
def test_a_wrong_agent_file_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_agent(write(tmp_path / "a.toml", text))
    assert words in caught.value.message


@each_row(("fields", "words"), [
    ("name = 'a b'", "tools[0].name: expected 1 to 64 letters, digits, _ or -, found 'a b'"),
    ("name = 'x'\n[[tools]]\nname = 'x'",
     "tools[1].name: expected each name once, found 'x' twice"),
    ("name = 'x'\nfrom_slots = ['phone']",
     "tools[0].from_slots: expected names of [[slots]], found 'phone'"),
    ("name = 'x'\nfrom_slots = ['it']\n" + SLOT + "kind = 'name'\nname = 'it'",
     "tools[0].from_slots: expected parameters of 'x' of type string, found 'it'"),
    ("name = 'x'\nfrom_slots = ['it']\n[tools.parameters]\ntype = 'object'\n"
     "[tools.parameters.properties.it]\ntype = 'integer'\n" + SLOT + "kind = 'number'\nname = 'it'",
     "tools[0].from_slots: expected parameters of 'x' of type string, found 'it'"),
    ("name = 'x'\nsay = 'One moment.'", "tools[0].say: expected words, of a tool with url, "),
    ("name = 'x'\nurl = 'https://x.test'\nsay = ' '", "tools[0].say: expected words"),
    ("name = 'x'\nresult = {}", "tools[0].result: expected an entry, found none"),
    ("name = 'x'\nresult = 3", "tools[0].result: expected a string, found 3"),
    ("name = 'x'\nresult = { a = 'b' }", "tools[0].parameters: expected a parameter whose value"),
    ("name = 'x'\nresult = { A = 'b', a = 'c' }", "expected each entry once"),
    ("name = 'x'\nresult = { a = 2026-01-01 }", "expected values that JSON has"),
    ("name = 'x'\nparameters = { properties = {} }", "parameters.type: expected 'object'"),
    ("name = 'x'\nparameters = { type = 'objekt' }",
     "tools[0].parameters.type: expected 'object', found 'objekt'"),
    ("name = 'x'\nparameters = { type = 'object', properties = { a = { type = 'text' } } }",
     "tools[0].parameters.properties.a.type: expected one of object, array, string"),
    ("name = 'x'\nparameters = { type = 'object', properties = { a = { enum = [] } } }",
     "parameters.properties.a.enum: expected a list of values, found []"),
    ("name = 'x'\nparameters = { type = 'object', properties = { a = 'string' } }",
     "parameters.properties.a: expected a JSON schema, found 'string'"),
    ("name = 'x'\nparameters = { type = 'object', properties = {}, required = ['b'] }",
     "parameters.required: expected names of its properties, found 'b'"),
    ("name = 'x'\nparameters = { type = 'object', required = 'a' }", "expected a list of names"),
    ("name = 'x'\nparameters = { type = 'object', anyOf = {} }", "expected a list of schemas"),
    ("name = 'x'\nparameters = { type = 'object', default = inf }", "values that JSON has"),
    ("name = 'x'\nresult = 'a'\nurl = 'http://a/'",
     "expected one of result, url, python, mcp, found result and url in 'x'"),
    ("name = 'x'\npython = 'a:b'\nurl = 'http://a/'", "found url and python in 'x'"),
    ("name = 'x'\nurl = 'file:///etc/passwd'", "tools[0].url: expected http:// or https://"),
    ("name = 'x'\nurl = 'http://a/'\nnetwork = true", "network: expected python beside it"),
    ("name = 'x'\npython = 'os.system'", "tools[0].python: expected module:function"),
    ("name = 'x'\nurl = 'post http://a'", "tools[0].url: expected http:// or https://, GET or"),
    ("name = 'x'\nheaders = { key = 3 }", "tools[0].headers.key: expected a string, found int"),
    ("name = 'x'\nkeep = ['a..b']", "tools[0].keep[0]: expected names with dots between"),
    ("name = 'x'\ndeadline_ms = 0", "tools[0].deadline_ms: expected 1 to 60000, found 0"),
])  # fmt: skip
def test_a_wrong_tool_is_refused_by_its_key(tmp_path: Path, fields: str, words: str) -> None:
    path = write(tmp_path / "a.toml", f"[[tools]]\n{fields}")
    with pytest.raises(ConfigError) as caught:
        load_agent(path)
    assert caught.value.message.startswith(f"{path}: tools[")
    assert words in caught.value.message


def test_a_schema_of_many_kinds_is_taken(tmp_path: Path) -> None:
    text = """
[[tools]]
name = "order"
[tools.parameters]
type = "object"
required = ["size"]
additionalProperties = false
[tools.parameters.properties]
size = { type = ["string", "null"], enum = ["small", "large"] }
extras = { type = "array", items = { anyOf = [{ type = "string" }, { const = 3 }] } }
"""
    [tool] = load_agent(write(tmp_path / "a.toml", text)).session_settings().tools
    assert tool.parameters["required"] == ["size"]


def test_a_tool_without_parameters_takes_none(tmp_path: Path) -> None:
    [tool] = (
        load_agent(write(tmp_path / "a.toml", "[[tools]]\nname = 'x'")).session_settings().tools
    )
    assert tool.parameters == {"type": "object", "properties": {}}


def test_phrases_and_entries_are_met_in_any_case(tmp_path: Path) -> None:
    text = """
[barge_in]
stop_words = ["Hold  On"]
[crisis]
words = ["Want to die"]
answer = "Call 988."
[[tools]]
name = "price"
parameters = { type = "object", properties = { kind = { type = "string" } } }
result = { Margherita = "$9" }
"""
    agent = load_agent(write(tmp_path / "a.toml", text))
    assert agent.barge_in.stop_words == ("hold on",)
    assert agent.crisis.answers("I want to die")
    assert agent.tools[0].answer('{"kind": "margherita"}') == "$9"


@pytest.mark.parametrize("name", shipped_agents())
def test_an_agent_that_ships_is_found_by_its_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    agent = load_agent(Path(name))
    assert agent == load_agent(EXAMPLE.with_name(f"{name}.toml")) and agent.greeting
    write(tmp_path / name, "name = 'a file of that name goes first'")
    assert load_agent(Path(name)).name == "a file of that name goes first"


def test_the_dentist_looks_up_prices_and_free_appointments() -> None:
    price, slots = load_agent(Path("dentist")).tools
    assert price.answer('{"item": "Filling"}') == '{"price": "$150"}'
    assert slots.answer('{"day": "tuesday"}') == '{"slots": "11 am"}'
    assert slots.answer('{"day": "sunday"}') == '{"slots": "none, we are closed"}'


# --- what the server's models can ---


def agent_of(tmp_path: Path, text: str) -> Config:
    return Config(preset="embedded", tts_model="espeak", agent=write(tmp_path / "a.toml", text))


def test_a_voice_that_the_preset_lacks_is_refused(tmp_path: Path) -> None:
    config = agent_of(tmp_path, "voice = 'nobody'")
    with pytest.raises(ConfigError) as caught:
        resolve_agent(config)
    assert caught.value.message == (
        f"{config.agent}: voice: expected a voice of espeak ({', '.join(sorted(ESPEAK.voices))}), "
        "found 'nobody'"
    )
    # A service's voices are not known here.
    assert resolve_agent(replace(config, tts_url=("http://127.0.0.1:9/v1",))).voice == "nobody"


@pytest.mark.parametrize("voice", ["default", "en-gb", "alloy"])
def test_the_voices_of_the_preset_and_stock_names_are_taken(tmp_path: Path, voice: str) -> None:
    assert resolve_agent(agent_of(tmp_path, f"voice = '{voice}'")).voice == voice


@pytest.mark.parametrize("has_hibari", [True, False])
def test_a_voice_of_the_model_that_may_stand_in_is_spoken_in_the_one_that_is_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    has_hibari: bool,
) -> None:
    def installed(name: str) -> str | None:
        if has_hibari:
            return HIBARI.requires.partition("==")[2]
        return "0.2.4" if name == "espeakng-loader" else None

    monkeypatch.setattr(resolve, "installed_version", installed)
    wanted, there = ("en-gb", "hibari") if has_hibari else ("heart", "espeak")
    config = replace(agent_of(tmp_path, f"voice = '{wanted}'"), tts_model="")
    assert resolve_agent(config).voice == "default"
    assert f"{config.agent}: voice {wanted} is one of " in caplog.text
    assert f"; {there} speaks here" in caplog.text
    with pytest.raises(ConfigError, match="expected a voice of"):
        resolve_agent(replace(agent_of(tmp_path, "voice = 'nobody'"), tts_model=""))
    with pytest.raises(ConfigError, match="expected a voice of espeak"):
        resolve_agent(agent_of(tmp_path, "voice = 'heart'"))  # espeak was asked for


def test_the_table_of_voices_is_the_voices_own() -> None:
    assert (HIBARI.voices, HIBARI.requires) == ((hibari_model.VOICE,), hibari_model.REQUIREMENT)
    assert set(ESPEAK.voices) == set(EspeakVoice.voices) - OPENAI_VOICES - {"default"}


def test_a_language_that_the_recognizer_lacks_is_refused(tmp_path: Path) -> None:
    config = agent_of(tmp_path, "language = 'xx'")
    with pytest.raises(ConfigError, match=r"language: expected a language of \S+ .en., fou"):
        resolve_agent(config)
    assert resolve_agent(replace(config, stt_url=("http://127.0.0.1:9/v1",))).language == "xx"
    assert resolve_agent(agent_of(tmp_path, "language = 'en-US'")).language == "en-US"


def test_a_folder_of_documents_is_relative_to_the_agent_file(tmp_path: Path) -> None:
    text = "[[knowledge]]\nsource = 'pages'\n[[knowledge]]\nsource = '/srv/pages'"
    agent = load_agent(write(tmp_path / "a.toml", text))
    assert [one.folder for one in agent.knowledge] == [tmp_path / "pages", Path("/srv/pages")]
    (shipped,) = load_agent(Path("library")).knowledge
    assert shipped.folder == EXAMPLE.with_name("library")


def test_the_library_has_a_passage_for_each_sentence_it_offers() -> None:
    agent = load_agent(Path("library"))
    index = KnowledgeIndex(passages_of(read_folder(agent.knowledge[0].folder)))
    answers = ("one week", "forty cents", "identity card")
    for said, told in zip(agent.try_saying, answers, strict=True):
        assert told in " ".join(hit.passage.text for hit in index.find(said))


def test_lines_that_ask_to_wait_are_given_up_as_sound_before_those_of_an_emergency() -> None:
    tools = tuple(AgentTool(str(n), url="https://x.test", say=f"line {n}") for n in range(2))
    agent = AgentConfig(tools=tools, fallback="Sorry.")
    assert agent.kept_lines == ("line 0", "line 1", "One moment, please.", "Sorry.")
