"""Makes an adapter smaller: `python -m engine.recipes.reduce_adapter FROM TO --rank 12`.

Owns the command, and the reduction: of each layer's product B A what its largest singular values
hold, which is the nearest product of that rank (Eckart and Young, 1936).
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

UP, DOWN = "lora_B.weight", "lora_A.weight"


def reduced(adapter: dict[str, Tensor], rank: int) -> tuple[dict[str, Tensor], float]:
    """The adapter in `rank`, and the share of its squared norm that is left.

    adapter: A [rank, in] and B [out, rank] of each layer, by PEFT's names. Raises: ValueError where
    a layer has a lower rank already.
    """
    found: dict[str, Tensor] = {}
    kept = whole = 0.0
    for name in (name for name in adapter if name.endswith(UP)):
        other = name.removesuffix(UP) + DOWN
        up, down = adapter[name].double(), adapter[other].double()
        if up.shape[1] < rank:
            raise ValueError(f"{name}: expected a rank of {rank} or more, found {up.shape[1]}")
        # B A = Q_B (R_B R_A^T) Q_A^T: the small product in the middle has all singular values.
        q_up, r_up = torch.linalg.qr(up)
        q_down, r_down = torch.linalg.qr(down.t())
        left, values, right = torch.linalg.svd(r_up @ r_down.t())
        root = values[:rank].sqrt()
        found[name] = ((q_up @ left[:, :rank]) * root).to(adapter[name].dtype).contiguous()
        found[other] = (root[:, None] * (right[:rank] @ q_down.t())).to(adapter[other].dtype)
        found[other] = found[other].contiguous()
        kept, whole = kept + float(values[:rank].square().sum()), whole + float((values**2).sum())
    return found, kept / whole if whole else 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description="Make an adapter smaller.")
    parser.add_argument("source", type=Path, metavar="FROM", help="a folder in PEFT's format")
    parser.add_argument("target", type=Path, metavar="TO", help="a new folder")
    parser.add_argument("--rank", type=int, required=True)
    given = parser.parse_args()
    if given.rank < 1:
        parser.error(f"--rank: expected 1 or more, found {given.rank}")
    config = json.loads((given.source / "adapter_config.json").read_text(encoding="utf-8"))
    weights, left = reduced(load_file(given.source / "adapter_model.safetensors"), given.rank)
    given.target.mkdir(parents=True)
    scale = config["lora_alpha"] / config["r"]
    config |= {"r": given.rank, "lora_alpha": scale * given.rank}
    text = json.dumps(config, indent=1) + "\n"
    (given.target / "adapter_config.json").write_text(text, encoding="utf-8")
    save_file(weights, given.target / "adapter_model.safetensors")
    shutil.copy(given.source / "chat_template.jinja", given.target)
    print(f"{left:.4f} of the squared norm is left")


if __name__ == "__main__":
    main()
