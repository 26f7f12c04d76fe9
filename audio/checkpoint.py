"""Checkpoints of transformers' classes from a folder on disk, and the device they run on.

The heavy packages are imported here and nowhere above, so that a worker without them starts; what
is missing becomes one sentence with its remedy.
"""

import re
from pathlib import Path
from typing import Any

from .errors import AudioError

DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


def torch_device(device: str, purpose: str) -> tuple[Any, Any]:
    """torch itself, and the device: "cpu", "cuda", "cuda:1", or "auto" for CUDA where it is.

    Raises: AudioError if torch or the device is absent.
    """
    check_device(device)
    extra = "gpu" if device.startswith("cuda") else "cpu"
    try:
        import torch
    except ImportError:
        raise AudioError(
            f"expected torch for {purpose}, found none; remedy: pip install 'voiceloop[{extra}]'"
        ) from None
    n_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.startswith("cuda"):
        check_index(device, n_devices)
        return torch, torch.device(device)
    return torch, torch.device("cuda" if n_devices and device == "auto" else "cpu")


def check_device(device: str) -> None:
    """Raises: AudioError if it is no device's name."""
    if not DEVICE.fullmatch(device):
        raise AudioError(f"expected the device auto, cpu, cuda or cuda:N, found {device!r}")


def check_index(device: str, n_devices: int) -> int:
    """Return which of so many CUDA devices is named. Raises: AudioError if it is not there."""
    if not n_devices:
        raise AudioError("expected a CUDA device, found none; remedy: use device cpu")
    index = int(device.partition(":")[2] or 0)
    if index >= n_devices:
        raise AudioError(f"expected a device of cuda:0 to cuda:{n_devices - 1}, found {device}")
    return index


def load_checkpoint(class_name: str, folder: Path, **options: Any) -> Any:
    """`transformers.<class_name>` from folder's safetensors; nothing is downloaded or unpickled.

    Raises: AudioError if transformers lacks the class, or the folder does not hold it.
    """
    try:
        import transformers
    except ImportError:
        raise AudioError(
            f"expected transformers for {class_name}, found none; "
            "remedy: pip install 'voiceloop[gpu]'"
        ) from None
    loader = getattr(transformers, class_name, None)
    if loader is None:
        raise AudioError(
            f"expected a transformers that has {class_name}, found {transformers.__version__}; "
            "remedy: pip install -U 'transformers>=5.23'"
        )
    if not folder.is_dir():
        raise AudioError(
            f"expected a model folder, found none at {str(folder)!r}; "
            "remedy: voiceloop models pull NAME, or name the folder you downloaded"
        )
    # A worker's output is the gateway's log: no progress bars in it.
    hub_logging = getattr(getattr(transformers, "utils", None), "logging", None)
    if hub_logging is not None:
        hub_logging.disable_progress_bar()
    try:
        return loader.from_pretrained(
            str(folder), local_files_only=True, use_safetensors=True, **options
        )
    except ImportError as error:  # an older transformers asks for packages that newer ones do not
        wanted = " ".join(str(error).split())
        raise AudioError(
            f"expected the packages that {class_name} needs, found: {wanted}; "
            "remedy: pip install -U 'transformers>=5.23'"
        ) from error
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise AudioError(f"expected a {class_name} in {folder}, found: {error}") from error
