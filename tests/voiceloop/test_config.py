"""Configuration: TOML < environment < flag; whatever is wrong fails at the start, by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tables import each_row
from voiceloop.agent_file import load_agent
from voiceloop.cli import main
from voiceloop.config import Config, all_keys, load_config
from voiceloop.errors import ConfigError
from voiceloop.models.presets import worker_specs
from voiceloop.removed_keys import REMOVED

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("tests", "benchmarks", "engine", "audio")


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_flags_beat_the_environment_beats_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "v.toml", 'port = 1\nhost = "::1"\n[limits]\nmax_sessions = 2\n')
    environ = {"VOICELOOP_PORT": "2", "VOICELOOP_LIMITS_MAX_SESSIONS": "5", "PATH": "x"}
    config = load_config(file, environ=environ, flags={"port": 3, "host": None})
    assert (config.port, config.host, config.limits.max_sessions) == (3, "::1", 5)


def test_the_environment_is_read_by_type() -> None:
    environ = {
        "VOICELOOP_KEYS": "key-one-1, key-two-2",
        "VOICELOOP_LIMITS_SESSION_MINUTES": "2.5",
        "VOICELOOP_ANTICIPATION_OFF": "held_clause, slide",
        "VOICELOOP_SIP_TRUNK_REGISTER": "true",
        "VOICELOOP_PHONE_SECRETS": "vonage=a=b, asterisk=${HUSH}",
        "VOICELOOP_CANARY": "v2=0.05",
        "VOICELOOP_PRICES": "main=3 0.3 15",
        "VOICELOOP_PHONE_PUBLIC_URL": "https://a.example",
        "HUSH": "c",
        "VOICELOOP_DATA": "/data",
        "VOICELOOP_LLAMA_CPP": "/peer/bin/python",
    }
    config = load_config(environ=environ)
    assert (config.trial.version, config.trial.share) == ("v2", 0.05)
    assert config.prices == {"main": (3.0, 0.3, 15.0)}
    assert config.keys == ("key-one-1", "key-two-2")
    assert config.limits.session_minutes == 2.5
    assert config.sip.trunk.register is True
    assert config.phone.secrets == {"vonage": "a=b", "asterisk": "c"}
    assert config.anticipation.off == ("held_clause", "slide")
    assert config.anticipation.does("prefill") and not config.anticipation.does("slide")


@each_row(("text", "words"), [
    ("prot = 1", "found 'prot'; the nearest is 'port'"),
    ("[limits]\nmax_session = 1", "found 'limits.max_session'; the nearest is 'max_sessions'"),
    ("port = 'x'", "port: expected a whole number, found 'x'"),
    ("port = true", "port: expected a whole number, found True"),
    ("port = 70000", "port: expected 0 to 65535, found 70000"),
    ("keys = 'abc'", "keys: expected a list, found another value"),
    ("keys = [12345678]", "keys[0]: expected a string, found another value"),
    ("keys = ['short']", "keys: expected keys of at least 8 characters"),
    ("keys = ['ek_live_12345678']", "keys: expected keys that do not begin with ek_"),
    ("limits = 3", "limits: expected a table, found 3"),
    ("log_level = 'loud'", "log_level: expected one of debug, info, warning, error, found 'loud'"),
    ("[anticipation]\noff = ['draft']", "anticipation.off[0]: expected one of prefill, retrieval"),
    ("[anticipation]\noff = 'slide'", "anticipation.off: expected a list, found 'slide'"),
    ("[talk]\nx = 1", "expected a known key, found 'talk'"),
    ("context_tokens = -1", "context_tokens: expected 256 to 100000000, found -1"),
    ("[engine]\nweights = 'int2'", "engine.weights: expected one of auto, bf16, int8, int4, found"),
    ("[engine]\nthreads = 65", "engine.threads: expected 1 to 64, found 65"),
    ("[engine]\nkv_tokens = 255", "engine.kv_tokens: expected 256 to 100000000, found 255"),
    ("[engine]\ndevice = 'cuda:x'", "engine.device: expected auto, cpu, cuda or cuda:N, found"),
    ("[engine]\ndevice = 'tpu'", "engine.device: expected auto, cpu, cuda or cuda:N, found 'tpu'"),
    ("llm_url = 'http://a'\n[engine]\nkv = 'int8'", "engine.kv: expected a language model here"),
    ("[engine]\ndrafters = 'none'", "found 'engine.drafters'; the nearest is 'drafter'"),
    ("allowed_origins = ['nonsense']", "expected scheme://host or scheme://host:port, found 'non"),
    ("allowed_origins = ['https://a.example/']", "allowed_origins: expected scheme://host or"),
    ("certfile = 'a.pem'", "expected certfile and keyfile together"),
    ("[phone.secrets]\ntwilio = 'a'", "phone.public_url: expected where carriers reach this"),
    ("[phone.secrets]\ntwillio = 'a'", "phone.secrets.twillio: expected one of twilio, signal"),
    ("[phone.secrets]\nplivo = ''", "phone.secrets.plivo: expected a secret, found none"),
    ("[phone.secrets]\nplivo = '${NO_SUCH}'", "phone.secrets.plivo: expected $NO_SUCH in the"),
    ("[phone.secrets]\ntelnyx = 'a'", "phone.secrets.telnyx: expected an Ed25519 key in base64"),
    ("[phone.twilio]\ntoken = 'a'", "phone.twilio: removed. Write it in [phone.secrets]"),
    ("[phone]\naudiosocket_at = '0.0.0.0:1'", "phone.audiosocket_at: expected a private address"),
    ("[phone]\naudiosocket_at = '8.8.8.8:1'", "phone.audiosocket_at: expected a private address"),
    ("[phone]\naudiosocket_at = '10.0.0.1:65536'", "phone.audiosocket_at: expected a port of 1"),
    ("[phone]\naudiosocket_at = '10.0.0.1'", "phone.audiosocket_at: expected HOST:PORT, found"),
    ("[phone]\npublic_url = 'https://a/b'", "phone.public_url: expected https://HOST"),
    ("[webrtc]\naddress = 'a.example'", "webrtc.address: expected an IP address, found 'a.exam"),
    ("[cascade]\nmodels = ['main']", "cascade.models: expected two names, main one of them, found"),
    ("[cascade]\nmodels = ['big', 'main']", "cascade.models: expected a name of [[models]] (there"),
    ("[webrtc.ice_servers]\n'http://a' = ''", "webrtc.ice_servers: expected turn:, turns:, stun:"),
    ("[webrtc.ice_servers]\n'turn:a' = ''", "webrtc.ice_servers: expected the secret of turn:a"),
    ("[webrtc.ice_servers]\n'turn:a' = ['s']", "webrtc.ice_servers.turn:a: expected one text"),
    ("[phone.secrets]\ntwilio = ['s']", "phone.secrets.twilio: expected one text"),
    ("secret_key = 'short'", "secret_key: expected 16 characters or more, found fewer"),
    ("metrics_key = 'short'", "metrics_key: expected 16 characters or more, found fewer"),
    ("[canary]\nv2 = 1.5", "canary: expected one label and its share of 0 to 1"),
    ("[canary]\nversion = 'v2'", "canary.version: removed. Write [canary] LABEL = SHARE"),
    ("[canary]\nshadow = 0.1", "canary.shadow: removed. Leave it out"),
    ("[prices]\nserver_hour = 3.0", "prices.server_hour: removed. Write [prices] main"),
    ("[prices]\nmain = [3.0, 15.0]", "prices.main: expected three prices of 0 or more"),
    ("[prices]\nmain = [1, -1, 1]", "prices.main: expected three prices of 0 or more"),
    ("[prices]\nmain = 3", "prices.main: expected three prices of 0 or more"),
    ("[prices]\nbig = [1, 1, 1]", "prices.big: expected main = [PROMPT, CACHED, REPLY], or a name"),
    ("[[models]]\nname = 'a'\nurl = ['worker://b:1', 'http://b']", "models[0].url: expected"),
    ("port = ", "expected TOML, found an error"),
])  # fmt: skip
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path / "v.toml", text))
    assert words in caught.value.message


def test_a_wrong_variable_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="canary.v2: expected a number, found 'some'"):
        load_config(environ={"VOICELOOP_CANARY": "v2=some"})
    with pytest.raises(ConfigError, match=r"prices.main\[1\]: expected a number, found 'some'"):
        load_config(environ={"VOICELOOP_PRICES": "main=1 some 2"})
    with pytest.raises(ConfigError, match="the environment: port: expected a whole number"):
        load_config(environ={"VOICELOOP_PORT": "http"})
    with pytest.raises(
        ConfigError, match="found VOICELOOP_PRESETT; the nearest is 'VOICELOOP_PRES"
    ):
        load_config(environ={"VOICELOOP_PRESETT": "embedded"})
    with pytest.raises(ConfigError, match="found VOICELOOP_LIMITS_X; the nearest is 'VOICELOOP_LI"):
        load_config(environ={"VOICELOOP_LIMITS_X": "1"})


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"engine.bolts": "Set engine.nuts.", "gears": "Take none.", "tools.slow": "Set more."}
    monkeypatch.setattr("voiceloop.removed_keys.REMOVED", table)


@pytest.mark.usefixtures("removed")
def test_a_key_that_is_gone_says_what_to_do_instead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "v.toml"
    for text, words in (
        ("[engine]\nbolts = 3", "engine.bolts: removed. Set engine.nuts."),
        ("[gears]\nfirst = 3", "gears: removed. Take none."),
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(f'{path}: {words}')}$"):
            load_config(write(path, text))
    with pytest.raises(ConfigError, match=r"tools\[1\].slow: removed. Set more.$"):
        load_agent(write(path, "[[tools]]\nname = 'a'\n[[tools]]\nname = 'b'\nslow = 1"))
    for name, words in (("ENGINE_BOLTS", "Set engine.nuts."), ("GEARS_FIRST", "Take none.")):
        with pytest.raises(ConfigError, match=f"VOICELOOP_{name}: removed. {words}$"):
            load_config(environ={f"VOICELOOP_{name}": "1"})
    for flag in ("--engine-bolts", "--no-engine-bolts", "--engine-bolts=3"):
        with pytest.raises(SystemExit):
            main(["serve", flag])
        assert f"{flag}: removed. Set engine.nuts." in capsys.readouterr().err


def test_a_removed_key_is_no_key_and_its_sentence_is_whole() -> None:
    kept = {path.replace(".", "_") for path in all_keys()}
    for key, instead in REMOVED.items():
        assert key.replace(".", "_") not in kept, f"{key} is a key"
        assert instead[0].isupper() and instead.endswith("."), key


def test_origins_are_taken_as_browsers_send_them(tmp_path: Path) -> None:
    text = "allowed_origins = ['*', 'null', 'https://a.example', 'http://[::1]:3000', 'app://x']"
    assert len(load_config(write(tmp_path / "v.toml", text)).allowed_origins) == 5


def test_a_url_names_workers_on_the_network_or_services_and_never_both() -> None:
    config = load_config(flags={"llm_url": "worker://a:1, worker://b:2", "tts_url": "http://s/v1"})
    assert config.workers.engine == ("a:1", "b:2") and config.llm_url == ()
    assert config.workers.voice == () and config.tts_url == ("http://s/v1",)
    with pytest.raises(ConfigError, match="stt_url: expected services or worker://HOST:PORT, fou"):
        load_config(flags={"stt_url": "worker://a:1,http://s/v1"})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a configuration file, found none at"):
        load_config(tmp_path / "none.toml")


def test_a_path_of_nobody_is_refused_by_name(tmp_path: Path) -> None:
    for text in ("~nobody-of-this-name/keys", "a\\u0000b"):
        with pytest.raises(ConfigError, match="keys_file: expected a readable text file"):
            load_config(write(tmp_path / "v.toml", f'keys_file = "{text}"'))


def test_paths_in_a_file_are_relative_to_it(tmp_path: Path) -> None:
    text = "agent = 'pizza.toml'\nllm_model = '../m'\ntts_model = 'a/b'\ncertfile = '/c.pem'"
    path = write(tmp_path / "v.toml", text + "\nkeyfile = 'k.pem'")
    config = load_config(path)
    assert config.agent == tmp_path / "pizza.toml"
    assert (config.certfile, config.keyfile) == (Path("/c.pem"), tmp_path / "k.pem")
    assert (config.llm_model, config.tts_model) == (str(tmp_path / "../m"), "a/b")
    assert load_config(path, flags={"agent": "other.toml"}).agent == Path("other.toml")
    assert load_config(write(path, "agent = 'pizzeria'")).agent == Path("pizzeria")  # ships


def test_paths_of_the_engine_are_relative_to_the_file_too(tmp_path: Path) -> None:
    file = write(tmp_path / "v.toml", "[engine]\ndrafter = 'small'\n")
    assert load_config(file).engine.drafter == str(tmp_path / "small")
    assert load_config(environ={"VOICELOOP_ENGINE_DRAFTER": "small"}).engine.drafter == "small"
    file = write(tmp_path / "v.toml", "[engine]\ndrafter = 'ngram'\n")
    assert load_config(file).engine.drafter == "ngram"


def test_a_flag_of_a_table_beats_its_file_and_leaves_the_rest(tmp_path: Path) -> None:
    file = write(tmp_path / "v.toml", "[engine]\nkv = 'int8'\nthreads = 2\n")
    engine = load_config(file, flags={"engine.threads": 3, "engine.kv": None}).engine
    assert (engine.kv, engine.threads) == ("int8", 3)


def test_keys_come_from_a_file_and_stay_out_of_sight(tmp_path: Path) -> None:
    file = write(tmp_path / "keys", "# ours\nsecret-key-1\n\nsecret-key-2\n  # theirs\n")
    config = load_config(flags={"keys_file": file})
    assert config.keys == ("secret-key-1", "secret-key-2")
    assert "secret" not in repr(config)
    with pytest.raises(ConfigError, match="expected one key a line"):
        load_config(flags={"keys_file": write(tmp_path / "empty", "# none\n")})


SECRETS = [path for path, one in all_keys().items() if one.is_secret]


@each_row("path", SECRETS)
@each_row("value", ["{ a = 'CANARY' }", "['a', ['CANARY']]", "'CANARY'", "'file:/'"])
def test_no_error_shows_a_secret(tmp_path: Path, path: str, value: str) -> None:
    table, _, name = path.rpartition(".")
    text = f"[{table}]\n{name} = {value}" if table else f"{name} = {value}"
    try:
        shown = repr(load_config(write(tmp_path / "v.toml", text)))
    except ConfigError as error:
        shown = error.message
    assert "CANARY" not in shown and "workers.key" in SECRETS


def test_a_services_key_lies_beside_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "llm.key").write_text("sk-of-a-service\n")
    file = tmp_path / "voiceloop.toml"
    file.write_text("llm_url = 'http://127.0.0.1:9/v1'\nllm_key = ['file:llm.key']")
    assert load_config(file).llm_key == ("sk-of-a-service",)
    (tmp_path / "llm.key").write_text("\n")
    with pytest.raises(ConfigError, match="llm_key: expected a key .*, found it empty"):
        load_config(file)


def test_what_tests_and_benchmarks_read_from_the_environment_stops_no_server() -> None:
    """A benchmark starts a server with its own environment."""
    files = (
        path
        for room in (*ROOMS, "voiceloop/listening/recipes")
        for path in (ROOT / room).rglob("*.py")
    )
    reads = re.compile(r'os\.environ(?:\.get\(|\[)"(VOICELOOP_\w+)"')
    read = {name for path in files for name in reads.findall(path.read_text(encoding="utf-8"))}
    assert {"VOICELOOP_DATA", "VOICELOOP_CACHE"} <= read
    assert load_config(environ=dict.fromkeys(read, "x")) == Config()


@pytest.mark.parametrize("url", ["foo", "localhost:8000", "ftp://x", "http://", "http://x:port"])
def test_what_is_no_url_is_refused_before_anything_is_loaded(url: str) -> None:
    with pytest.raises(ConfigError, match="llm_url: expected a URL"):
        load_config(flags={"llm_url": url})
    with pytest.raises(ConfigError, match="tts_url: expected a URL"):
        load_config(flags={"tts_url": "ws://speech.example"})
    assert load_config(flags={"stt_url": "ws://speech.example/v1"}).stt_url


# --- presets ---


def test_an_incomplete_or_unknown_preset_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected stt_url, tts_url, found nothing"):
        worker_specs(load_config(flags={"preset": "remote", "llm_url": "http://x"}))
    with pytest.raises(
        ConfigError, match="preset: expected one of auto, embedded, cpu, gpu, remote"
    ):
        worker_specs(load_config(flags={"preset": "huge"}))


def test_a_variable_with_a_table_takes_addresses_and_tells_no_secret() -> None:
    servers = {"VOICELOOP_WEBRTC_ICE_SERVERS": "turn:a:1?transport=udp=b=, stun:c="}
    assert load_config(environ=servers).webrtc.ice_servers == {
        "turn:a:1?transport=udp": "b=", "stun:c": "",
    }  # fmt: skip
    for name, text in (
        ("PHONE_SECRETS", "hush-hush"),
        ("PHONE_SECRETS", "twilio=a,hush-hush"),
        ("WEBRTC_ICE_SERVERS", "turnn:me:hush-hush@a=b"),
    ):
        with pytest.raises(ConfigError, match="expected") as told:
            load_config(environ={f"VOICELOOP_{name}": text})
        assert "hush" not in str(told.value)


def test_a_webhook_s_secret_that_signs_nothing_ends_the_start() -> None:
    environ = {
        "VOICELOOP_PHONE_WEBHOOK_URL": "https://shop.test/calls",
        "VOICELOOP_PHONE_SECRETS": "webhook=whsec_c2l4dGVlbiBjaGFycw==",
    }
    assert load_config(environ=environ).phone.secrets["webhook"].endswith("==")
    environ["VOICELOOP_PHONE_SECRETS"] = "webhook=whsec_not base64 at all"
    with pytest.raises(ConfigError, match=r"phone\.secrets\.webhook: expected base64"):
        load_config(environ=environ)
