"""Checkpoints of transformers' classes from a folder on disk, and the device they run on.

The heavy packages are imported here and nowhere above, so that a worker without them starts; what
is missing becomes one sentence with its remedy.
"""

from pathlib import Path
from typing import Any

from .errors import AudioError


def torch_device(device: str, purpose: str) -> tuple[Any, Any]:
    """torch itself, and the device: "cpu", "cuda", or "auto" for CUDA where it is.

    Raises: AudioError if torch or the device is absent.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise AudioError(f"expected the device auto, cpu or cuda, found {device!r}")
    extra = "gpu" if device == "cuda" else "cpu"
    try:
        import torch
    except ImportError:
        raise AudioError(
            f"expected torch for {purpose}, found none; remedy: pip install 'voiceloop[{extra}]'"
        ) from None
    has_cuda = torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        raise AudioError("expected a CUDA device, found none; remedy: use device cpu")
    return torch, torch.device("cuda" if has_cuda and device != "cpu" else "cpu")


def load_checkpoint(class_name: str, folder: Path, **options: Any) -> Any:
    """`transformers.<class_name>` from folder's safetensors; nothing is downloaded or unpickled.

    Raises: AudioError if transformers lacks the class, or the folder does not hold it.
    """
    try:
        import transformers
    except ImportError:
        raise AudioError(
            f"expected transformers for {class_name}, found none; "
            "remedy: pip install 'voiceloop[cpu]'"
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
