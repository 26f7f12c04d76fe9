"""Bad input on the command line: exit code 2 and one sentence that says what was expected."""

from __future__ import annotations

import socket
import subprocess
import sys
import wave
from pathlib import Path

import pytest

from voiceloop.cli import build_parser, main


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("VOICELOOP_")]:
        monkeypatch.delenv(name)


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Run the command; it must exit with 2 and say one line on standard error."""
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.strip().splitlines()
    assert line.startswith("voiceloop: ")
    return line


def wav(path: Path, n_channels: int, width: int, n_frames: int = 800) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(n_channels)
        file.setsampwidth(width)
        file.setframerate(16_000)
        file.writeframes(bytes(n_channels * width * n_frames))
    return path


def test_a_busy_port_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refusal(capsys, "serve", "--port", str(port))
    assert "expected a free port" in line
    assert str(port) in line


def test_an_unknown_config_key_names_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "voiceloop.toml"
    path.write_text("prot = 8080\n")
    line = refusal(capsys, "serve", "--config", str(path))
    assert "'prot'" in line
    assert "'port'" in line


def test_a_missing_config_agent_or_preset_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "none.toml" in refusal(capsys, "serve", "--config", str(tmp_path / "none.toml"))
    assert "none.toml" in refusal(
        capsys, "serve", "--port", "0", "--agent", str(tmp_path / "none.toml")
    )
    assert "'cloud'" in refusal(capsys, "serve", "--port", "0", "--preset", "cloud")


def test_flags_win_over_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VOICELOOP_LLM_URL", "http://127.0.0.1:9/v1")
    assert "found llm_url" in refusal(capsys, "serve", "--llm-adapter", "here")
    assert "80000" in refusal(capsys, "serve", "--port", "80000")
    assert "expected a whole number, found 'many'" in refusal(capsys, "serve", "--port", "many")


@pytest.mark.parametrize(
    ("command", "n_channels", "width", "n_frames", "found"),
    [
        ("demo", 2, 2, 800, "stereo"),
        ("demo", 1, 1, 800, "8-bit"),
        ("demo", 1, 2, 0, "empty"),
        ("demo", 1, 2, 800, "silence"),
        ("talk", 2, 3, 0, "empty"),
        ("talk", 2, 3, 800, "silence"),
    ],
)
def test_a_wav_that_cannot_speak_is_refused(
    command: str,
    n_channels: int,
    width: int,
    n_frames: int,
    found: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = wav(tmp_path / "in.wav", n_channels, width, n_frames)
    out = () if command == "talk" else ("--out", str(tmp_path / "out"))
    line = refusal(capsys, command, "--wav", str(path), *out)
    assert "expected" in line
    assert found in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["demo", "talk"])
def test_what_is_no_wav_or_not_there_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.wav"
    assert "found no" in refusal(capsys, command, "--wav", str(path))
    path.write_text("this is no audio")
    assert str(path) in refusal(capsys, command, "--wav", str(path))


def test_talk_does_not_write_over_the_recording_it_speaks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = wav(tmp_path / "in.wav", 1, 2, 800)
    before = path.read_bytes()
    same = tmp_path / "." / "in.wav"
    line = refusal(capsys, "talk", "ws://127.0.0.1:1", "--wav", str(path), "--out", str(same))
    assert "expected --out to name another file than --wav" in line
    assert path.read_bytes() == before


def test_talk_without_a_server_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "in.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24_000)
        file.writeframes(b"\x00\x20" * 2400)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    line = refusal(capsys, "talk", f"ws://127.0.0.1:{port}", "--wav", str(path))
    assert "No server answers at" in line


def test_talk_without_sounddevice_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    line = refusal(capsys, "talk")
    assert "voiceloop[talk]" in line
    assert "--wav" in line


def test_talk_without_a_microphone_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class NoDevice:
        PortAudioError = OSError

        @staticmethod
        def RawInputStream(**_: object) -> None:  # noqa: N802 - the library's name
            raise OSError("Error querying device -1")

    monkeypatch.setitem(sys.modules, "sounddevice", NoDevice)
    line = refusal(capsys, "talk")
    assert "expected a microphone" in line


def test_a_recording_that_cannot_be_written_is_refused_before_the_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24_000)
        file.writeframes(b"\x00\x20" * 2400)
    out = tmp_path / "missing" / "out.wav"
    line = refusal(capsys, "talk", "ws://127.0.0.1:1", "--wav", str(path), "--out", str(out))
    assert f"expected a file that can be written at {out}" in line


def test_a_missing_extra_names_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacks_torch(*_: object) -> int:
        raise ModuleNotFoundError("No module named 'torch'", name="torch.nn")

    monkeypatch.setattr("voiceloop.cli._serve", lacks_torch)
    assert "pip install 'voiceloop[embedded]'" in refusal(capsys, "serve")


@pytest.mark.parametrize(
    "argv",
    [
        ("sing",),
        ("demo", "--loud"),
        ("conformance", "--jobs", "0"),
        ("conformance", "--timeout", "nan"),
        ("bench",),
        ("bench", "http://127.0.0.1:1", "--at-once", "1,0"),
    ],
)
def test_arguments_that_do_not_exist_exit_with_2(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("voiceloop") and told.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "command", "nearest"),
    [
        (("serve", "--prot", "3"), "voiceloop serve", "'--port'"),
        (("servee",), "voiceloop", "'serve'"),
        (("models", "pul", "cpu"), "voiceloop models", "'pull'"),
    ],
)
def test_a_mistyped_word_names_its_own_command_and_the_nearest(
    argv: tuple[str, ...], command: str, nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(argv)
    told = capsys.readouterr().err
    assert told.startswith(f"{command}: error: ") and f"{command} --help" in told
    assert f"; the nearest is {nearest} (" in told


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("demo", "serve", "talk", "models", "doctor"):
        with pytest.raises(SystemExit) as ended:
            build_parser().parse_args([command, "--help"])
        assert ended.value.code == 0
        assert f"usage: voiceloop {command}" in capsys.readouterr().out


def test_the_command_line_itself_imports_nothing_heavy() -> None:
    code = (
        "import sys, voiceloop.cli; voiceloop.cli.build_parser(); "
        "print([m for m in ('numpy', 'rich', 'starlette', 'torch') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_the_models_of_a_preset_that_are_not_on_disk_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert "voiceloop models pull cpu" in refusal(capsys, "models", "path", "cpu")
    assert "comes with its packages" in refusal(capsys, "models", "path", "embedded")
    assert "expected one of" in refusal(capsys, "models", "pull", "huge")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(("models", "pull", "cpu")) == 2
    told = capsys.readouterr()
    assert "1.1 GB to fetch in 1 part, some 3 min" in told.out and "HF_HUB_OFFLINE" in told.err
    assert main(["models", "path"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path)
    assert main(["models", "list"]) == 0
    listed = capsys.readouterr().out
    assert "gpu: one NVIDIA GPU" in listed
    assert "not here: voiceloop models pull Qwen/Qwen2.5-1.5B-Instruct-GGUF" in listed
