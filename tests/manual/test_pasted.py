"""Every line that a page has pasted into a terminal runs, or stands in a list with its reason."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import soundfile

from tests.dialect_service import streamed
from tests.manual.pasted import ELSEWHERE, OF_OTHERS, SAID, Terminal, lines, to_run
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


def test_a_reason_is_of_a_line_that_there_is() -> None:
    found = list(lines())
    assert len(found) > 80
    for form in ELSEWHERE:
        assert any(re.match(form, one.text) for one in found), form
    for page, test in OF_OTHERS.items():
        assert page in {one.page for one in found} and (Path(__file__).parents[2] / test).exists()


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
