"""The draft model: a slice of the target, taught to say what the target would say.

Owns the pruning that the draft starts from and the loss that replaces the text by the target's
own probabilities. The loop, the data and the schedule are those of `train_agent`.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..model.agent_model import AgentConfig, AgentModel, document_mask
from ..model.decoding import load_agent
from .corpus import Rows
from .train_options import TrainOptions
from .trainer import Trainer

# Of a draft only the agent's tokens count; a little of the rest keeps its reading apart.
OTHER_WEIGHT = 0.05
AVERAGE_STEPS = 50


@torch.no_grad()
def prune(target: AgentModel, config: AgentConfig) -> AgentModel:
    """A draft cut out of a target of the same hidden size: the first layers and the last one, of
    each MLP the neurons that write the most.

    Raises:
        ValueError: the hidden size or the heads differ.
    """
    given = target.config
    if (given.hidden_size, given.n_heads, given.n_kv_heads) != (
        config.hidden_size,
        config.n_heads,
        config.n_kv_heads,
    ):
        raise ValueError(f"expected a draft as wide as its target, found {config} of {given}")
    draft = AgentModel(config)
    weights = target.state_dict()
    kept = {name: t.clone() for name, t in weights.items() if ".layers." not in name}
    for index, source in enumerate(layers_kept(given.n_layers, config.n_layers)):
        layer = target.model.layers[source]
        mlp = layer.mlp
        size = (
            mlp.gate_proj.weight.norm(dim=1)
            * mlp.up_proj.weight.norm(dim=1)
            * mlp.down_proj.weight.norm(dim=0)
        )
        chosen = size.topk(min(config.intermediate_size, len(size))).indices
        for name, tensor in layer.state_dict().items():
            if name.startswith("mlp."):
                tensor = tensor[:, chosen] if "down_proj" in name else tensor[chosen]
            kept[f"model.layers.{index}.{name}"] = tensor.clone()
    draft.load_state_dict(kept)
    return draft


def layers_kept(n_target: int, n_draft: int) -> list[int]:
    """Return which layers of the target a draft starts from: every other one from the start (the
    pairs that copying needs), and the last.
    """
    found = [min(2 * index, n_target - 1) for index in range(n_draft - 1)]
    return [*found, n_target - 1]


class Distiller(Trainer):
    """Trains the draft on the target's probabilities, in the target's own folder of runs.

    Raises:
        FileNotFoundError: no exported target lies in `out`/target.
    """

    def __init__(self, options: TrainOptions) -> None:
        self.teacher, _ = load_agent(options.out / "target")
        # A short run from weights that already know much: its beginning is soon to be forgotten.
        super().__init__(
            dataclasses.replace(options, grow_at=(), drill_until=0, average_steps=AVERAGE_STEPS)
        )
        self.teacher.to(self.device)

    def _build(self, n_layers: int) -> None:
        super()._build(n_layers)
        self.model.load_state_dict(prune(self.teacher, self.config).float().state_dict())
        self.average = {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def loss_of(self, rows: Rows, at: slice) -> tuple[Tensor, float, float]:
        """Summed weighted cross-entropy to the target's probabilities."""

        def tensor(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array[at]).to(self.device)

        tokens, positions = tensor(rows.tokens), tensor(rows.positions)
        mask = document_mask(tensor(rows.documents))
        weights = distillation_weights(tensor(rows.target_weights)).flatten()
        keep = weights > 0
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16):
            hidden = self.teacher(tokens, positions, mask)[:, :-1].flatten(0, 1)[keep]
            wanted = self.teacher.logits(hidden).float().softmax(-1)
        with torch.autocast(self.device.type, torch.bfloat16):
            hidden = self.model(tokens, positions, mask)[:, :-1].flatten(0, 1)[keep]
            logits = self.model.logits(hidden).float()
        losses = F.cross_entropy(logits, wanted, reduction="none")
        kept = weights[keep]
        agent = kept == 1.0
        return (losses * kept).sum(), float(losses.detach()[agent].sum()), float(agent.sum())


def distillation_weights(weights: Tensor) -> Tensor:
    """The agent's tokens count 1, the caller's little, copied words no more than others."""
    return torch.where(weights >= 1.0, 1.0, torch.where(weights > 0, OTHER_WEIGHT, 0.0))
