"""Train a draft head on text that its target wrote (`collect`): how the weights in assets/drafts were made.

    python -m engine.training.fit WORK OUT --tokens 1000000 --seed 1

writes text into WORK unless it is there, trains, and saves the head as it goes, with what share of its drafts on
answers held back would be accepted.

The head is unrolled over STEPS drafted tokens on the text's own tokens, as a draft is only ever judged by those: once
one is wrong, what follows it is discarded. What it is taught is the target's distribution at each place, half of it
sharpened to the likeliest token, since greedy drafts and most draws are that. A later draft counts less: it is
examined only when those before it were accepted.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from engine.model.store import resolve
from engine.model.tensor_plan import open_planned
from engine.model.weights import Weights, read
from engine.training import collect

STEPS = 4  # drafted tokens that a start is unrolled over, at most
DISCOUNT = 0.8  # weight of a drafted token, relative to the one before
SHARP = 0.5  # share of the loss that is on the likeliest token alone
BATCH = 768  # starts a step
RATE = 2e-3  # peak learning rate
WARM = 100  # steps
DECAY = 0.05
# What keeps a few million numbers from learning the answers by heart. Without it, after four times through 340,000
# tokens, 77 % of a head's first tokens were right on that text and 48 % on other: so no text is seen often, either.
DROPOUT = 0.1
NOISE = 0.05  # of a state, relative to its root mean square; EAGLE found the same need
SHARE = (1.0, 0.75, 0.5, 0.4)  # of the starts that a drafted token is taught on: the later ones are examined less often
HELD_BACK = 0.03  # share of the answers that aren't trained on


class Head(nn.Module):
    """See engine.speculation.head_model. `weights`: the target's, whose embedding and head stay as they are."""

    def __init__(self, weights: Weights, inner: int, vocabulary: NDArray[np.int64]):
        super().__init__()
        width = weights.embedding.shape[1]
        self.eps = 1e-5
        kept = torch.from_numpy(vocabulary)
        self.register_buffer("embedding", normalised(weights.embedding.float(), self.eps), persistent=False)
        self.register_buffer("head", weights.head.float()[kept].contiguous(), persistent=False)
        self.state_norm = nn.Parameter(torch.ones(width))
        self.token_norm = nn.Parameter(torch.ones(width))
        self.join = nn.Linear(2 * width, width, bias=False)
        self.mlp_norm = nn.Parameter(torch.ones(width))
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.norm = nn.Parameter(weights.norm.float().clone())
        with torch.no_grad():
            self.down.weight.mul_(0.3)

    def forward(self, state: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """state (n, width), tokens (n) → the next state and logits (n, kept vocabulary)."""
        s = normalised(state, self.eps) * self.state_norm
        e = self.embedding[tokens] * self.token_norm
        x = self.join(F.dropout(torch.cat((s, e), dim=1), DROPOUT, self.training))
        gate, up = self.gate_up(normalised(x, self.eps) * self.mlp_norm).chunk(2, dim=1)
        x = x + self.down(F.dropout(F.silu(gate) * up, DROPOUT, self.training))
        return x, (normalised(x, self.eps) * self.norm) @ self.head.T


def normalised(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)


class Text:
    """What `collect` wrote, in one piece."""

    def __init__(self, folders: list[Path]):
        tokens = [np.load(folder / "tokens.npy") for folder in folders]
        for number, part in enumerate(tokens):
            part["answer"] += number * 10_000_000
        self.tokens = np.concatenate(tokens)
        self.hidden = torch.from_numpy(np.concatenate([np.load(folder / "hidden.npy") for folder in folders]))
        answers = np.unique(self.tokens["answer"])
        held = set(np.random.default_rng(0).choice(answers, max(1, round(len(answers) * HELD_BACK)), replace=False))
        self.held = np.isin(self.tokens["answer"], list(held))
        # (n): places that follow this one within its answer
        ends = np.flatnonzero(np.append(np.diff(self.tokens["answer"]) != 0, True))
        self.left = ends[np.searchsorted(ends, np.arange(len(self.tokens)))] - np.arange(len(self.tokens))
        greedy = np.ones(answers.max() + 1, bool)
        greedy[self.tokens["answer"][self.tokens["token"] != self.tokens["top"][:, 0]]] = False
        self.greedy = greedy[self.tokens["answer"]]

    def vocabulary(self, count: int) -> NDArray[np.int64]:
        """The tokens that are most often the likeliest or taken, ascending."""
        seen = np.bincount(np.concatenate((self.tokens["token"], self.tokens["top"][:, 0])))
        return np.sort(np.argsort(-seen, kind="stable")[:count])


def train(text: Text, weights: Weights, out: Path, inner: int, kept: int, epochs: float, seed: int) -> None:
    """Fit a head with `inner` units over the `kept` most frequent tokens and save it to `out`, now and then and at the
    end. It learns the target's own distribution of the next token, and with falling weight of those after it: there it
    goes on from its own state, as when it drafts."""
    torch.manual_seed(seed)
    vocabulary = text.vocabulary(kept)
    place = torch.full((len(weights.embedding),), -1)
    place[torch.from_numpy(vocabulary)] = torch.arange(kept)
    model = Head(weights, inner, vocabulary)
    top, p = torch.from_numpy(text.tokens["top"].copy()).long(), torch.from_numpy(text.tokens["p"].copy())
    tokens = torch.from_numpy(text.tokens["token"].copy()).long()
    starts = np.flatnonzero(~text.held & (text.left > 0))
    tests = np.flatnonzero(text.held & text.greedy & (text.left > STEPS))
    seen = np.flatnonzero(~text.held & text.greedy & (text.left > STEPS))
    total = int(epochs * len(starts) / BATCH)
    print(f"{sum(q.numel() for q in model.parameters()):,} weights; {len(starts):,} starts, {total:,} steps; the kept "
          f"tokens cover {(place[top[:, 0]] >= 0).float().mean():.2%}", flush=True)  # fmt: skip
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, betas=(0.9, 0.98))
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(starts) for _ in range(int(np.ceil(epochs)))])
    left = torch.from_numpy(text.left)
    began = time.monotonic()
    for step in range(total):
        at = torch.from_numpy(order[step * BATCH : (step + 1) * BATCH])
        rate = RATE * min(1, (step + 1) / WARM) * (0.02 + 0.98 * 0.5 * (1 + np.cos(np.pi * step / total)))
        for group in optimiser.param_groups:
            group["lr"] = rate
        state = text.hidden[at].float()
        state = state + NOISE * torch.randn_like(state) * state.square().mean(1, keepdim=True).sqrt()
        loss = torch.zeros(())
        for j, share in enumerate(SHARE):
            at, state = at[: round(share * BATCH)], state[: round(share * BATCH)]
            state, logits = model(state, tokens[(at + j).clamp(max=len(tokens) - 1)])
            there = left[at] > j
            goal = (at + j + 1).clamp(max=len(tokens) - 1)
            ids = place[top[goal]]  # (n, TOP)
            wanted = p[goal] * (ids >= 0)
            wanted = (1 - SHARP) * wanted / wanted.sum(1, keepdim=True).clamp_min(1e-6)
            wanted[:, 0] += SHARP * (ids[:, 0] >= 0)
            log = logits.gather(1, ids.clamp_min(0)) - torch.logsumexp(logits, 1, keepdim=True)
            loss = loss - DISCOUNT**j * ((wanted * log).sum(1) * there).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 100 == 99 or step == total - 1:
            if step % 500 == 499 or step == total - 1:
                save(model, weights, vocabulary, out)
            model.eval()
            rates = accepted(model, text, tokens, place, top, tests[:: max(1, len(tests) // 2000)])
            known = accepted(model, text, tokens, place, top, seen[:: max(1, len(seen) // 1000)])
            model.train()
            per_pass = (1 + np.cumprod(rates).cumsum()).round(2).tolist()  # at γ 1, 2, …
            print(f"step {step + 1}/{total}, {time.monotonic() - began:.0f} s, loss {loss.item():.3f}, accepted by "
                  f"position {rates.round(3).tolist()}, tokens a pass {per_pass}; on text trained on {known[0]:.3f} at "
                  "the first", flush=True)  # fmt: skip


@torch.no_grad()
def accepted(
    model: Head, text: Text, tokens: torch.Tensor, place: torch.Tensor, top: torch.Tensor, tests: NDArray[np.int64]
) -> NDArray[np.float64]:
    """(STEPS) share of greedy drafts accepted at each position, of those examined."""
    at = torch.from_numpy(tests)
    state, alive = text.hidden[at].float(), torch.ones(len(at), dtype=torch.bool)
    rates = []
    for j in range(STEPS):
        state, logits = model(state, tokens[at + j])
        right = (logits.argmax(1) == place[top[at + j + 1, 0]]) & alive
        rates.append(float(right.sum() / alive.sum().clamp_min(1)))
        alive = right
    return np.array(rates)


def save(model: Head, weights: Weights, vocabulary: NDArray[np.int64], out: Path) -> None:
    from safetensors.torch import save_file

    tensors = {name: value.detach().half().contiguous() for name, value in model.named_parameters()}
    tensors["target_norm"] = weights.norm.float()
    tensors["vocabulary"] = torch.from_numpy(vocabulary).int()
    out.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(out), metadata={"head": json.dumps({"eps": model.eps})})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--inner", type=int, default=1536)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--epochs", type=float, default=1.5)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    folders = sorted(folder.parent for folder in args.work.glob("*/tokens.npy"))
    if not folders:
        collect.write(args.work / "text", args.tokens, args.seed * 100_000)
        folders = [args.work / "text"]
    planned = open_planned(resolve("default"))
    weights = read(planned, torch.float32, torch.device("cpu"), lambda *_: None)
    train(Text(folders), weights, args.out, args.inner, args.vocabulary, args.epochs, args.seed)


if __name__ == "__main__":
    main()
