"""The calculator beside a real engine in a real child, in each form of weights: its figures and the formula's are
equal to the byte, and stay so when the pool is resized."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine import records as r
from engine.model.cache import cache_dir
from tests.support import tiny_models
from tests.support.live_window import LiveWindow, tiny_config
from tests.support.tiny_directory import make_directory
from ui.views.calculator import CalculatorView

# what matrices of bytes can have: rows that are multiples of 32, heads of 16
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 16}  # fmt: skip
FORMS = ("float32", "bfloat16", "int8")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    directory = make_directory(tmp_path_factory.mktemp("model"))
    tiny_models.save(directory, "llama", True, **SIZES)
    return directory


@pytest.fixture(params=FORMS)
def live(qapp, request, model) -> Iterator[LiveWindow]:
    shown = LiveWindow(msgspec.structs.replace(tiny_config(model), dtype=request.param))
    yield shown
    shown.close()


def compared(live: LiveWindow) -> CalculatorView:
    """The calculator, open, once the engine's memory and its pool are of one moment."""
    view = live.window.deck.docks["calculator"].view
    live.load(1, tokens=20)  # memory is told with a step
    live.pump(lambda: view.page is not None and view.page.shown.engine)
    live.pump(lambda: not any(line.difference for line in view.page.shown.engine), timeout=10)
    return view


def test_formula_and_engine_agree_to_the_byte(live: LiveWindow, model: Path) -> None:
    live.window.fill("calculator")
    view = compared(live)
    sums = {line.name: line for line in view.page.shown.engine if line.engine is not None}
    assert set(sums) == {"KV a token", "KV pool", "weights"}
    memory = live.window.mirror.live.memory
    assert sums["KV pool"].formula == sums["KV pool"].engine == memory.kv_pool > 0
    assert sums["weights"].formula == sums["weights"].engine == memory.weights > 0
    parts = [line.formula for line in view.page.shown.engine if line.engine is None]
    assert not parts or sum(parts) == memory.weights  # what makes them more than parameters × bytes, by name
    assert view.page.shown.source == "measured"

    live.window.controls.sender.wish("kv_blocks", 96)
    live.pump(lambda: live.window.mirror.live.num_blocks == 96)
    wanted = 96 * 8 * live.window.mirror.ready.model.kv_bytes_per_token
    live.pump(lambda: view.page.shown.engine[1].engine == wanted)  # also if no step follows
    assert view.page.shown.engine[1].engine == wanted

    view.open_config(model)  # the same model by its description
    read, told = view.factors, live.window.mirror.ready.model
    assert (read.layers, read.kv_heads, read.head_dim) == (told.layers, told.kv_heads, told.head_dim)
    assert read.parameters == told.parameters


@pytest.mark.slow
def test_the_default_model_as_in_its_file(qapp) -> None:
    """Embedding in 8 bits, layers in 4."""
    if not any(cache_dir().glob("*.gguf")):
        pytest.skip("the default model is not in the cache")
    config = tiny_config(Path("default"))
    live = LiveWindow(msgspec.structs.replace(config, model="default", dtype="file"))
    try:
        live.window.fill("calculator")
        view = compared(live)
        names = [line.name for line in view.page.shown.engine]
        assert names == ["KV a token", "KV pool", "codes", "scales", "norms, biases", "weights"]
        assert "4 and 8 bits" in view.page.shown.engine[2].how
        assert live.window.mirror.live.memory.weights == view.page.shown.engine[-1].formula
    finally:
        live.close()
    assert live.source.seen.of(r.Died) == []
