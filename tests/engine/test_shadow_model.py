"""In float32 a request gives the same tokens without drafts, whoever drafted and whatever else ran beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.build import build
from engine.config import EngineConfig, LiveSettings
from engine.records import Request, ShadowState
from tests.support.tiny_directory import make_directory
from tests.support.tiny_models import VOCABULARY


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_directory(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("method", ["ngram", "suffix", "layers", "model"])
def test_equal_in_float32_under_load(directory: Path, method: str):
    settings = LiveSettings(
        max_batch=4, max_context=256, kv_blocks=40, token_budget=32, draft_method=method, draft_length=5,
        draft_model=str(directory) if method == "model" else "",
    )  # fmt: skip
    config = EngineConfig(
        model=str(directory), device="cpu", dtype="float32", block_size=8, threads=1, settings=settings
    )
    engine = build(config, lambda *_: None).engine
    for number in range(6):
        prompt = [(number * 7 + place * place) % VOCABULARY for place in range(9)] * 3
        engine.submit(number, prompt, Request(number=number, max_tokens=60, ignore_eos=True))
    while engine.has_work:
        engine.step()
    for number in range(6):
        engine.shadow(number)
    states: dict[int, ShadowState] = {}
    while engine.has_work:
        states |= {state.number: state for state in engine.step().shadows}
    assert sum(state.drafted for state in states.values()) > 0
    for state in states.values():
        assert (state.equal, state.different, state.done) == (60, 0, True), state
