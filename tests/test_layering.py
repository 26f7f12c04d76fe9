"""The house's layers, read from every import statement, the indented ones too."""

from __future__ import annotations

import ast
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.tables import each_row

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("voiceloop", "engine", "audio", "clients")
TOP_LEVEL = {
    "pyproject.toml", "README.md", "voiceloop", "engine", "audio", "clients", "tests",
    "benchmarks", "LICENSE", "NOTICE.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile",
    "constraints.txt", ".ci", ".gitignore", "SECURITY.md", "examples",
}  # fmt: skip
# What each folder and top module of the gateway may import of the others: one direction, no circle.
# Read it from the bottom: the ground floor knows nobody, the command line knows everybody.
MAY_IMPORT = {
    "agents": set(),
    "__main__": {"cli", "rooms"},
    "cli": {
        "cluster", "command_parser", "config", "doctor", "errors", "models", "new_agent", "replay",
        "server",
    },
    "replay": {
        "agent", "backends", "call", "config", "errors", "models", "operation", "realtime",
        "recording", "server", "tools", "workers",
    },
    "server": {
        "access", "admission", "agent", "backends", "call", "cell", "cluster", "config",
        "config_reader", "doors", "errors", "http", "knowledge", "log_form", "models", "operation",
        "realtime", "recording", "resume", "strangers", "telemetry", "tools", "watched_file",
        "workers",
    },
    "recording": {
        "access", "agent", "backends", "call", "config", "errors", "http",
        "operation", "realtime", "telemetry", "tools",
    },
    "doors": {
        "access", "admission", "agent", "backends", "call", "config", "day_hours", "errors", "http",
        "operation", "phone_settings", "realtime", "resume", "sip_settings", "strangers",
        "telemetry", "telephony",
    },
    "new_agent": {"errors"},
    "doctor": {
        "access", "agent", "backends", "cell", "config", "errors", "knowledge", "log_form",
        "models", "remote", "tools", "workers",
    },
    "models": {
        "access", "agent", "agent_file", "backends", "canary", "capabilities", "cluster", "config",
        "errors", "operation", "remote", "workers",
    },
    "http": {
        "access", "admission", "agent", "backends", "capabilities", "cell", "child", "config",
        "config_reader", "errors", "realtime", "strangers",
    },
    "call": {
        "admission", "agent", "backends", "call_manners", "canary", "capabilities", "errors",
        "listening", "realtime", "reply", "resume", "slots", "telemetry", "telephony", "tools",
    },
    "resume": {"access", "agent", "backends", "errors", "realtime"},
    "reply": {
        "admission", "agent", "backends", "config", "day_hours", "errors", "event_stream",
        "knowledge", "listening", "openers", "realtime", "slots", "telemetry", "tools",
    },
    "agent_file": {
        "agent", "backends", "capabilities", "child", "config", "config_reader", "errors",
        "knowledge", "openers", "slots",
    },
    "openers": {"errors"},
    "listening": {"agent", "backends", "errors", "realtime", "slots", "telemetry"},
    "tools": {
        "agent", "backends", "call_manners", "cell", "child", "config_reader", "errors",
        "log_form", "python_agent", "slots", "telemetry", "trust",
    },
    "slots": {"agent", "errors", "memory"},
    "agent": {
        "backends", "call_manners", "config_reader", "day_hours", "knowledge", "realtime",
    },
    "call_manners": {"backends", "config_reader"},
    "knowledge": {"config_reader", "errors", "log_form", "telemetry", "trust"},
    "realtime": {"backends", "capabilities", "errors", "memory", "operation"},
    "memory": set(),
    "remote": {"backends", "cluster", "errors", "event_stream", "log_form", "thoughts", "trust"},
    "cluster": {
        "backends", "canary", "child", "config_reader", "errors", "log_form", "operation",
        "strangers", "watched_file", "workers",
    },
    "workers": {
        "backends", "cell", "child", "errors", "event_stream", "log_form", "operation", "rooms",
        "thoughts",
    },
    "telemetry": {"backends", "canary", "errors", "operation"},
    "canary": {"operation"},
    "access": {"admission", "errors", "operation"},
    "admission": {"errors", "operation"},
    "command_parser": {"config", "config_reader", "removed_keys"},
    "config": {
        "config_reader", "errors", "operation", "phone_settings", "removed_keys", "sip_settings",
    },
    "phone_settings": {"config_reader", "day_hours"},
    "sip_settings": {"config_reader"},
    "event_stream": {"backends", "errors"},
    "backends": {"capabilities", "operation"},
    "capabilities": {"errors"},
    "operation": {"config_reader"},
    "strangers": set(),
    "day_hours": set(),
    "python_agent": set(),
    "config_reader": {"errors", "log_form", "removed_keys"},
    "thoughts": set(),
    "cell": set(),
    "log_form": {"errors"},
    "child": set(),
    "errors": set(),
    "removed_keys": set(),
    "rooms": set(),
    "trust": set(),
    "watched_file": set(),
    "telephony": set(),
}  # fmt: skip
MODEL_MODULES = {
    f"voiceloop/workers/{name}.py"
    for name in (
        "worker",
        "gate",
        "roles/chat_branch",
        "roles/chat_template",
        "roles/end_of_words",
        "roles/language",
        "roles/speech",
    )  # fmt: skip
}
PURE_MODULES = (
    "realtime/protocol", "realtime/events", "realtime/conversation", "realtime/response",
    "realtime/shown",
    "listening/endpointing", "listening/evidence", "listening/release",
    "listening/segment", "listening/caller_audio",
    "memory/facts", "memory/ledger", "memory/reading",
    "slots/checks", "slots/corrections", "slots/dates", "slots/email", "slots/form",
    "slots/letters", "slots/numbers", "slots/progress", "slots/question", "slots/values",
    "call/turn_taking", "call/barge_in", "admission/places", "admission/overload",
    "admission/room", "admission/pools", "admission/allowance", "admission/bucket",
    "workers/waits", "access/signing",
    "access/client_secrets", "access/quotas", "access/sites",
    "resume/snapshot", "resume/ticket", "cluster/pool", "cluster/handshake", "cluster/address",
    "cluster/control/directory", "cluster/control/plan", "cluster/control/reports",
    "cluster/control/scaling", "cluster/control/status",
    "cluster/control/hosts",
    "canary/judge", "canary/trial", "canary/turns",
    "doors/rtp/packet", "doors/rtp/receive", "doors/rtp/reception", "doors/rtp/rtcp",
    "doors/carriers/dialect", "doors/carriers/legs", "doors/carriers/marks",
    "doors/carriers/plivo", "doors/carriers/signatures",
    "doors/carriers/sound", "doors/carriers/telnyx", "doors/carriers/twilio",
    "doors/carriers/vonage", "doors/keypad", "doors/pbx/asterisk",
    "doors/rtp/send", "doors/rtp/digits", "doors/rtp/tones", "doors/sdp",
    "doors/sip/description", "doors/sip/digest", "doors/webrtc/offer", "realtime/sound_line",
    "recording/consent", "recording/hidden", "recording/notes", "recording/timeline",
)  # fmt: skip
GATEWAY_AUDIO = {
    "audio.frames", "audio.codec", "audio.resample", "audio.vad", "audio.noise_reduction",
    "audio.opus", "audio.errors", "audio.phonemes",
}  # fmt: skip
HEAVY = ("torch", "transformers", "engine", "espeakng_loader", "hibari")
# How many of our own modules a composition root imports: 20 at most, and a number here only falls.
MAX_IMPORTS = {"call/session.py": 15, "call/call.py": 20, "server/app.py": 20}


