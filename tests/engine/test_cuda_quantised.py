"""Weights of 4 and 8 bits on the CUDA runner, without a card: the numbers are the CPU's packed ones, and what comes out
is what a plain forward pass over those numbers in float32 gives.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as T

from app.bench.equality import Reference, compare
from engine.config import LiveSettings, limits
from engine.core import Engine
from engine.cpu.packed_matrix import PackedMatrix, dequantise
from engine.model.packed_weights import PackedWeights, load_packed
from engine.model.store import ModelFiles
from engine.model.weights import LayerWeights, Weights
from engine.runner.cuda_ops import Ops
from engine.runner.cuda_products import FEW_ROWS
from engine.runner.device_sampler import DeviceSampler
from engine.runner.pooled import dummy_batch
from engine.runner.quantised_weights import quantised_weights
from engine.runner.torch_runner import TorchRunner
from engine.sampler import SampleRow
from engine.speculation.ngram import NgramProposer
from tests.engine.test_cuda_runner import STEPS, Called, nothing
from tests.support import gguf_files, tiny_models
from tests.support.cuda_on_cpu import CPU, HostReads, on_cpu, plain
from tests.support.paged import Driven, Driver
from tests.support.served import serve

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 16}  # fmt: skip
FORMS = ["int8", "Q4_1", "Q8_0"]
V = tiny_models.VOCABULARY


@pytest.fixture(scope="module", params=[(form, tied) for form in FORMS for tied in (False, True)],
                ids=lambda p: f"{p[0]}{', tied' if p[1] else ''}")  # fmt: skip
def packed(request, tmp_path_factory):
    """(config, PackedWeights) of a tiny model in that form."""
    form, tied = request.param
    home = tmp_path_factory.mktemp("model") / "tiny"
    model = tiny_models.make(tiny_models.config_of("qwen2" if tied else "llama", tied=tied, **SIZES))
    if form == "int8":
        model.save_pretrained(home)
    else:
        gguf_files.write(home, model, getattr(T, form))
    files = ModelFiles("hf" if form == "int8" else "gguf", home, home, "tiny")
    return load_packed(files, "int8" if form == "int8" else "file")


def in_float32(packed: PackedWeights) -> Weights:
    """The same numbers, each as a float32."""

    def floats(part):
        if part is None:
            return None
        return torch.from_numpy(dequantise(part) if isinstance(part, PackedMatrix) else part)

    layers = [
        LayerWeights(**{name: floats(getattr(layer, name)) for name in LayerWeights.__dataclass_fields__})
        for layer in packed.layers
    ]
    embedding = floats(packed.embedding)
    head = embedding if packed.head is packed.embedding else floats(packed.head)
    rest = floats(packed.norm), head, floats(packed.inverse_frequencies), packed.parameters
    return Weights(embedding, layers, *rest)


def test_logits_are_those_of_the_same_numbers_in_float32(packed):
    """Few rows and many: through the kernel's formula, and a slice of the weights at a time."""
    config, weights = packed
    runner = on_cpu(config, quantised_weights(weights, torch.float32, CPU), 16, 64, most_rows=4, draft_length=2)
    runner.warm_up()
    tokens = np.random.default_rng(0).integers(0, V, (3, 160)).tolist()
    ours, theirs = [Driven(t) for t in tokens], [Driven(t) for t in tokens]
    drivers = Driver(runner), Driver(plain(config, in_float32(weights), 16, 64))
    for counts in (*STEPS, [FEW_ROWS + 10, 3, 5]):
        got, wanted = (d.run(list(zip(s, counts, strict=True))) for d, s in zip(drivers, (ours, theirs), strict=True))
        torch.testing.assert_close(torch.cat(got), torch.cat(wanted), rtol=2e-5, atol=5e-5)
    rows = np.array([3, 0, 90])
    for name in ("embedding_rows", "head_rows"):
        torch.testing.assert_close(getattr(runner, name)(rows), getattr(drivers[1].runner, name)(rows), rtol=0, atol=0)


def test_slices_of_a_wide_matrix(packed, monkeypatch: pytest.MonkeyPatch):
    from engine.runner import cuda_products

    config, weights = packed
    wanted = None
    for numbers in (1, 640, 1 << 20):
        monkeypatch.setattr(cuda_products, "SLICE", numbers)
        monkeypatch.setattr(cuda_products, "FEW_ROWS", 2)
        runner = on_cpu(config, quantised_weights(weights, torch.float32, CPU), 16, 8)
        logits = runner.execute(dummy_batch([7, 1, 9], 16)).clone()
        wanted = logits if wanted is None else wanted
        torch.testing.assert_close(logits, wanted, rtol=1e-5, atol=2e-5)


def test_near_the_cpus_own_engine(packed, monkeypatch: pytest.MonkeyPatch):
    """That one rounds activations to 8 bits before it multiplies, with a scale for every 32: over these models logits
    move by 2 to 3 hundredths of the largest."""
    packed_runner = pytest.importorskip("engine.runner.packed")
    config, weights = packed
    cpu = packed_runner.PackedRunner(config, weights, "tiny", 1, 16, 16)
    ours = on_cpu(config, quantised_weights(weights, torch.float32, CPU), 16, 16)
    try:
        batch = dummy_batch([9, 3, 1], 16)
        batch.tokens[:] = np.arange(len(batch.tokens)) * 5 % V
        got, wanted = ours.execute(batch), cpu.execute(batch)
        assert float((got - wanted).abs().max()) < 0.05 * float(wanted.abs().max())
        assert ours.model.dtype == cpu.model.dtype and ours.model.parameters == cpu.model.parameters
    finally:
        cpu.close()


