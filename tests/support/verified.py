"""The real core over a table of words, with a drafter that draws: verifications that look like those of a model."""

from __future__ import annotations

import os
from collections.abc import Iterable
from copy import copy

import numpy as np
from msgspec.structs import replace

from engine import records as r
from engine.build import fit
from engine.config import EngineConfig
from engine.core import Engine, RequestRefused
from engine.runner.base import OutOfDeviceMemory
from engine.sampler import Sampler
from engine.speculation.ngram import NgramProposer
from engine.worker import Built, Progress
from tests.support.drafters import TableDrafter
from tests.support.fake_runner import FakeRunner, TableModel
from tests.support.inprocess import InProcessEngine

_TEXT = (
    "the sea was calm and we read on until light of morning came in over boats that lay at rest by an old wall "
    "where he had once told her about return value for each row"
)
WORDS = (*(" " + word for word in dict.fromkeys(_TEXT.split())), ",", ".", "\n")


class WordTexts:
    """Implements `engine.texts.Texts`: a token is a word."""

    def start(self, seq: int, stop: list[str]) -> None: ...

    def append(self, seq: int, token: int) -> tuple[str, bool]:
        return self.piece(token), False

    def finish(self, seq: int) -> str:
        return ""

    def piece(self, token: int) -> str:
        return WORDS[token]

    def whole(self, tokens: Iterable[int]) -> str:
        return "".join(map(self.piece, tokens))

    def span(self, tokens: list[int]) -> str:
        return self.whole(tokens)


def encode_request(request: r.Request) -> list[int]:
    if request.token_ids is not None:
        return list(request.token_ids)
    known = {word.strip(): token for token, word in enumerate(WORDS)}
    return [known.get(word, 0) for word in request.prompt.split()] or [0]


def blurred(model: TableModel, heat: float) -> TableModel:
    """The same model at a higher temperature: its drafts are rejected now and then."""
    twin = copy(model)
    twin.table = model.table / heat
    return twin


def words_build(drafter: str = "drawn", sharpness: float = 2.0, heat: float = 1.7):
    """What an in-process engine takes. `drafter`: "drawn" or "certain"; `heat`: how much the drafter blurs."""

    def build(config: EngineConfig, progress: Progress) -> Built:
        model = TableModel(len(WORDS), config.seed, sharpness)
        runner = FakeRunner(config.settings.kv_blocks, config.block_size, model)
        bounds = runner.bounds()
        settings, notices = fit(config.settings, bounds, config.block_size)
        proposer = TableDrafter(blurred(model, heat)) if drafter == "drawn" else NgramProposer()
        method = "model" if drafter == "drawn" else "ngram"
        engine = Engine(
            runner, settings, Sampler(len(WORDS)), bounds=bounds,
            proposers=dict.fromkeys(("model", "ngram"), lambda _: proposer), texts=WordTexts(), seed=config.seed,
        )  # fmt: skip
        ready = r.Ready(
            v=r.SCHEMA, pid=os.getpid(), device=runner.device_text, runner=runner.name, config=config,
            settings=settings, model=runner.model, block_size=config.block_size, limits=bounds, notices=notices,
        )  # fmt: skip
        assert method == settings.draft_method
        return Built(engine, encode_request, ready, (RequestRefused,), (OutOfDeviceMemory,))

    return build


def words_engine(drafter: str = "drawn", temperature: float = 1.0, requests: int = 3, **options) -> InProcessEngine:
    """Some requests run in it. `options` as those of `words_build`."""
    config = EngineConfig(block_size=8)
    method = "model" if drafter == "drawn" else "ngram"
    settings = {"max_batch": 4, "max_context": 512, "kv_blocks": 256, "block_size": 8, "draft_length": 4}
    config = replace(
        config,
        settings=replace(config.settings, draft_method=method, temperature=temperature, **settings),
    )
    source = InProcessEngine(config, words_build(drafter, **options))
    random = np.random.default_rng(5)
    for number in range(1, requests + 1):
        prompt = "".join(WORDS[token] for token in random.integers(0, len(WORDS) - 3, 12)).strip()
        request = r.Request(number=number, prompt=prompt, max_tokens=400, sampling=r.Sampling(seed=number))
        source.send(r.Submit(id=source.next_id(), request=request))
    return source
