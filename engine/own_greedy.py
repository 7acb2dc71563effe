"""A weight form's own greedy output and how sure it is of its logits: the reference of `bench exactness` in that form.

Runs as a process of its own (`python -m engine.own_greedy JOB`), JSON in and out, because the program itself sees no
runner. One sequence at a time, its prompt whole and then a token a pass. *Noise* is what a logit moves by when the
same tokens are computed in one pass instead: the largest difference over all prompts. Forms whose rows depend on
nothing beside them have none.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import torch

from engine.config import EngineConfig, LiveSettings
from engine.formulas import blocks_for
from engine.job import answer
from engine.likelihood import pass_of
from engine.model.store import resolve
from engine.runner.base import Runner
from engine.runner.batch import PackedBatch
from engine.runner.build import build_runner
from engine.tokenizer import Tokenizer


class Job(msgspec.Struct, frozen=True):
    config: EngineConfig
    texts: list[str]
    cuts: list[tuple[int, int]]  # each prompt: which text, and how many tokens of its beginning
    new_tokens: int


def run(job: Job) -> dict[str, Any]:
    """Raises ModelProblem."""
    files = resolve(job.config.model)
    tokenizer = Tokenizer.load(files.tokenizer_path)
    ids = [tokenizer.encode(text, add_special=False) for text in job.texts]
    prompts = [ids[text][:length] for text, length in job.cuts]
    longest = max(map(len, prompts)) + job.new_tokens
    settings = LiveSettings(kv_blocks=blocks_for(longest, job.config.block_size) + 1)
    runner = build_runner(msgspec.structs.replace(job.config, settings=settings), files)
    found = [greedy(runner, prompt, job.new_tokens) for prompt in prompts]
    references = [
        {"prompt": prompt, "tokens": tokens, "gaps": gaps}
        for prompt, (tokens, gaps, _) in zip(prompts, found, strict=True)
    ]
    return {"references": references, "noise": max(noise for *_, noise in found), "form": runner.model.dtype}


@torch.inference_mode()
def greedy(runner: Runner, prompt: list[int], new_tokens: int) -> tuple[list[int], list[float], float]:
    """Tokens, the gap between the two best logits at each, and the noise."""
    known, seen, gaps = list(prompt), [], []
    computed = 0
    for _ in range(new_tokens):
        logits = runner.execute(_last(pass_of(known, computed, len(known), runner.block_size), 1))[0].float().cpu()
        computed = len(known)
        best = logits.topk(2)
        seen.append(logits.clone())
        gaps.append(float(best.values[0] - best.values[1]))
        known.append(int(best.indices[0]))
    whole = runner.execute(_last(pass_of(known, 0, computed, runner.block_size), new_tokens)).float().cpu()
    return known[len(prompt) :], gaps, float((whole - torch.stack(seen)).abs().max())


def _last(batch: PackedBatch, count: int) -> PackedBatch:
    """Logits of the last `count` tokens only."""
    batch.logit_index = np.arange(len(batch.tokens) - count, len(batch.tokens))
    return batch


if __name__ == "__main__":
    answer(run, Job)