def python_files(room: str) -> list[Path]:
    """The product's files of a room. Recipes make what ships and are no part of it."""
    paths = (ROOT / room).rglob("*.py")
    return sorted(path for path in paths if not {".venv", "recipes"} & set(path.parts))


def tree_of(path: Path) -> ast.Module:
    """Kept by nobody: a million nodes that live cost the collector more than parsing them."""
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Those within others, too, and no expression: a tenth of what `ast.walk` visits."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, part, [])
            left += inner
            yield from inner


@cache
def imports(path: Path) -> set[str]:
    """Absolute dotted names of every module that a file imports, wherever the statement stands."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    found: set[str] = set()
    for node in statements(tree_of(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = ".".join(package[: len(package) - node.level + 1])
                module = f"{base}.{node.module}" if node.module else base
            else:
                module = node.module or ""
            found.add(module)
            found.update(f"{module}.{alias.name}" for alias in node.names)
    return found


def reaches(names: set[str], *targets: str) -> set[str]:
    return {n for n in names for t in targets if n == t or n.startswith(t + ".")}


def test_an_indented_import_is_seen(tmp_path: Path) -> None:
    source = ROOT / "tests" / "test_layering.py"
    assert "pytest" in imports(source)
    for line in ("def f():\n ", "try:\n pass\nexcept E:\n ", "match x:\n case 1:\n  "):
        tree = ast.parse(f"{line} import torch\n")
        assert any(isinstance(node, ast.Import) for node in statements(tree)), line


@pytest.mark.parametrize("room", ["engine", "audio"])
def test_models_know_no_gateway_and_no_event_loop(room: str) -> None:
    other = "audio" if room == "engine" else "engine"
    for path in python_files(room):
        assert not reaches(imports(path), other, "voiceloop", "clients", "asyncio"), path


@pytest.mark.parametrize("room", ["engine", "audio"])
def test_recipes_of_models_know_no_gateway(room: str) -> None:
    for path in (ROOT / room / "recipes").rglob("*.py"):
        assert not reaches(imports(path), "voiceloop", "clients", "asyncio"), path


def test_no_product_imports_a_recipe() -> None:
    for room in ROOMS:
        for path in python_files(room):
            recipes = {name for name in imports(path) if ".recipes" in name}
            assert not recipes, (path, recipes)


def test_only_the_worker_imports_models() -> None:
    for path in python_files("voiceloop"):
        names = imports(path)
        if str(path.relative_to(ROOT)) in MODEL_MODULES:
            continue
        assert not reaches(names, *HEAVY), path
        touched = {".".join(name.split(".")[:2]) for name in reaches(names, "audio")} - {"audio"}
        assert touched <= GATEWAY_AUDIO, (path, touched)


def test_one_file_imports_ray() -> None:
    found = [path for path in python_files("voiceloop") if reaches(imports(path), "ray")]
    assert [str(path.relative_to(ROOT)) for path in found] == ["voiceloop/cluster/ray.py"]


@each_row("module", PURE_MODULES)
def test_pure_modules_have_no_event_loop_and_no_socket(module: str) -> None:
    names = imports(ROOT / "voiceloop" / f"{module}.py")
    forbidden = (
        "asyncio",
        "anyio",
        "socket",
        "websockets",
        "starlette",
        "uvicorn",
        "time",
        "httpx",
    )
    assert not reaches(names, *forbidden)


def wing_of(module: str) -> str:
    """The folder or top module of the gateway that `voiceloop.x.y` belongs to."""
    return module.split(".")[1]


def imported_wings(path: Path) -> set[str]:
    """The wings of the gateway that a file imports, type-only imports included."""
    named = {name for name in imports(path) if name.startswith("voiceloop.")}
    return {wing_of(name) for name in named} & MAY_IMPORT.keys()


def test_each_wing_imports_only_what_the_table_grants() -> None:
    for path in python_files("voiceloop"):
        own = wing_of_path(path)
        if own == "__init__":
            continue
        assert own in MAY_IMPORT, f"{own}: a wing that the table does not know"
        strangers = imported_wings(path) - MAY_IMPORT[own] - {own}
        assert not strangers, f"{path.relative_to(ROOT)} imports {', '.join(sorted(strangers))}"


def test_the_table_of_wings_has_no_circle_and_nothing_unused() -> None:
    ordered = list(MAY_IMPORT)
    for number, (wing, granted) in enumerate(MAY_IMPORT.items()):
        assert granted <= set(ordered[number + 1 :]), f"{wing} would import what stands above it"
        files = [p for p in python_files("voiceloop") if wing_of_path(p) == wing]
        used = set().union(*(imported_wings(path) for path in files)) - {wing}
        assert granted == used, f"{wing}: granted, not used: {granted - used}"


def wing_of_path(path: Path) -> str:
    return path.relative_to(ROOT / "voiceloop").parts[0].removesuffix(".py")


@pytest.mark.parametrize("room", [*ROOMS, "benchmarks"])
def test_no_files_import_each_other_in_a_circle(room: str) -> None:
    """Type-only imports count: a circle of types is a circle of subjects."""
    files = {module_name(path): path for path in python_files(room)}
    edges = {name: imports(path) & files.keys() - {name} for name, path in files.items()}
    order = TopologicalSorter(edges)
    try:
        order.prepare()
    except CycleError as circle:
        pytest.fail(f"a circle of imports: {' -> '.join(circle.args[1])}")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("root", MAX_IMPORTS)
def test_a_composition_root_imports_few_modules(root: str) -> None:
    ours = {module_name(path) for room in ROOMS for path in python_files(room)}
    named = imports(ROOT / "voiceloop" / root) & ours
    # `from voiceloop.call import session` names the package and the module: it is one import.
    modules = {n for n in named if not any(other.startswith(f"{n}.") for other in named)}
    assert len(modules) <= MAX_IMPORTS[root], sorted(modules)


def test_the_wheel_holds_no_recipes() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        wheel = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]
    for package in wheel["packages"]:
        for recipes in (ROOT / package).rglob("recipes/__init__.py"):
            folder = recipes.parent.relative_to(ROOT)
            assert f"{folder}" in wheel["exclude"], f"{folder} would be in the wheel"


def test_clients_meet_the_server_only_on_the_wire() -> None:
    for path in python_files("clients"):
        assert not reaches(imports(path), "voiceloop", "engine", "audio"), path


def test_only_the_command_line_imports_clients() -> None:
    for path in python_files("voiceloop"):
        if path.stem not in {"cli"}:
            assert not reaches(imports(path), "clients"), path


def test_every_queue_is_bounded() -> None:
    for room in ROOMS:
        for path in python_files(room):
            if "Queue" not in path.read_text(encoding="utf-8"):
                continue
            for node in ast.walk(tree_of(path)):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Queue"):
                    assert node.args or node.keywords, f"{path}:{node.lineno}: queue with no bound"


def test_files_open_with_what_they_own() -> None:
    for room in ROOMS:
        for path in python_files(room):
            text = path.read_text(encoding="utf-8")
            assert not text or text.startswith('"""'), path.relative_to(ROOT)


def test_the_top_level_is_fixed() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split("\n")
    top = {line.split("/")[0] for line in tracked if line}
    assert top <= TOP_LEVEL, top - TOP_LEVEL
