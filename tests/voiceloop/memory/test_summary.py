"""A model's summary is kept only as far as the transcript bears it out."""

from __future__ import annotations

import pytest

from voiceloop.memory.summary import MAX_TRANSCRIPT_CHARS, borne_out, summary_prompt

SAID = (
    ("user", "Hi, I ordered two lattes on Friday, and nobody delivered them."),
    ("assistant", "I'm sorry. I'll send them to 12 Mill Street."),
)


@pytest.mark.parametrize(
    ("summary", "kept"),
    [
        ("The caller ordered two lattes.", "The caller ordered two lattes."),
        ("The lattes were not delivered. They go to 12 Mill Street.", "They go to 12 Mill Street."),
        ("They will be sent to 12 Mill Street.", ""),  # "sent" was not said
        ("The caller orders two lattes. They cost $9.", "The caller orders two lattes."),
        ("They go to 14 Mill Street.", ""),
        ("The caller said so.", ""),  # which tells nothing
        ("", ""),
    ],
)
def test_a_sentence_with_a_word_that_nobody_said_is_left_out(summary: str, kept: str) -> None:
    assert borne_out(summary, "", (*SAID, ("user", "When do they go?"))) == kept


def test_what_the_last_summary_knew_may_be_said_again() -> None:
    assert borne_out("The caller's bike is red.", "The bike is red.", SAID)
    assert not borne_out("The caller's bike is red.", "", SAID)


def test_the_model_is_given_the_transcript_as_text_and_its_newest_part() -> None:
    system, asked = summary_prompt("The bike is red.", SAID)
    assert system.role == "system" and "Do not answer the caller" in system.content
    assert asked.content.startswith("Notes so far: The bike is red.")
    assert "Caller: Hi, I ordered" in asked.content and "Agent: I'm sorry." in asked.content
    long = summary_prompt("", (("user", "old " * 9000), ("user", "newest")))[1].content
    assert len(long) < MAX_TRANSCRIPT_CHARS + 100 and "newest" in long
