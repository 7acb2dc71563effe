"""Text that a model writes itself, with the hidden states that it wrote it from: what a draft head is trained on.

First the model asks itself: given its chat template up to where a user speaks, and for half of them a first word or two
so that the kinds of questions are mixed, it samples what users say (as Magpie does, Xu et al. 2406.08464). Then it
answers each, part of the answers greedily and part sampled. Of every output token
are kept the hidden state that it was chosen from (before the final norm) and the likeliest tokens there with their
probabilities, which the head is taught to agree with. No text from elsewhere is read, so what the head is later
measured on isn't in it, unless the model happened to ask just that.

Knows engine and runner, no training.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from engine.build import build
from engine.config import EngineConfig, LiveSettings
from engine.core import Engine
from engine.model.cache import no_progress
from engine.model.store import resolve
from engine.records import TOKEN as EMITTED
from engine.records import Finished, Request, Sampling, unpack
from engine.sampler import Outcome, SampleRow
from engine.speculation.accept import ExactRule
from engine.tokenizer import Tokenizer

TOP = 8  # likeliest tokens kept of each distribution: nearly all of what a greedy or a cool draw can take
BATCH = 48  # answers at once: with more, a step of the default model takes as long a token
QUESTION_TOKENS = 80  # at most; what was not said by then is left out
ANSWER_TOKENS = 192
GREEDY = 0.6  # share of the answers; the others teach what follows where the model went a rarer way
# Both by top-k: where many tokens are about as likely, top-p sorts the whole vocabulary for every row.
COOL = Sampling(temperature=0.8, top_k=50)
OPEN = Sampling(temperature=1.0, top_k=250)  # of questions
# Half of the questions begin with one of these: by itself the model mostly asks for favours.
BEGINNINGS = (
    "Why", "Why do", "Why is", "How", "How do", "How does", "How can I", "What", "What is", "What are", "What happens",
    "Which", "When", "Who", "Where", "Explain", "Explain how", "Describe", "Tell me", "Write a", "Write a story about",
    "Write a Python function that", "Write code that", "Give me", "List", "Name", "Suggest", "Compare", "Plan",
    "Summarize", "Translate", "Is it", "Can", "Should I", "I have", "I want to", "My", "Imagine", "Help me",
    "What is the difference between",
)  # fmt: skip
TOKEN = np.dtype(
    [("answer", "<i4"), ("position", "<i4"), ("token", "<i4"), ("top", "<i4", (TOP,)), ("p", "<f4", (TOP,))]
)


class Tap:
    """Stands before an engine's sampler and keeps what goes by."""

    def __init__(self, engine: Engine):
        self.tokens: list[NDArray] = []  # of TOKEN
        self.hidden: list[NDArray[np.float16]] = []  # (n, hidden), beside them
        self.count = 0
        self._runner, self._sample = engine.runner, engine.sampler.sample
        engine.sampler.sample = self.sample  # type: ignore[method-assign]

    def sample(
        self, logits: torch.Tensor, rows: list[SampleRow], rule: ExactRule | None = None
    ) -> list[Outcome]:
        outcomes = self._sample(logits, rows, rule)
        found = np.zeros(len(rows), TOKEN)
        found["answer"] = [row.seed for row in rows]
        found["position"] = [row.position for row in rows]
        found["token"] = [outcome.tokens[0] for outcome in outcomes]
        top = torch.topk(logits, TOP, dim=1)
        found["top"] = top.indices.numpy()
        found["p"] = torch.exp(top.values - torch.logsumexp(logits, dim=1, keepdim=True)).numpy()
        self.tokens.append(found)
        self.hidden.append(self._runner.hidden().numpy().astype(np.float16))
        self.count += len(rows)
        return outcomes


def write(folder: Path, tokens: int, seed: int, model: str = "default") -> None:
    """About `tokens` output tokens: tokens.npy (n) TOKEN, by answer and position; hidden.npy (n, hidden) float16."""
    settings = LiveSettings(
        max_batch=BATCH, max_context=512, kv_blocks=2048, draft_length=0, draft_method="off", token_budget=1024,
    )
    words = Tokenizer.load(resolve(model).tokenizer_path)
    engine = build(EngineConfig(model=model, dtype="file", seed=seed, settings=settings), no_progress).engine
    assert isinstance(engine, Engine)
    questions = ask(engine, words, round(tokens / ANSWER_TOKENS * 1.4), seed)
    print(f"{len(questions):,} questions, such as {questions[:8]}", flush=True)
    tap = Tap(engine)
    answer(engine, words, questions, tap, tokens, seed)
    folder.mkdir(parents=True, exist_ok=True)
    found, hidden = np.concatenate(tap.tokens), np.concatenate(tap.hidden)
    order = np.lexsort((found["position"], found["answer"]))
    np.save(folder / "tokens.npy", found[order])
    np.save(folder / "hidden.npy", hidden[order])


def ask(engine: Engine, words: Tokenizer, count: int, seed: int) -> list[str]:
    """What users might say, by the model's own account, each once."""
    mark = "\ue000"
    text, _, _ = words.render_chat([{"role": "user", "content": mark}]).partition(mark)
    openings = [words.encode(text + begun, add_special=False) for begun in ("", *BEGINNINGS)]
    begun = {}
    for number in range(count):
        which = (number // 2) % len(BEGINNINGS) + 1 if number % 2 else 0
        opening = openings[which]
        request = Request(number=number, max_tokens=QUESTION_TOKENS, sampling=_seeded(OPEN, seed + number))
        begun[engine.submit(number, opening, request)] = ("", *BEGINNINGS)[which]
    said: dict[str, None] = {}
    told = time.monotonic()
    pieces: dict[int, list[int]] = {}
    while engine.has_work:
        record = engine.step()
        for token in unpack(record.emitted, EMITTED):
            pieces.setdefault(int(token["seq"]), []).append(int(token["token"]))
        for event in record.events:
            if isinstance(event, Finished):
                ids = pieces.pop(event.seq, [])
                if event.reason == "stop" and len(ids) > 4:  # the last is the end itself
                    said[(begun[event.seq] + words.decode(ids[:-1])).strip()] = None
        if time.monotonic() - told > 20:
            told = time.monotonic()
            print(f"{len(said):,} questions, {engine.scheduler.waiting_count:,} to come", flush=True)
    return [question for question in said if question]


def answer(engine: Engine, words: Tokenizer, questions: Iterable[str], tap: Tap, tokens: int, seed: int) -> None:
    rng = random.Random(seed)
    waiting = list(enumerate(questions, 1))
    rng.shuffle(waiting)
    started = told = time.monotonic()
    while tap.count < tokens and (waiting or engine.has_work):
        while waiting and len(engine.scheduler.running) + engine.scheduler.waiting_count < 2 * BATCH:
            number, question = waiting.pop()
            sampling = Sampling(temperature=0.0) if rng.random() < GREEDY else COOL
            request = Request(number=number, max_tokens=ANSWER_TOKENS, sampling=_seeded(sampling, number))
            ids = words.encode(words.render_chat([{"role": "user", "content": question}]), add_special=False)
            engine.submit(number, ids, request)
        engine.step()
        if time.monotonic() - told > 20:
            told = time.monotonic()
            print(f"{tap.count:,} tokens, {tap.count / (told - started):,.0f} a second", flush=True)


def _seeded(sampling: Sampling, seed: int) -> Sampling:
    return Sampling(temperature=sampling.temperature, top_k=sampling.top_k, seed=seed)
