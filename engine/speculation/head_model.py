"""A recurrent draft head: what the target was thinking, and the token it chose, to the tokens that may come next.

    x₀ = the target's hidden state that its last token t₀ was chosen from (before the final norm)
    u  = J · [norm(xᵢ) ; norm(E[tᵢ])]          E: the target's embedding
    xᵢ₊₁ = u + D · (silu(G · norm(u)) ⊙ U · norm(u))
    logitsᵢ₊₁ = H · norm(xᵢ₊₁)                 H: the target's own head, of the tokens that it mostly says

As Hydra (Ankner et al. 2402.05109) and ReDrafter (Zhang et al. 2403.09919), a drafted token depends on those before it,
and as in EAGLE (Li et al. 2401.15077) the target's states carry what the prompt said, so there is no cache to keep:
a sequence costs one state. J, G, U, D and the norms are the head's own (3.3 million numbers for the default model); E
and H are the target's, so a head belongs to one target. Where one is found, how it is read, and how torch runs it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

Ints = NDArray[np.int64]
FOLDER = "drafts"  # in assets
# Of the target's final norm, relative: the same checkpoint from another file, or in bfloat16, is off by less.
SAME = 0.01


class HeadProblem(Exception):
    """There is no head for this target; the message says why."""


@dataclass(frozen=True)
class HeadWeights:
    """float32 tensors; see above. `vocabulary` (kept): the target's token numbers, ascending."""

    state_norm: torch.Tensor  # (D)
    token_norm: torch.Tensor  # (D)
    join: torch.Tensor  # (D, 2D)
    mlp_norm: torch.Tensor  # (D)
    gate_up: torch.Tensor  # (2F, D)
    down: torch.Tensor  # (D, F)
    norm: torch.Tensor  # (D)
    vocabulary: torch.Tensor  # (kept) int64
    epsilon: float


class Target(Protocol):
    """What a head is given of its target. `final_norm` (D); rows are (n, D) float32, for tokens (n)."""

    final_norm: torch.Tensor

    def embedding_rows(self, tokens: Ints) -> torch.Tensor: ...

    def head_rows(self, tokens: Ints) -> torch.Tensor: ...


def find(target: torch.Tensor, vocabulary: int) -> HeadWeights:
    """The shipped head whose target has the final norm `target` (D) and so many tokens. Raises HeadProblem."""
    folder = files("assets") / FOLDER
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".safetensors"))
    for name in names:
        weights, made_for = load(Path(str(folder / name)))
        if made_for.shape != target.shape or int(weights.vocabulary.max()) >= vocabulary:
            continue
        if (made_for - target.float().cpu()).abs().max() <= SAME * made_for.abs().max():
            return weights
    raise HeadProblem("no trained draft head is known for this model; n-gram and suffix work with every model")


def load(path: Path) -> tuple[HeadWeights, torch.Tensor]:
    """The head, and the final norm of the target that it was trained for."""
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no dict
        epsilon = float(json.loads(file.metadata()["head"])["eps"])
    floats = {name: value.float() for name, value in tensors.items() if value.is_floating_point()}
    target = floats.pop("target_norm")
    names = {"join.weight": "join", "gate_up.weight": "gate_up", "down.weight": "down"}
    own = {names.get(name, name): value for name, value in floats.items()}
    return HeadWeights(vocabulary=tensors["vocabulary"].long(), epsilon=epsilon, **own), target


class Steps(Protocol):
    """Drafts for a batch. `bytes`: what it holds that the target doesn't."""

    bytes: int

    def greedy(self, states: NDArray[np.float32], tokens: Ints, steps: int) -> Ints:
        """states (B, D), tokens (B) → the likeliest tokens (steps, B), each after those before it."""
        ...

    def start(self, states: NDArray[np.float32]) -> None:
        """Begin a draft that is drawn: states (B, D)."""
        ...

    def logits(self, tokens: Ints) -> torch.Tensor:
        """One step on, for tokens (B): (B, kept) float32, until the next call."""
        ...


class TorchSteps:
    """On the target's device."""

    def __init__(self, weights: HeadWeights, target: Target, device: torch.device):
        tensors = {name: value.to(device) for name, value in vars(weights).items() if isinstance(value, torch.Tensor)}
        self._weights = HeadWeights(epsilon=weights.epsilon, **tensors)
        self._target, self._device = target, device
        self._head = target.head_rows(weights.vocabulary.numpy()).to(device)  # (kept, D)
        self.bytes = self._head.nbytes + sum(tensor.nbytes for tensor in tensors.values())
        self._state = torch.zeros(0)

    @torch.inference_mode()
    def greedy(self, states: NDArray[np.float32], tokens: Ints, steps: int) -> Ints:
        self.start(states)
        found = np.zeros((steps, len(tokens)), np.int64)
        for step in range(steps):
            best = self.logits(tokens).argmax(dim=1)
            tokens = found[step] = self._weights.vocabulary[best].cpu().numpy()
        return found

    def start(self, states: NDArray[np.float32]) -> None:
        self._state = torch.from_numpy(states).to(self._device)

    @torch.inference_mode()
    def logits(self, tokens: Ints) -> torch.Tensor:
        w = self._weights
        embedded = self._target.embedding_rows(tokens).to(self._device)
        state = normalised(self._state, w.epsilon) * w.state_norm
        u = torch.cat((state, normalised(embedded, w.epsilon) * w.token_norm), dim=1) @ w.join.T
        gate, up = ((normalised(u, w.epsilon) * w.mlp_norm) @ w.gate_up.T).chunk(2, dim=1)
        self._state = u + (torch.nn.functional.silu(gate) * up) @ w.down.T
        return (normalised(self._state, w.epsilon) * w.norm) @ self._head.T


def normalised(x: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + epsilon)
