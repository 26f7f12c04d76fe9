"""The way from a folder on disk to a Whisper decoder: which device, and what is missing.

CTranslate2 still links CUDA 12's cuBLAS while torch moves to CUDA 13, so its libraries are looked
for before the first decode would crash on them.
"""

import ctypes
import os
import secrets
import shutil
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from ..checkpoint import check_device, check_index
from ..errors import AudioError
from .whisper_decoder import Ct2Decoder

# What CTranslate2 4.x loads by name at the first CUDA operation, and the wheel that has it.
CUDA_LIBRARIES = {
    "libcublas.so.12": ("nvidia/cublas/lib", "nvidia-cublas-cu12"),
    "libcudnn.so.9": ("nvidia/cudnn/lib", "nvidia-cudnn-cu12"),
}
COMPUTE_TYPES = {"cpu": "int8", "cuda": "int8_float16"}
PARTIAL = ".partial"  # what an unfinished conversion's folder ends with
ABANDONED_AFTER_S = 3600.0  # the largest Whisper is converted within minutes


def open_decoder(
    folder: Path,
    device: str,
    compute_type: str | None,
    n_threads: int,
    cache_dir: str | Path | None,
) -> tuple[Ct2Decoder, str]:
    """The decoder for folder, and the device it runs on.

    Raises: AudioError if nothing on this machine can run it; the message has the remedy.
    """
    check_device(device)
    if not (folder / "config.json").is_file():
        raise AudioError(
            f"expected a Whisper model in {str(folder)!r} (config.json and its weights), found "
            "none; remedy: voiceloop models pull NAME, or name the folder you downloaded"
        )
    usable = choose_device(device)
    ct2_folder = folder if is_ct2(folder) else convert(folder, cache_dir)
    chosen = compute_type or COMPUTE_TYPES[usable.partition(":")[0]]
    return Ct2Decoder(ct2_folder, usable, chosen, n_threads), usable


def choose_device(device: str) -> str:
    """The device CTranslate2 shall use. Raises: AudioError if CUDA is there and does not work."""
    n_devices = 0 if device == "cpu" else _n_cuda_devices()
    if device == "cpu" or (device == "auto" and not n_devices):
        return "cpu"
    missing = missing_cuda_libraries()
    if missing or not n_devices:
        found = f"no {' and no '.join(missing)}" if missing else "no CUDA device"
        raise AudioError(
            f"expected a CUDA device and CUDA 12's libraries for faster-whisper, found {found}; "
            f"remedy: {_remedy(missing)}"
        )
    if device == "auto":
        return "cuda"
    check_index(device, n_devices)
    return device


def missing_cuda_libraries(
    load: Callable[[str], object] | None = None,
) -> tuple[str, ...]:
    """Names of CUDA_LIBRARIES that cannot be loaded, the wheels' own folders included.

    A library found in a wheel is loaded for the whole process, so that CTranslate2 finds it.
    """
    if load is None:
        load = _load_globally
    missing = []
    for name, (wheel_folder, _) in CUDA_LIBRARIES.items():
        places = [name, *(str(Path(root) / wheel_folder / name) for root in _site_folders())]
        if not any(_loads(load, place) for place in places):
            missing.append(name)
    return tuple(missing)


def is_ct2(folder: Path) -> bool:
    has_vocabulary = any((folder / f"vocabulary.{end}").is_file() for end in ("json", "txt"))
    return has_vocabulary and (folder / "model.bin").is_file()


def convert(folder: Path, cache_dir: str | Path | None) -> Path:
    """A CTranslate2 copy of a Hugging Face folder, made once and kept in cache_dir.

    Raises: AudioError if transformers or torch is absent, or the checkpoint is no Whisper.
    """
    root = Path(cache_dir) if cache_dir is not None else _cache_root()
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise AudioError(
            f"expected weights (*.safetensors, or CTranslate2's model.bin) in {folder}, found none"
        )
    stamp = max(path.stat().st_mtime_ns for path in weights)
    target = root / f"{folder.resolve().name}-{stamp:x}"
    if is_ct2(target):
        return target
    if find_spec("transformers") is None or find_spec("torch") is None:
        raise AudioError(
            f"expected transformers and torch to convert {folder} for faster-whisper, found none; "
            "remedy: pip install 'voiceloop[gpu]', or name a CTranslate2 folder"
        )
    from ctranslate2.converters import TransformersConverter

    kept = [n for n in ("tokenizer.json", "preprocessor_config.json") if (folder / n).is_file()]
    try:
        root.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(root)
        # Not of `tempfile`, whose folders are the owner's alone: a cache may be shared.
        partial = root / f"{target.name}.{secrets.token_hex(8)}{PARTIAL}"
        partial.mkdir()
        try:
            TransformersConverter(str(folder), copy_files=kept).convert(
                str(partial), quantization="float16", force=True
            )
            _move_into_place(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise AudioError(f"expected a Whisper checkpoint in {folder}, found: {error}") from error
    return target


def _move_into_place(partial: Path, target: Path) -> None:
    """target is then a whole conversion: this one, or one that another process finished first."""
    if not is_ct2(target):
        shutil.rmtree(target, ignore_errors=True)
    try:
        partial.rename(target)
    except OSError:
        if not is_ct2(target):
            raise


def _remove_abandoned(root: Path) -> None:
    """Conversions that were interrupted; one under way writes its files, so it is not that old."""
    for partial in root.glob(f"*{PARTIAL}"):
        try:
            newest_s = max(path.stat().st_mtime for path in (partial, *partial.iterdir()))
        except OSError:
            continue  # another process removed it
        if time.time() - newest_s > ABANDONED_AFTER_S:
            shutil.rmtree(partial, ignore_errors=True)


def _cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "voiceloop" / "whisper"


def _n_cuda_devices() -> int:
    import ctranslate2

    n_devices: int = ctranslate2.get_cuda_device_count()
    return n_devices


def _site_folders() -> list[str]:
    spec = find_spec("nvidia")
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [str(Path(place).parent) for place in spec.submodule_search_locations]


def _load_globally(name: str) -> object:
    return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)


def _loads(load: Callable[[str], object], name: str) -> bool:
    try:
        load(name)
    except OSError:
        return False
    return True


def _remedy(missing: tuple[str, ...]) -> str:
    if not missing:
        return "use device cpu"
    wheels = " ".join(CUDA_LIBRARIES[name][1] for name in missing)
    return f"pip install {wheels}, or use device cpu"
