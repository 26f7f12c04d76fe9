"""The facts of MODEL_CARDS.md: from the catalog, the files that ship, NOTICE.md, and their cards.

``python -m tests.manual.reference`` writes them between the page's marks. Figures and limits are
those of a model's own card or of RESULTS.md, where a command makes them; the page has no others.
"""

from __future__ import annotations

import json
import math
import re
import struct
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from voiceloop.models.catalog import MODELS, PRESETS
from voiceloop.models.model import Model

ROOT = Path(__file__).resolve().parents[2]
RESULTS = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
GATES = tomllib.loads((ROOT / "voiceloop/models/gates.toml").read_text(encoding="utf-8"))["gate"]
ROLES = {"engine": "language model", "recognizer": "recognizer", "voice": "voice"}


@dataclass(frozen=True, slots=True)
class Shipped:
    """Weights in VoiceLoop's own package. heading: of the card's part that is about them."""

    role: str
    folder: str
    files: str
    card: str
    heading: str = ""


AGENT = "engine/embedded/README.md"
SHIPPED = {
    "embedded": Shipped("", "engine/embedded/agent", "model-*.safetensors", AGENT, "Figures"),
    "draft": Shipped(
        "draft model of the embedded agent", "engine/embedded/draft", "*.safetensors", AGENT
    ),
    "end_of_turn": Shipped(
        "head of the embedded agent: is the caller's turn over, by the words",
        "engine/embedded/agent", "end_of_turn.safetensors", AGENT,
    ),
    "smollm2-135m": Shipped(
        "", "engine/embedded/smollm2-135m", "adapter_model.safetensors",
        "engine/embedded/smollm2-135m/README.md", "Figures",
    ),
    "end_of_voice": Shipped(
        "head on Moonshine tiny's encoder: has the voice finished",
        "audio/embedded/end_of_voice", "*.safetensors", "audio/embedded/end_of_voice/CARD.md",
        "Figures",
    ),
    "for_agent": Shipped(
        "head on Moonshine tiny's encoder: is a sound over the agent meant for it",
        "audio/embedded/for_agent", "*.safetensors", "audio/embedded/for_agent/CARD.md", "Figures",
    ),
    "voice_activity": Shipped(
        "voice detector: does a window of 32 ms hold speech",
        "audio/embedded/voice_activity", "*.onnx", "audio/embedded/voice_activity/CARD.md",
    ),
}  # fmt: skip
# In RESULTS.md, how the first row of each table of a model begins.
TABLES = {
    "moonshine-tiny": ("| Moonshine tiny | as recorded", "| last sound to full hypothesis"),
    "hibari": ("| voice | DNSMOS", "| hibari | measured"),
    "end_of_turn": ("| | words | voice | both",),
}


def _rows(rows: Iterator[tuple[str, str]]) -> str:
    return "| | |\n|---|---|\n" + "".join(f"| {name} | {told} |\n" for name, told in rows)


def facts(name: str) -> str:
    """Return the table of what a model is."""
    known = {model.name: model for model in MODELS}
    return _rows(_facts(known.get(name), SHIPPED.get(name), name))


def _facts(model: Model | None, shipped: Shipped | None, name: str) -> Iterator[tuple[str, str]]:
    if model is None:
        assert shipped is not None
        yield "what it is", shipped.role
    else:
        yield "what it is", ROLES[model.role]
        yield "comes from", _origin(model, shipped)
        yield "licence", model.licence
        yield "languages", model.languages
        in_presets = [one.name for one in PRESETS if model in one.models.values()]
        if in_presets:
            yield "in the presets", ", ".join(f"`{one}`" for one in in_presets)
        if model.repo is not None:
            yield "size", f"{model.repo.size_mb} MB"
        if model.fallback is not None:
            yield "where it is missing", f"`{model.fallback.name}` takes its place"
    if shipped is not None:
        yield from _shipped(shipped)
    for gate in GATES:
        if gate["model"] == name:
            told = (
                f"{100 * gate['agreement']:.2f} % of {gate['n_places']} likeliest tokens as bf16's"
            )
            form = f"weights {gate['weights']}, keys and values {gate['kv']}"
            yield form, f"{told}, KL {gate['kl_nats']:.4f} nats"


def _origin(model: Model, shipped: Shipped | None) -> str:
    if model.repo is not None:
        link = f"https://huggingface.co/{model.repo.id}/tree/{model.repo.revision}"
        what = f": `{model.file}`" if model.file else ""
        return f"[{model.repo.id}]({link}) at commit {model.repo.revision[:7]}{what}"
    if model.requires:
        name, _, version = model.requires.partition("==")
        return f"the package `{name}` {version}"
    assert shipped is not None
    return "VoiceLoop's own package"


def _shipped(shipped: Shipped) -> Iterator[tuple[str, str]]:
    paths = sorted((ROOT / shipped.folder).glob(shipped.files))
    assert paths, shipped
    yield "ships in", f"`{shipped.folder}/`, {_size(sum(path.stat().st_size for path in paths))}"
    weights = [path for path in paths if path.suffix == ".safetensors"]
    if weights:
        n_weights = sum(map(_n_weights, weights))
        yield (
            "parameters",
            f"{n_weights / 1e6:.1f} million" if n_weights > 1e6 else f"{n_weights:,}",
        )
    yield "licence of what ships", " and ".join(dict.fromkeys(_licences(shipped.folder)))
    yield "data, and how it was made", f"[its card](../../{shipped.card})"


def _licences(folder: str) -> Iterator[str]:
    """Yield what NOTICE.md says of the folder, or of a file in it."""
    for row in (ROOT / "NOTICE.md").read_text(encoding="utf-8").splitlines():
        cells = row.split("|")
        path = re.search(r"`([\w/.-]+)`", cells[2]) if len(cells) == 6 else None
        if path is not None and (path[1].startswith(folder) or folder.startswith(path[1])):
            yield re.split(r" \(|,", cells[3].strip(" *"))[0]


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.1f} MB" if n_bytes >= 1e6 else f"{n_bytes / 1e3:.0f} kB"


def _n_weights(path: Path) -> int:
    with path.open("rb") as file:
        [n_bytes] = struct.unpack("<Q", file.read(8))
        head = json.loads(file.read(n_bytes))
    return sum(math.prod(one["shape"]) for name, one in head.items() if name != "__metadata__")


def measured(name: str) -> str:
    """Return a model's figures: its card's rows that have a bar, or its tables of RESULTS.md."""
    found = [_table(RESULTS, begin) for begin in TABLES.get(name, ())]
    if found:
        return "\n".join(found)
    card = (ROOT / SHIPPED[name].card).read_text(encoding="utf-8")
    _, _, part = card.partition(f"## {SHIPPED[name].heading}\n")
    head, line, *rows = _table(part, "|").splitlines()
    barred = [row for row in rows if head.startswith("| measure ") and row.split("|")[4].strip()]
    return "\n".join([head, line, *(barred or rows)]) + "\n"


def _table(text: str, begin: str) -> str:
    _, found, rest = text.partition(f"\n{begin}")
    assert found, begin
    lines = (begin + rest).splitlines()
    end = next((n for n, one in enumerate(lines) if not one.startswith("|")), len(lines))
    return "\n".join(lines[:end]) + "\n"


def limits(name: str) -> str:
    """Return what a model's own card says that it cannot do."""
    card = (ROOT / SHIPPED[name].card).read_text(encoding="utf-8")
    _, _, part = card.partition("## Limits\n")
    return part.partition("\n## ")[0].strip() + "\n"
