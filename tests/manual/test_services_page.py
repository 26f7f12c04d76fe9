"""Each section of SERVICES.md is its own service: its settings, its dialect, an answer from it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.dialect_service import MODELS, NAMES, DialectService
from tests.remote_service import scripted_remote
from tests.tables import each_row
from voiceloop.backends import ChatMessage, Generated, GenerateParams, TextDelta
from voiceloop.config import load_config
from voiceloop.remote.dialect import KINDS, kind_of
from voiceloop.remote.language import RemoteLanguageModel

PAGE = (Path(__file__).resolve().parents[2] / "voiceloop" / "docs" / "SERVICES.md").read_text(
    "utf-8"
)
SECTIONS = dict(
    re.findall(r"^### ([^\n]+)\n.*?^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
)


def name_of(title: str) -> str:
    """As `llm_service` has it."""
    return title.removesuffix(" OpenAI").lower().replace(" ", "-")


def test_every_service_that_is_known_has_a_section() -> None:
    assert {name_of(title) for title in SECTIONS} == set(NAMES)


@each_row("title", SECTIONS)
async def test_the_settings_of_a_section_lead_to_that_service(title: str, tmp_path: Path) -> None:
    path = tmp_path / "my-server.toml"
    path.write_text(SECTIONS[title], encoding="utf-8")
    config, name = load_config(path), name_of(title)
    [url] = config.llm_url
    named = "" if config.llm_service == "auto" else config.llm_service
    if KINDS[name].hosts or named:
        assert kind_of(url, named=named).name == name
    async with scripted_remote(DialectService(name)) as remote:
        host = name if KINDS[name].hosts else named
        service = remote.connect(model=MODELS.get(name, ""), kind=host)
        await service.start()
        assert service.kind.name == name
        branch = await RemoteLanguageModel(service).branch("sess_1/turn_1", ())
        branch.commit((ChatMessage("user", "how much is a latte"),), GenerateParams(max_tokens=60))
        text = ""
        async for event in branch.events():
            text += event.text if isinstance(event, TextDelta) else ""
            if isinstance(event, Generated):
                break
        await branch.close()
        assert text == "Four dollars."
