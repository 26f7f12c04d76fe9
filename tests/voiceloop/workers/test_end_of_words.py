"""The reader of words behind messages: it judges what is staged, and makes no replies."""

from __future__ import annotations

import pytest

from voiceloop.backends import ChatMessage, GenerateParams, Staged
from voiceloop.models.presets import embedded_model_dir
from voiceloop.workers.messages import Commit, OpenBranch, Stage, StreamEvent, StreamFailed
from voiceloop.workers.roles.end_of_words import load
from voiceloop.workers.roles.role import RoleError, StreamError

GREETING = (ChatMessage("assistant", "What can I get you?"),)


def test_it_judges_the_words_that_are_staged_and_refuses_a_reply() -> None:
    role = load(str(embedded_model_dir()))
    role.warm_up()
    role.receive(OpenBranch("a.1", GREETING))
    role.receive(Stage("a.1", 7, "a large latte please"))
    with pytest.raises(StreamError, match="expected words to be read, found Commit"):
        role.receive(Commit("a.1", GREETING, GenerateParams()))
    [event] = role.step()
    match event:
        case StreamEvent("a.1", Staged(stage_id=7, p_end_of_turn=float(p_end))):
            assert 0.0 < p_end < 1.0
        case _:
            pytest.fail(str(event))
    assert not role.has_work()
    role.close("a.1")


def test_words_that_cannot_be_read_fail_their_stream_alone() -> None:
    role = load(str(embedded_model_dir()))
    for name in ("a.1", "b.1"):
        role.receive(OpenBranch(name, GREETING))
        role.receive(Stage(name, 1, "\u4e00" * 4000 if name == "a.1" else "hello"))
    events = role.step()
    assert [type(event) for event in events] == [StreamEvent, StreamFailed]
    [failed] = [event for event in events if isinstance(event, StreamFailed)]
    assert failed.stream_id == "a.1" and failed.is_too_long


def test_a_folder_without_a_model_is_named() -> None:
    with pytest.raises(RoleError, match=r"expected a file config\.json in /nowhere"):
        load("/nowhere")
