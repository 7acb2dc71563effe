"""How well each weight form predicts a text, token by token, next to float32: the engine's half of `bench quality`.

Runs as a process of its own (`python -m engine.likelihood JOB`), JSON in and out, because the program itself sees no
runner. All forms stand in memory together, so that the probabilities of one can be compared with float32's in full
and nothing but three numbers a token is kept. It refuses to know what a form is: it builds what the configuration
names, and what a model doesn't have is told instead of measured.

Words used here: a *window* is a run of the text that is read without anything before it; its first token is context
only, and is the last that the window before it predicted, so that every token of a text but the first is predicted
exactly once. A *pass* is one call of the runner: a window whole, or `chunk` tokens of it after the other, as a
prompt in chunks is. Few tokens a pass take the kernels that decoding takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from engine.config import EngineConfig, LiveSettings
from engine.formulas import blocks_for
from engine.job import answer
from engine.model.problem import ModelProblem
from engine.model.store import resolve
from engine.runner.base import Runner
from engine.runner.batch import PackedBatch
from engine.runner.build import build_runner
from engine.tokenizer import Tokenizer

REFERENCE = "float32"
ROWS = 64  # logits compared at a time: 64 · 49,152 numbers stay in the caches, a whole window's don't

Floats = NDArray[np.float64]
Part = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # the three of `Scores`, for some rows


class Job(msgspec.Struct, frozen=True):
    """What is asked: `forms` beside float32, values of `EngineConfig.dtype`; those `optional` may be absent."""

    config: EngineConfig
    forms: list[str]
    optional: bool
    texts: dict[str, str]  # name: path
    window: int  # tokens
    chunk: int  # tokens a pass; 0: a window whole
    most: int  # tokens in all, taken from the texts in proportion to their lengths; 0: everything


class Scores(msgspec.Struct):
    """Of one form, over the n predicted tokens of one text."""

    loss: Floats  # (n) −ln p of the token that came, nats
    kl: Floats  # (n) Σ p₃₂ (ln p₃₂ − ln p) over the vocabulary, nats
    same: NDArray[np.bool_]  # (n) the likeliest token is float32's


# --- arithmetic ---


def windows(tokens: Sequence[int], size: int) -> Iterator[tuple[list[int], list[int]]]:
    """Inputs and what each of them should predict, `size` at a time."""
    for start in range(0, len(tokens) - 1, size):
        targets = tokens[start + 1 : start + 1 + size]
        yield list(tokens[start : start + len(targets)]), list(targets)


def pass_of(tokens: Sequence[int], start: int, end: int, block_size: int) -> PackedBatch:
    """Tokens start..end of a window as one row, logits of each; blocks 0, 1, … hold the window."""
    positions = np.arange(start, end)
    return PackedBatch(
        tokens=np.array(tokens[start:end], np.int64),
        positions=positions,
        slots=positions.copy(),  # as the blocks are in order
        row_starts=np.array([0, end - start]),
        contexts=np.array([end]),
        tables=np.arange(blocks_for(end, block_size))[None],
        logit_index=np.arange(end - start),
    )


def compare(logits: Sequence[torch.Tensor], targets: torch.Tensor) -> list[Part]:
    """Loss, KL and agreement of each row, for each form's logits (rows, V); the first form is the reference.

    Log-probabilities are float64; the weights of KL's sum needn't be, whose exponentials take five times as long.
    """
    parts: list[list[Part]] = [[] for _ in logits]
    for start in range(0, len(targets), ROWS):
        target = targets[start : start + ROWS, None]
        blocks = [form[start : start + ROWS] for form in logits]
        log_p = blocks[0].double().log_softmax(-1)  # (ROWS, V)
        p = blocks[0].softmax(-1)
        best = blocks[0].argmax(-1)
        for found, block in zip(parts, blocks, strict=True):
            log_q = log_p if block is blocks[0] else block.double().log_softmax(-1)
            loss = -log_q.gather(1, target)[:, 0]
            found.append((loss, (p * (log_p - log_q)).sum(-1), block.argmax(-1) == best))
    return [_cat(found) for found in parts]


@torch.inference_mode()
def score(
    runners: dict[str, Runner], tokens: Sequence[int], size: int, chunk: int = 0, prefix: Sequence[int] = ()
) -> dict[str, Scores]:
    """Every runner over one text. `prefix`: what the model wants before any text; each window has room for it."""
    found: list[list[Part]] = [[] for _ in runners]
    for inputs, targets in windows(tokens, size - len(prefix)):
        row = [*prefix, *inputs]
        wanted = torch.tensor([*([0] * len(prefix)), *targets])  # nothing is asked of the prefix
        for start in range(0, len(row), chunk or len(row)):
            end = min(start + (chunk or len(row)), len(row))
            kept = slice(min(max(0, len(prefix) - start), end - start), None)  # rows of this pass in the text
            logits = [r.execute(pass_of(row, start, end, r.block_size))[kept] for r in runners.values()]
            if len(logits[0]):
                parts = compare(logits, wanted[start:end][kept].to(logits[0].device))
                for mine, part in zip(found, parts, strict=True):
                    mine.append(part)
    return {
        form: Scores(*(part.cpu().numpy() for part in _cat(mine))) for form, mine in zip(runners, found, strict=True)
    }


def _cat(parts: Sequence[Part]) -> Part:
    loss, kl, same = zip(*parts, strict=True)
    return torch.cat(loss), torch.cat(kl), torch.cat(same)


def shares(lengths: Sequence[int], most: int) -> list[int]:
    """`most` tokens divided among texts in proportion, at least 2 of each; all where that isn't fewer."""
    total = sum(lengths)
    if not most or most >= total:
        return list(lengths)
    return [max(2, length * most // total) for length in lengths]


# --- a job ---


def run(job: Job) -> dict[str, Any]:
    """Scores of all forms, and what they hold. Raises ModelProblem."""
    files = resolve(job.config.model)
    tokenizer = Tokenizer.load(files.tokenizer_path)
    runners: dict[str, Runner] = {}
    absent: dict[str, str] = {}
    blocks = blocks_for(job.window, job.config.block_size)
    for form in (REFERENCE, *job.forms):
        config = msgspec.structs.replace(job.config, dtype=form, settings=LiveSettings(kv_blocks=blocks))
        try:
            runners[form] = build_runner(config, files)
        except ModelProblem as problem:
            if form == REFERENCE or not job.optional:
                raise
            absent[form] = str(problem)
    first = runners[REFERENCE]
    size = min(job.window, first.model.max_positions, *(r.num_blocks * r.block_size for r in runners.values()))
    prefix = tokenizer.encode("")  # a beginning-of-sequence token, or nothing
    texts = [tokenizer.encode(Path(path).read_text("utf-8"), add_special=False) for path in job.texts.values()]
    lengths = shares([len(tokens) for tokens in texts], job.most)
    scores = {
        name: score(runners, tokens[:length], size, job.chunk, prefix)
        for name, tokens, length in zip(job.texts, texts, lengths, strict=True)
    }
    return {
        "model": first.model.name,
        "device": first.device_text,
        "window": size,
        "chunk": min(job.chunk, size) or size,
        "texts": dict(zip(job.texts, lengths, strict=True)),
        "forms": [
            {
                "form": form,
                "weight_bytes": runner.memory().weights,
                **figures([of[form] for of in scores.values()], [of[REFERENCE] for of in scores.values()]),
                "texts": {name: figures([of[form]], [of[REFERENCE]]) for name, of in scores.items()},
            }
            for form, runner in runners.items()
        ],
        "absent": absent,
    }


def figures(of: Sequence[Scores], reference: Sequence[Scores]) -> dict[str, float]:
    """Perplexity and what parts it from the reference's, over several texts as if they were one.

    The standard error is of the difference token by token, which is far smaller than that of either perplexity.
    """
    loss = np.concatenate([s.loss for s in of])
    extra = loss - np.concatenate([s.loss for s in reference])  # nats a token
    ratio = float(np.exp(extra.mean()))
    error = float(extra.std() / np.sqrt(len(extra)))
    return {
        "perplexity": float(np.exp(loss.mean())),
        "ratio": ratio,
        "difference_percent": 100 * (ratio - 1),
        "standard_error_percent": 100 * ratio * error,
        "same_top_1": float(np.concatenate([s.same for s in of]).mean()),
        "kl_nats": float(np.concatenate([s.kl for s in of]).mean()),
        "scored": len(loss),
    }


if __name__ == "__main__":
    answer(run, Job)
