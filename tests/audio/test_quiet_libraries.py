"""Libraries beneath the models tell nobody anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_onnxruntime_is_told_to_report_nothing_before_it_can_be_imported() -> None:
    environ = {name: v for name, v in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    told = "import os, audio.vad; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    command = [sys.executable, "-c", told]
    said = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True)
    assert said.stdout.strip() == "1", said.stderr


def test_only_audio_imports_onnxruntime_in_the_product() -> None:
    importers = {
        path.relative_to(ROOT).parts[0]
        for room in ("voiceloop", "engine", "audio", "clients")
        for path in (ROOT / room).rglob("*.py")
        if "import onnxruntime" in path.read_text()
    }
    assert importers == {"audio"}
