"""Every line that a page has pasted into a terminal runs, or its program's own rules take it."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import soundfile

from tests.dialect_service import streamed
from tests.manual.pasted import OF_OTHERS, RUN, SAID, Line, Terminal, lines, to_run
from tests.manual.unrun import CHECKS, Given, check_of
from tests.remote_service import Answer, Service, scripted_remote

# A scripted model answers: what it says is not what scenarios want, and a machine lacks something.
MAY_FAIL = re.compile(r"voiceloop (?:evaluate|doctor)|.*python test_agent\.py")


@pytest.fixture
async def terminal(tmp_path: Path) -> AsyncIterator[Terminal]:
    """Beside a service that hears, thinks and speaks, each always the same."""
    service = Service()
    said, _ = soundfile.read(
        SAID, dtype="int16"
    )  # `call say` has a server hear it: no tone is speech
    service.say("/models", Answer([json.dumps({"data": [{"id": "qwen3:8b"}]}).encode()]))
    service.say("/chat/completions", streamed({"content": "We open at seven."}))
    service.say("/audio/transcriptions", Answer([b'{"text": "What are your hours?"}']))
    service.say("/audio/speech", Answer([said.tobytes()], content_type="audio/pcm"))
    async with scripted_remote(service) as remote:
        terminal = Terminal(tmp_path, remote.service.port)
        try:
            yield terminal
        finally:
            await terminal.close()


def test_every_line_is_of_a_kind_that_is_run_or_read() -> None:
    found = list(lines())
    assert len(found) > 80
    for one in found:
        assert one.page in OF_OTHERS or check_of(one.text) or RUN.match(one.text), one
    for form in CHECKS:
        assert any(re.match(form, one.text) for one in found), form
    for page, test in OF_OTHERS.items():
        assert page in {one.page for one in found} and (Path(__file__).parents[2] / test).exists()


def unrun() -> list[Line]:
    """Return the lines that nobody runs, each once."""
    found = (one for one in lines() if not one.is_run and one.page not in OF_OTHERS)
    return list({(one.page, one.text): one for one in found}.values())


@pytest.mark.parametrize("line", unrun(), ids=lambda line: f"{line.page}-{line.text[:40]}")
def test_a_line_that_is_not_run_is_taken_by_its_programs_rules(line: Line, tmp_path: Path) -> None:
    check = check_of(line.text)
    assert check is not None
    check(Given(line.text, line.page, tmp_path))


@pytest.mark.parametrize(
    ("page", "wrong"),
    [
        ("PHONE", "pip install -e '.[embedded,sips]'"),
        (
            "DEPLOY",
            "docker build -f voiceloop/deploy/Containerfile --target gpu -t voiceloop:gpu .",
        ),
        ("DEPLOY", "docker run voiceloop:gpu models pull gpu"),
        ("DEPLOY", "systemctl enable --now voice-loop"),
        ("MODELS", "npm pack @usefulsensors/moonshine-js@0.1.11"),
        ("MODELS", "python -m benchmarks.endpointing --refit"),
        ("SERVICES", "vllm serve Qwen/Qwen3-8B --tool-parser hermes"),
        ("COMMANDS", "voiceloop models pull cpus"),
        ("COMMANDS", "voiceloop models path --all"),
        ("PHONE", "baresip -f ~/sip-test/caller -e '/dial sip:clinic@127.0.0.1:5060' -t 40"),
    ],
)
def test_a_line_that_went_wrong_is_found(page: str, wrong: str, tmp_path: Path) -> None:
    check = check_of(wrong)
    assert check is not None
    with pytest.raises((AssertionError, SystemExit)):
        check(Given(wrong, page, tmp_path))


@pytest.mark.call(seconds=110)
@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", to_run())
async def test_the_lines_of_a_page_run_as_pasted(page: str, terminal: Terminal) -> None:
    block = None
    for line in to_run()[page]:
        if line.block != block:  # another terminal, or the same: in the folder of all
            block, terminal.cwd = line.block, terminal.folder
        code = await terminal.run(line.text)
        assert code in ((0, 1) if MAY_FAIL.match(line.text) else (0,)), (
            f"{line.text}\n{terminal.printed[-2000:]}"
        )
