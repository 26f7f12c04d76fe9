"""The recognizers and voices of `benchmarks.speech_bench`: their classes, and how one is loaded."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from clients.errors import ClientError

# name -> (class, whether it needs a folder)
RECOGNIZERS: dict[str, tuple[str, bool]] = {
    "moonshine-tiny": ("audio.asr.moonshine.onnx_network:MoonshineOnnxRecognizer", False),
    "moonshine-base": ("audio.asr.moonshine.onnx_network:MoonshineOnnxRecognizer", True),
    "whisper-tiny": ("audio.asr.whisper:WhisperRecognizer", True),
    "whisper-base": ("audio.asr.whisper:WhisperRecognizer", True),
}
# What a model of a package is called with. "hibari" computes every clause anew, "hibari-kept" says
# what it has said before, as a server does.
OPTIONS: dict[str, dict[str, Any]] = {
    "hibari": {"kept_mb": 0},
    "kokoro": {"kept_mb": 0},
}
NOT_IN_TORCH = ("moonshine-base", "kokoro")  # they are told no device
VOICES: dict[str, tuple[str, bool]] = {
    "espeak": ("audio.tts.espeak:EspeakVoice", False),
    "hibari": ("audio.tts.hibari:HibariVoice", False),
    "hibari-kept": ("audio.tts.hibari:HibariVoice", False),
    "kokoro": ("audio.tts.kokoro:KokoroVoice", True),
}
DEFAULT_MODELS = (
    *("moonshine-tiny", "whisper-tiny"),
    *("hibari", "hibari-kept", "espeak"),
)


def load(name: str, folders: dict[str, Path], scratch: Path) -> tuple[Any, bool]:
    """The model, and whether its weights are random."""
    place, needs_folder = (RECOGNIZERS | VOICES)[name]
    module, _, class_name = place.partition(":")
    build = getattr(import_module(module), class_name)
    if not needs_folder:
        return build(**OPTIONS.get(name, {})), False
    folder, is_random = folders.get(name), name not in folders
    options = {**OPTIONS.get(name, {}), **({} if name in NOT_IN_TORCH else {"device": "cpu"})}
    if folder is None:
        from benchmarks.harness.random_checkpoints import BUILDERS

        if name not in BUILDERS:
            raise ClientError(f"{name}: expected --folder {name}=PATH with it, found none")
        folder = scratch / name
        folder.mkdir()
        BUILDERS[name](folder)
    if name.startswith("whisper"):
        options["cache_dir"] = scratch / "converted"
    return build(folder, **options), is_random
