"""The CUDA runner on its own kernels, interpreted, with weights of 4 and 8 bits and the device's sampler: a short
course of the engine, with drafts and with overlap. Its tokens are those of the formulas in torch and of the host's
sampler.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as T

from engine.config import LiveSettings, limits
from engine.core import Engine
from engine.model.packed_weights import load_packed
from engine.model.store import ModelFiles
from engine.records import TOKEN, Request, Sampling, unpack
from engine.runner import cuda_products, kernel_runner
from engine.runner.cuda_ops import kernel_ops, torch_ops
from engine.runner.device_sampler import DeviceSampler
from engine.runner.quantised_weights import quantised_weights
from engine.sampler import Sampler
from engine.speculation.ngram import NgramProposer
from tests.support import gguf_files, tiny_models
from tests.support.cuda_on_cpu import CPU, on_cpu

V = tiny_models.VOCABULARY
SIZES = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2,
         "num_key_value_heads": 1, "head_dim": 16}  # fmt: skip
KINDS = [Sampling(temperature=0.0), Sampling(temperature=0.8, top_k=9, top_p=0.9, seed=3)]


def tokens_of(runner, sampler: Sampler, overlap: bool) -> tuple[dict[int, list[int]], int, int]:
    settings = LiveSettings(max_batch=2, max_context=32, kv_blocks=4, token_budget=8, draft_length=0 if overlap else 2,
                            draft_method="off" if overlap else "ngram")  # fmt: skip
    runner.resize(4)
    engine = Engine(
        runner,
        settings,
        sampler,
        bounds=limits(runner.model, 16, 1 << 10),
        proposers={"ngram": NgramProposer.of},
        launcher=runner if overlap else None,
    )
    phrase = np.random.default_rng(1).integers(0, V, 3).tolist()
    for number, sampling in enumerate(KINDS):
        request = Request(number=number, max_tokens=5, ignore_eos=True, sampling=sampling)
        engine.submit(number, phrase * (2 + number), request)
    found: dict[int, list[int]] = {}
    graphed = overlapped = 0
    while engine.has_work:
        record = engine.step()
        graphed, overlapped = graphed + record.graph, overlapped + record.overlapped
        for token in unpack(record.emitted, TOKEN):
            found.setdefault(int(token["seq"]), []).append(int(token["token"]))
    return found, graphed, overlapped


@pytest.mark.slow
@pytest.mark.parametrize(("form", "overlap"), [("int8", False), ("file", True)], ids=["8 bits, drafts", "4, overlap"])
def test_token_equal_in_few_bits(tmp_path, form: str, overlap: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernel_runner, "CAPTURED_AT", 1)
    monkeypatch.setattr(cuda_products, "FEW_ROWS", 4)  # so that a prompt's chunk takes the other way
    model = tiny_models.make(tiny_models.config_of("llama", tied=True, **SIZES))
    gguf_files.write(tmp_path / "tiny", model, T.Q4_1)
    config, packed = load_packed(ModelFiles("gguf", tmp_path / "tiny", tmp_path / "tiny", "tiny"), form)

    def runner(ops, sampler):
        weights = quantised_weights(packed, torch.float32, CPU)
        return on_cpu(config, weights, 16, ops=ops, sampler=sampler, most_rows=2, most_tokens=8)

    sampler = DeviceSampler(V, CPU, kernels=True, block=64)
    ours, graphed, overlapped = tokens_of(runner(kernel_ops(), sampler), sampler, overlap)
    theirs, *_ = tokens_of(runner(torch_ops(), None), Sampler(V), False)
    assert ours == theirs and [len(each) for each in ours.values()] == [5, 5]
    assert graphed > 0 and (overlapped > 0) == overlap
