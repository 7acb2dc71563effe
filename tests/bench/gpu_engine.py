"""The engine headless on a card: five prompts in float32, token-equal to a dense reference computed here.

The reference is written out below, on the CPU, over whole sequences: no pages, no batches, no cache, no kernels of the
engine. It is given the engine's own output: where its best token agrees at every place, greedy decoding by it gives
that output.
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.nn.functional as F

from app.bench.equality import Reference, Report, compare
from engine.build import build
from engine.config import EngineConfig, LiveSettings
from engine.model.architecture import ModelConfig
from engine.model.store import resolve
from engine.model.weights import Weights, load
from engine.records import TOKEN, Request, Sampling, StepRecord, unpack

PROMPTS = (
    "What is the capital of France?",
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "Explain in simple words why the sky is blue, and why sunsets are red.",
    "Write a Python function that returns the n-th Fibonacci number, and explain how it works line by line.",
    "List ten things to pack for a hiking trip in the mountains, with one reason for each of them. "
    "Then repeat the list in alphabetical order, without the reasons, and count how many letters each has.",
)
SETTINGS = LiveSettings(max_batch=8, token_budget=64, kv_blocks=256, max_context=1024)  # 64: long prompts in chunks


def run(device: str, model: str, new_tokens: int) -> dict[str, object]:
    config = EngineConfig(model=model, dtype="float32", device=device, settings=SETTINGS)
    built = build(config, lambda *_: None)
    prompts = [built.encode_request(Request(number=i, prompt=text)) for i, text in enumerate(PROMPTS)]
    outputs, steps = serve(built.engine, prompts, new_tokens)
    return {**describe(built.ready.device, steps), **verdict(check(model, prompts, outputs))}


def serve(engine, prompts: list[list[int]], new_tokens: int) -> tuple[list[list[int]], list[tuple[float, StepRecord]]]:
    """All prompts at once, greedy, drafts on; the output tokens of each, and every step with its seconds."""
    for number, prompt in enumerate(prompts):
        request = Request(
            number=number, max_tokens=new_tokens, ignore_eos=True, sampling=Sampling(temperature=0.0)
        )
        engine.submit(number, prompt, request)
    outputs: list[list[int]] = [[] for _ in prompts]
    steps = []
    while engine.has_work:
        started = time.perf_counter()
        record = engine.step()
        steps.append((time.perf_counter() - started, record))
        for seq, token in unpack(record.emitted, TOKEN)[["seq", "token"]].tolist():
            outputs[seq - 1].append(token)
    return outputs, steps


def check(model: str, prompts: list[list[int]], outputs: list[list[int]]) -> Report:
    config, weights = load(resolve(model), torch.float32, torch.device("cpu"))
    references = []
    for prompt, output in zip(prompts, outputs, strict=True):
        logits = dense(config, weights, torch.tensor(prompt + output))[len(prompt) - 1 : -1]
        best = logits.topk(2, dim=-1)
        gaps = (best.values[:, 0] - best.values[:, 1]).tolist()
        references.append(Reference(prompt, best.indices[:, 0].tolist(), gaps))
    return compare(outputs, references)


def describe(device: str, steps: list[tuple[float, StepRecord]]) -> dict[str, object]:
    seconds = [s for s, _ in steps]
    emitted = sum(len(unpack(record.emitted, TOKEN)) for _, record in steps)
    return {
        "device": device,
        "torch": torch.__version__,
        "dtype": "float32",
        "prompts": len(PROMPTS),
        "steps": len(steps),
        "step_ms_p50": round(1e3 * statistics.median(seconds), 3),
        "output_tokens_per_s": round(emitted / sum(seconds), 1),
    }


def verdict(report: Report) -> dict[str, object]:
    return {"token_equal": report.equal, "differences": [str(d) for d in report.differences]}


# --- the reference ---


@torch.inference_mode()
def dense(c: ModelConfig, weights: Weights, tokens: torch.Tensor) -> torch.Tensor:
    """tokens (T) of one sequence → logits (T, V), every token seen by all after it."""
    count = len(tokens)
    angles = torch.arange(count)[:, None] * weights.inverse_frequencies  # (T, d / 2)
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]  # (T, 1, d / 2) complex
    future = torch.ones(count, count).triu(1).bool()
    x = weights.embedding[tokens]  # (T, D)
    for layer in weights.layers:
        h = F.rms_norm(x, (c.hidden,), layer.attention_norm, c.rms_eps)
        qkv = F.linear(h, layer.qkv, layer.qkv_bias).view(count, -1, c.head_dim)
        q, k, v = qkv.split((c.heads, c.kv_heads, c.kv_heads), dim=1)
        if layer.qk_norm is not None:
            q = F.rms_norm(q, (c.head_dim,), layer.qk_norm[0], c.rms_eps)
            k = F.rms_norm(k, (c.head_dim,), layer.qk_norm[-1], c.rms_eps)
        k, v = (t.repeat_interleave(c.heads // c.kv_heads, dim=1) for t in (k, v))
        scores = torch.einsum("thd,shd->hts", rotated(q, turn), rotated(k, turn)) / c.head_dim**0.5
        seen = torch.einsum("hts,shd->thd", scores.masked_fill(future, -torch.inf).softmax(dim=-1), v)
        x = x + F.linear(seen.reshape(count, -1), layer.output, layer.output_bias)
        h = F.rms_norm(x, (c.hidden,), layer.mlp_norm, c.rms_eps)
        gate, up = F.linear(h, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        x = x + F.linear(F.silu(gate) * up, layer.down, layer.down_bias)
    return F.linear(F.rms_norm(x, (c.hidden,), weights.norm, c.rms_eps), weights.head)


def rotated(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """x (T, heads, d): its halves as complex numbers, turned."""
    first, second = x.chunk(2, dim=-1)
    got = torch.complex(first, second) * turn
    return torch.cat((got.real, got.imag), dim=-1)

