"""The house's layers, read from every import statement, the indented ones too."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("voiceloop", "engine", "audio", "clients")
TOP_LEVEL = {
    "pyproject.toml", "README.md", "voiceloop", "engine", "audio", "clients", "tests",
    "benchmarks", "LICENSE", "NOTICE.md", "CHANGELOG.md", "Makefile", "constraints.txt", ".ci",
    ".gitignore",
}  # fmt: skip
MODEL_MODULES = {"worker", "chat_template", "language_role", "recognizer_role", "voice_role"}
PURE_MODULES = ("protocol", "events", "endpointing", "evidence", "conversation", "admission")
GATEWAY_AUDIO = {"audio.frames", "audio.codec", "audio.resample", "audio.vad"}
HEAVY = ("torch", "transformers", "engine", "pocketsphinx", "espeakng_loader")
MAX_LINES = 400


def python_files(room: str) -> list[Path]:
    return sorted(path for path in (ROOT / room).rglob("*.py") if ".venv" not in path.parts)


def imports(path: Path) -> set[str]:
    """Absolute dotted names of every module that a file imports, wherever the statement stands."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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
    tree = ast.parse("def f():\n    import torch\n")
    assert any(isinstance(node, ast.Import) for node in ast.walk(tree))


@pytest.mark.parametrize("room", ["engine", "audio"])
def test_models_know_no_gateway_and_no_event_loop(room: str) -> None:
    other = "audio" if room == "engine" else "engine"
    for path in python_files(room):
        assert not reaches(imports(path), other, "voiceloop", "clients", "asyncio"), path


def test_only_the_worker_imports_models() -> None:
    for path in python_files("voiceloop"):
        names = imports(path)
        if path.stem in MODEL_MODULES:
            continue
        assert not reaches(names, *HEAVY), path
        touched = {".".join(name.split(".")[:2]) for name in reaches(names, "audio")} - {"audio"}
        assert touched <= GATEWAY_AUDIO, (path, touched)


@pytest.mark.parametrize("module", PURE_MODULES)
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
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Queue"):
                    assert node.args or node.keywords, f"{path}:{node.lineno}: queue with no bound"


def test_files_stay_readable() -> None:
    for room in ROOMS:
        for path in python_files(room):
            n_lines = len(path.read_text(encoding="utf-8").splitlines())
            assert n_lines <= MAX_LINES, f"{path.relative_to(ROOT)} has {n_lines} lines"


def test_files_open_with_what_they_own() -> None:
    for room in ROOMS:
        for path in python_files(room):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            assert not tree.body or ast.get_docstring(tree), path.relative_to(ROOT)


def test_the_top_level_is_fixed() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split("\n")
    top = {line.split("/")[0] for line in tracked if line}
    assert top <= TOP_LEVEL, top - TOP_LEVEL
