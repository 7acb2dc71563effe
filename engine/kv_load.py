"""The load of `bench kv`: a whole engine whose model is nothing, and requests that come as others end.

Nothing stands in for the scheduler and the pool. In place of a forward pass the runner makes logits up so that drafts
stay with a chance of `KEPT` each, which costs little and isn't counted. Every prompt begins with one of a few common
ones. Lengths are log-normal, an answer on average twice as long as its prompt, as in ShareGPT's conversations (161 and
338 tokens, Kwon et al. 2023), but shorter: a pool of 4,000 blocks holds 256 of these with some hundred to spare.
"""

from __future__ import annotations

import numpy as np
import torch

from engine.config import AUTO, LiveSettings, Model, limits
from engine.core import Engine
from engine.records import Memory, Request, Sampling
from engine.runner.batch import Ints, PackedBatch
from engine.sampler import Sampler
from engine.sequence import Sequence
from engine.speculation.proposer import Lookup

BLOCK_SIZE = 16
CONTEXT = 1024
COMMON, COMMON_TOKENS = 8, 64  # prompts' beginnings
OWN_TOKENS, ANSWER_TOKENS, SIGMA = 32, 192, 0.5  # medians, and the logarithm's spread
AHEAD = 8  # requests that wait, so that none is missing where one ends
KEPT = 0.6  # chance of a draft to be the model's choice, where those before it were
WARM_BLOCKS = 32  # of each sequence that the pool is filled with before the load
VOCABULARY = 64
MODEL = Model(
    name="none", architecture="none", layers=1, heads=1, kv_heads=1, head_dim=1, hidden=1, vocabulary=VOCABULARY,
    max_positions=CONTEXT, parameters=0, weight_bytes=0, dtype="none", kv_bytes_per_token=1,
)  # fmt: skip


class IdleRunner:
    """Keeps nothing and computes nothing."""

    name, device_text, model = "none", "no device", MODEL
    host_blocks, block_size = 0, BLOCK_SIZE

    def __init__(self, num_blocks: int, seed: int):
        self.num_blocks = num_blocks
        self.notices: list[str] = []
        self.absent: dict[str, str] = {}
        self._rng = np.random.default_rng(seed)

    def execute(self, batch: PackedBatch) -> torch.Tensor:
        asked = len(batch.logit_index)
        chosen = self._rng.integers(VOCABULARY, size=asked)
        # what follows a row's token in the batch is its first draft, or another row's token, which is as good as any
        following = batch.tokens[np.minimum(batch.logit_index + 1, len(batch.tokens) - 1)]
        chosen = np.where(self._rng.random(asked) < KEPT, following, chosen)
        logits = np.zeros((asked, VOCABULARY), dtype=np.float32)
        logits[np.arange(asked), chosen] = 1
        return torch.from_numpy(logits)

    def memory(self) -> Memory:
        return Memory()

    def max_blocks(self) -> int:
        return self.num_blocks

    def max_host_blocks(self) -> int:
        return 0

    def warm_up(self) -> None:
        return None

    def resize(self, num_blocks: int) -> None:
        raise NotImplementedError("a bench changes no settings")

    def resize_host(self, num_blocks: int) -> None:
        self.resize(num_blocks)

    def rebuild(self, num_blocks: int, block_size: int, host_blocks: int) -> None:
        self.resize(num_blocks)

    def swap_out(self, device: Ints, host: Ints) -> None:
        raise NotImplementedError("there is no host pool")

    def swap_in(self, host: Ints, device: Ints) -> None:
        self.swap_out(device, host)


class Repeater(Lookup):
    """Always drafts as many tokens as it may: which, makes no difference here."""

    def follow(self, seq: int, tokens: list[int], limit: int) -> list[int]:
        return tokens[-limit:]

    def forget(self, seq: int) -> None:
        return None


def make_engine(blocks: int, rows: int, gamma: int, seed: int) -> Engine:
    settings = LiveSettings(
        max_batch=rows, max_context=CONTEXT, kv_blocks=blocks, token_budget=AUTO, draft_length=gamma,
        draft_method="ngram" if gamma else "off", prefix_cache=True,
    )  # fmt: skip
    return Engine(
        IdleRunner(blocks, seed),
        settings,
        Sampler(VOCABULARY),
        bounds=limits(MODEL, BLOCK_SIZE, blocks),
        proposers={"ngram": lambda _: Repeater()},
        seed=seed,
    )


def sequence(tokens: list[int]) -> Sequence:
    """One that only the pool gets to see."""
    return Sequence(
        seq=0, number=0, request=Request(number=0), prompt_tokens=len(tokens), tokens=tokens, arrival=0, order=(0, 0)
    )


def hold(engine: Engine, tokens: list[int]) -> Sequence:
    """A sequence with K/V of all its tokens, in sealed blocks of its own."""
    held, pool = sequence(tokens), engine.pool
    pool.grow(held, len(tokens) // BLOCK_SIZE)
    pool.fill(held, 0, len(tokens))
    held.computed = len(tokens)
    pool.seal(held)
    return held


class Load:
    """Requests for one engine, the same for the same seed."""

    def __init__(self, engine: Engine, rows: int, seed: int):
        self._engine = engine
        self._rows = rows
        self._rng = np.random.default_rng(seed)
        self._common = [self.tokens(COMMON_TOKENS) for _ in range(COMMON)]
        self._number = 0

    def tokens(self, count: int) -> list[int]:
        return self._rng.integers(VOCABULARY, size=count).tolist()

    def warm(self) -> None:
        """Fill the pool with cached blocks, in an order of reuse as mixed as after a long time of serving."""
        pool, rng = self._engine.pool, self._rng
        held = []
        while pool.free_count:
            held.append(hold(self._engine, self.tokens(min(WARM_BLOCKS, pool.free_count) * BLOCK_SIZE)))
        for index in rng.permutation(len(held)).tolist():
            pool.truncate(held[index], 0)
        self._engine.between()  # what changed so far is told

    def top_up(self) -> None:
        """As many new requests as have ended."""
        scheduler = self._engine.scheduler
        for _ in range(self._rows + AHEAD - len(scheduler.running) - len(scheduler.waiting)):
            self._number += 1
            prompt = self._common[self._rng.integers(COMMON)] + self.tokens(self._length(OWN_TOKENS))
            request = Request(
                number=self._number,
                max_tokens=self._length(ANSWER_TOKENS),
                ignore_eos=True,
                sampling=Sampling(temperature=0.0),
            )
            self._engine.submit(self._number, prompt, request)

    def _length(self, median: int) -> int:
        longest = (CONTEXT - COMMON_TOKENS) // 2 - 1
        return int(min(max(1, median * self._rng.lognormal(0, SIGMA)), longest))