def test_bfloat16_activations_are_near(packed):
    """1 to 2 hundredths of the largest logit."""
    config, weights = packed
    ours = on_cpu(config, quantised_weights(weights, torch.bfloat16, CPU), 16, 16)
    exact = plain(config, in_float32(weights), 16, 16)
    batch = dummy_batch([9, 3, 1], 16)
    got, wanted = ours.execute(batch), exact.execute(batch)
    torch.testing.assert_close(got, wanted, rtol=0, atol=0.05 * float(wanted.abs().max()))


@pytest.mark.parametrize("gamma", [0, 3])
def test_token_equal_to_a_float32_pass_over_the_same_numbers(packed, gamma: int):
    config, weights = packed
    reference = plain(config, in_float32(weights), 16, 16)
    rng = np.random.default_rng(4)
    prompts = [(rng.integers(0, V, size).tolist() * 4)[: 3 * size] for size in (2, 5, 9, 30)]
    references = [greedily(reference, prompt) for prompt in prompts]
    settings = LiveSettings(max_batch=4, max_context=192, kv_blocks=64, token_budget=128, draft_length=gamma,
                            draft_method="ngram" if gamma else "off", temperature=0.0)  # fmt: skip
    sampler = DeviceSampler(V, CPU, kernels=False)
    runner = on_cpu(config, quantised_weights(weights, torch.float32, CPU), 16, most_rows=4, draft_length=gamma,
                    sampler=sampler)  # fmt: skip
    runner.resize(64)
    runner.warm_up()
    engine = Engine(
        runner,
        settings,
        sampler,
        bounds=limits(runner.model, 16, 1 << 16),
        proposers={"ngram": NgramProposer.of},
        launcher=runner if not gamma else None,
    )
    graphed = 0

    def between(step, record) -> None:
        nonlocal graphed
        graphed += record.graph

    outputs, _ = serve(engine, prompts, NEW_TOKENS, between)
    report = compare(outputs, references)
    assert report.equal, str(report)
    assert graphed > 0


NEW_TOKENS = 12


def greedily(runner: TorchRunner, prompt: list[int]) -> Reference:
    driver, sequence, gaps = Driver(runner), Driven(list(prompt)), []
    for _ in range(NEW_TOKENS):
        best = driver.run([(sequence, len(sequence.tokens) - sequence.computed)])[0][-1].topk(2)
        gaps.append(float(best.values[0] - best.values[1]))
        sequence.tokens.append(int(best.indices[0]))
    return Reference(prompt, sequence.tokens[len(prompt) :], gaps)


def test_first_layers_over_the_same_weights(packed):
    config, weights = packed
    runner, theirs = on_cpu(config, quantised_weights(weights, torch.float32, CPU), 16, 16), in_float32(weights)
    few, other = runner.first(1), plain(config, theirs, 16, 16).first(1)
    for each in (few, other):
        each.resize(8)
    batch = dummy_batch([5, 1, 9], 16)
    torch.testing.assert_close(few.execute(batch), other.execute(batch), rtol=2e-5, atol=5e-5)


def test_bytes_are_those_of_the_codes(packed):
    config, weights = packed
    quantised = quantised_weights(weights, torch.bfloat16, CPU)
    runner = on_cpu(config, quantised, 16, 4)
    matrices = {id(m): m.bytes for m in quantised.matrices}
    assert runner.weight_bytes == quantised.bytes == runner.model.weight_bytes
    small = config.hidden * 4 * 20  # norms and biases
    assert sum(matrices.values()) < runner.weight_bytes < sum(matrices.values()) + small * 10
    floats = 4 * weights.parameters
    assert runner.weight_bytes < (0.36 if weights.form != "Q4_1" else 0.24) * floats
    apart = weights.head is not weights.embedding
    assert runner.step_bytes == runner.weight_bytes - (quantised.embedding.bytes if apart else 0)


def test_packed_weights_go_as_they_are_laid_out_anew(packed):
    _, weights = packed
    mine = PackedWeights(**{**vars(weights), "layers": list(weights.layers)})
    made = quantised_weights(mine, torch.float32, CPU, consume=True)
    assert mine.layers == [] and len(made.layers) == len(weights.layers)


def test_a_steady_launch_allocates_nothing(packed):
    config, weights = packed
    silent = Ops(*[nothing] * 9)
    runner = on_cpu(config, quantised_weights(weights, torch.float32, CPU), 16, 8, silent, Called, most_rows=4)
    runner.warm_up()
    batch, rows = dummy_batch([1, 1, 1], 16), [SampleRow()] * 3
    runner.launch(batch, rows).result()
    with torch.inference_mode(), HostReads() as reads:
        pending = runner.launch(batch, rows)
    assert batch.graph and reads.seen == [] and reads.made == []
    pending.result()
