"""Words that are spelled anew for the voice, and shown as they were written."""

import random
import tomllib

import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeVoice, instant_backends
from tests.tables import each_row
from voiceloop.agent import AgentConfig
from voiceloop.backends import Speech, SpeechEnd, VoiceOptions
from voiceloop.config import Config, VoiceSettings
from voiceloop.errors import ConfigError
from voiceloop.models.lexicon import LexiconVoice, Spelled, lexicon_of, read_lexicon, refuse_sounds

WORDS = {"nguyen": "win", "siobhan": "shi vawn", "sql": "sequel"}


def spelled(*deltas, lexicon=WORDS):
    spelling = Spelled(lexicon)
    return "".join([*map(spelling.add, deltas), spelling.rest()])


@pytest.mark.parametrize(
    "written, said",
    [
        ("Ask Nguyen, please.", "Ask win, please."),
        ("(NGUYEN's) turn", "(win's) turn"),
        ("Siobhan\u2019s SQL!", "shi vawn\u2019s sequel!"),
        ("Nguyens and mysql stay", "Nguyens and mysql stay"),
        ("", ""),
        ("  \n", "  \n"),
    ],
)
def test_whole_words_are_spelled_anew_with_their_marks_left(written, said):
    assert spelled(written) == said


def test_any_cutting_into_deltas_gives_the_same_text():
    text = "Dr. Siobhan Nguyen's SQL, and nguyen again: sql." * 3
    whole = spelled(text)
    for seed in range(50):
        chance = random.Random(seed)
        cuts = sorted(chance.sample(range(len(text)), 20))
        deltas = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert spelled(*deltas) == whole


def test_a_word_without_end_is_not_kept_back():
    spelling = Spelled(WORDS)
    assert spelling.add("x" * 1000) == "x" * 1000


async def test_positions_of_spoken_words_are_those_of_the_written_text():
    voice = LexiconVoice(FakeVoice(), WORDS)
    stream = await voice.open("s", VoiceOptions())
    text = "Call Siobhan now."
    for letter in text:
        stream.feed(letter)
    stream.finish()
    words = []
    async for event in stream.events():
        if isinstance(event, SpeechEnd):
            break
        assert isinstance(event, Speech)
        words += event.words
    await stream.close()
    # Two words sound for the name; it counts as said with the second.
    assert [(word.text, text[: word.text_end].strip()) for word in words] == [
        ("Call", "Call"),
        ("shi", "Call"),
        ("Siobhan", "Call Siobhan"),
        ("now.", "Call Siobhan now."),
    ]


@pytest.mark.virtual_time
async def test_a_call_shows_and_remembers_the_word_and_the_voice_is_given_its_spelling(clock):
    fed = []

    class Heard(FakeVoice):
        async def open(self, stream_id, options):
            stream = await super().open(stream_id, options)
            feed = stream.feed
            stream.feed = lambda text: (fed.append(text), feed(text))[1]
            return stream

    model = FakeLanguageModel(lambda messages: "Mr. Nguyen's line is free.")
    backends = instant_backends(language_model=model, voice=LexiconVoice(Heard(), WORDS))
    async with Caller(clock, backends, AgentConfig()) as caller:
        for n_turns in (1, 2):
            await caller.say(800)
            await caller.listen_until("response.done", count=n_turns)
    assert "".join(fed).count("win's") == 2 and "Nguyen" not in "".join(fed)
    assert "Mr. Nguyen's line is free." in caller.transcript()
    assert "Nguyen's line" in str(model.prompts[-1]) and "win's" not in str(model.prompts[-1])


@each_row(
    "table, why",
    [
        ({"New York": "x"}, "one word"),
        ({"": "x"}, "one word"),
        ({"a,": "x"}, "one word"),
        ({"a": ""}, "a spelling"),
        ({"a": 3}, "a spelling"),
        ({"a": "x" * 101}, "a spelling"),
        ({"a": "/x/"}, "a vowel"),
        ({"a": "/w\u0268n/"}, "American English"),
        ({f"w{i}": "x" for i in range(1001)}, "at most 1000"),
    ],
)
def test_a_wrong_table_is_named(table, why):
    with pytest.raises(ConfigError, match=why):
        read_lexicon(table, "voice.lexicon")


def test_the_agents_words_go_before_the_servers(tmp_path):
    file = tmp_path / "voiceloop.toml"
    file.write_text('[voice.lexicon]\nNguyen = "win"\nSQL = "sequel"\n')
    table = tomllib.loads(file.read_text())["voice"]["lexicon"]
    config = Config(voice=VoiceSettings(lexicon=table))
    agent = AgentConfig(lexicon={"sql": "ess cue ell"})
    assert lexicon_of(config, agent) == {"nguyen": "win", "sql": "ess cue ell"}
    assert lexicon_of(Config(), None) == {}


def test_a_word_may_be_given_by_its_sounds_to_a_voice_of_ours_alone():
    given = read_lexicon({"Nguyen": "/\u02c8w\u026an/"}, "lexicon")
    assert spelled("Ask Nguyen's.", lexicon=given) == "Ask \u27e6\u02c8w\u026an\u27e7's."
    refuse_sounds({"nguyen": "win"})
    with pytest.raises(ConfigError, match="voice is a service"):
        refuse_sounds(given)
