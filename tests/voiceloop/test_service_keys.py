"""A service's key goes to that service alone, and what an operator adds goes with each request."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from voiceloop.config import LanguageServices, load_config
from voiceloop.errors import ConfigError
from voiceloop.log_form import keyless
from voiceloop.models.opening import keyed
from voiceloop.remote.dialect import KINDS

HERE, THERE = "http://here:1/v1", "http://there:1/v1"


def keys(**flags: Any) -> tuple[str, ...]:
    return load_config(flags=flags).llm_key


def test_each_service_has_the_key_of_its_own_role() -> None:
    config = load_config(flags={"llm_url": HERE, "llm_key": "a", "stt_url": THERE})
    assert keyed(config.llm_url, config.llm_key) == [(HERE, "a")]
    assert keyed(config.stt_url, config.stt_key) == [(THERE, "")]


def test_a_file_may_name_one_key_as_a_text(tmp_path: Path) -> None:
    file = tmp_path / "voiceloop.toml"
    file.write_text(f'llm_url = "{HERE}"\nllm_key = "sk-1,2"\n')
    assert load_config(file).llm_key == ("sk-1,2",)


def test_of_several_hosts_each_has_its_own_key() -> None:
    assert keys(llm_url=f"{HERE},{HERE}", llm_key="a") == ("a", "a")
    assert keys(llm_url=f"{HERE},{THERE}", llm_key="a,b") == ("a", "b")
    with pytest.raises(ConfigError, match="llm_key: expected one key for each of 2 URLs"):
        keys(llm_url=f"{HERE},{THERE}", llm_key="a")


def test_a_key_may_stand_in_a_file_and_is_shown_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("secret-1\n")
    config = load_config(flags={"llm_url": HERE, "llm_key": f"file:{file}"})
    assert config.llm_key == ("secret-1",) and "secret-1" not in repr(config)
    with pytest.raises(ConfigError, match="llm_key: expected a readable file"):
        keys(llm_url=HERE, llm_key=f"file:{tmp_path / 'none'}")


def test_the_key_that_went_to_every_service_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="remote_key: removed.*llm_key"):
        load_config(flags={"remote_key": "a"})


def test_fields_and_headers_of_the_operator_are_read_with_their_secrets(tmp_path: Path) -> None:
    file = tmp_path / "voiceloop.toml"
    file.write_text(
        f'''
        llm_url = "{HERE}"
        llm_service = "openrouter"
        [llm.request]
        provider = {{ sort = "latency" }}
        [llm.headers]
        x-tenant = "shop ${{TENANT_KEY}}"
        '''
    )
    config = load_config(file, environ={"TENANT_KEY": "k"})
    assert config.llm.request == {"provider": {"sort": "latency"}}
    assert config.llm.headers == {"x-tenant": "shop k"} and "shop" not in repr(config)
    with pytest.raises(ConfigError, match="llm.headers.x-tenant: expected .TENANT_KEY"):
        load_config(file, environ={})


def test_every_service_that_is_known_may_be_named() -> None:
    assert set(get_args(LanguageServices)) == {"auto", *KINDS}


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("https://me:p@ss'word@host/v1", "https://host/v1"),
        ("https://host/v1?key=a,b&c=it's", "https://host/v1"),
        ("https://host/a,b?key=c", "https://host/a,b"),
        ("wss://host/v1?key=a#voice", "wss://host/v1#voice"),
        ("('https://a/v1?key=b', 'https://c/?key=d')", "('https://a/v1', 'https://c/')"),
        ("found https://a/v1?key=b, and c@d", "found https://a/v1, and c@d"),
        ("http://me:p/a?b#c@host:8000/v1", "http://host:8000/v1"),
        ("http://me:1234567/b@host/v1", "http://host/v1"),
        ("http://host:8000/run/@cf/llama", "http://host:8000/run/@cf/llama"),
    ],
)
def test_an_address_is_told_without_the_whole_of_its_key(address: str, told: str) -> None:
    assert keyless(address) == told


@pytest.mark.parametrize("mark", "/?#")
def test_a_password_that_is_not_escaped_is_refused_and_not_shown(mark: str) -> None:
    with pytest.raises(ConfigError, match="of a password as %2F %3F %23.*http://host/v1") as told:
        load_config(environ={"VOICELOOP_LLM_URL": f"http://me:hush{mark}hush@host/v1"})
    assert "hush" not in str(told.value)
