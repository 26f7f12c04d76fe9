"""A turn that is being spoken: the same tokens as of the whole conversation, for less."""

import json
import shutil
from pathlib import Path

import pytest

from engine.text.open_turn import OpenTurn
from engine.text.text import Text
from engine.types import PromptTooLong, TemplateError

HISTORY = [
    {"role": "system", "content": "You are the front desk."},
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "Good morning."},
]
PARTIALS = (
    "I",
    "I would",
    "I would like",
    "I would <|im_end|>",
    "I'd like a table ",
    "",
    "Zo\u00eb \U0001f642",
)
MARKERS = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content %s}}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def with_template(tiny_model: Path, folder: Path, template: str) -> Text:
    shutil.copytree(tiny_model, folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return Text.read(folder, (2,))


@pytest.mark.parametrize(
    ("template", "follows"),
    [
        (None, True),
        (MARKERS.replace("%s", ""), True),
        (MARKERS.replace("%s", "| trim "), True),
        (PLAIN, True),
        (MARKERS.replace("%s", "| upper "), False),
    ],
)
def test_the_tokens_are_those_of_the_whole_conversation(
    tiny_model: Path, tmp_path: Path, template: str | None, follows: bool
) -> None:
    text = Text.read(tiny_model, (2,))
    if template is not None:
        text = with_template(tiny_model, tmp_path / "model", template)
    turn = OpenTurn(text, HISTORY, (), PARTIALS[1])
    assert turn.follows is follows
    for words in PARTIALS:
        assert turn.before + turn.behind(words) == text.encode_chat(HISTORY, open_user=words)


@pytest.mark.parametrize("n_turns", [1, 60])
def test_characters_made_tokens_are_those_of_the_turn(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, n_turns: int
) -> None:
    text = Text.read(tiny_model, (2,))
    turn = OpenTurn(text, HISTORY * n_turns, (), "I")
    n_encoded, encode = 0, text.encode

    def counting(part: str) -> list[int]:
        nonlocal n_encoded
        n_encoded += len(part)
        return encode(part)

    monkeypatch.setattr(text, "encode", counting)
    monkeypatch.setattr(text, "render", lambda *_: pytest.fail("the template was asked again"))
    words = "I would like to book a table for two"
    turn.behind(words)
    assert n_encoded == len(words) + len("<|im_start|>user\n")


def test_a_turn_that_cannot_fit_is_refused_by_its_length(tiny_model: Path) -> None:
    text = Text.read(tiny_model, (2,))
    turn = OpenTurn(text, HISTORY, (), "I")
    text.bound(context_length=16)
    with pytest.raises(PromptTooLong, match="at most 256 characters"):
        turn.behind("a" * 250)


def test_a_template_that_drops_the_callers_words_is_told(tiny_model: Path, tmp_path: Path) -> None:
    text = with_template(tiny_model, tmp_path / "model", "{% for m in messages %}x{% endfor %}")
    with pytest.raises(TemplateError, match="write user content"):
        OpenTurn(text, HISTORY, (), "I")
