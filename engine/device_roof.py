"""The roof over the device that a runner runs on, in the child. A CPU's is measured, since no data sheet says what is
left of a processor in a laptop or a share of a server; a card's is its data sheet's.

Measured are, by all threads of the engine and the best of a few short tries each, since all that disturbs makes them
slower:

bandwidth  reading as many bytes as a step reads of the weights, again and again. Not of more: a last cache of hundreds
           of megabytes may hold the weights from step to step, and a rate from beyond it would be no ceiling.
products   in the form that the engine multiplies in, from registers or caches. 4 and 8 bits are multiplied as bytes,
           64 to an instruction, where float32 has 16: that roof is some four times as high, and only products with
           weights can reach it, for attention and norms are float32 there too.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from engine.cost_model import Counts
from engine.kernels.linear import Linear
from engine.model.architecture import ModelConfig
from engine.roof import Roof, of_card, unavailable
from engine.runner.pooled import PooledRunner
from engine.runner.torch_runner import TorchRunner

LEAST, MOST = 32 << 20, 192 << 20  # bytes read: beyond the caches of one core; and made in under 0.1 s
TRIES = 5
MATRIX = 512  # numbers each way, of the product that a float form's peak is measured with: 0.8 ms
FLOATS = ("float32", "bfloat16", "float16")
TURNS, BYTE_TRIES = 5_000, 20  # of byte products at start: 0.2 to 0.5 ms a try


def roof_of(runner: PooledRunner, threads: int = 0) -> Roof:
    """`threads`: 0 = as many as torch takes."""
    counted, form, device = counts_of(runner), runner.model.dtype, runner.device_text
    if runner.name == "cuda":
        return of_card(device, form, counted)
    if runner.name != "cpu":
        return unavailable(device, counted, f"nothing is known of {device}")
    threads = threads or torch.get_num_threads()
    read = max(LEAST, min(MOST, runner.step_bytes))
    what = "bytes" if _packed_bytes(runner) else str(_floats(runner)).removeprefix("torch.")
    return Roof(
        device=device,
        bandwidth=read_rate(runner, read, threads),
        flops=2 * products_per_s(runner, threads, quickly=True),
        source="measured",
        counts=counted,
        note=f"measured at start: {read >> 20:,} MiB read again and again, and products of {what}",
    )


def counts_of(runner: PooledRunner) -> Counts:
    """Of the loaded model, in the form that its weights and its cache really have."""
    config, model = runner.config, runner.model
    head = config.vocabulary * config.hidden
    return Counts(
        weights=runner.step_bytes,
        body=products_per_token(config) - head,
        head=head,
        kv=model.kv_bytes_per_token,
        pair=4 * config.layers * config.heads * config.head_dim,
    )


def products_per_token(config: ModelConfig) -> int:
    """Of a number with a weight, each added to a sum; attention's aren't counted."""
    attention = (config.heads + 2 * config.kv_heads) * config.head_dim + config.heads * config.head_dim
    return config.layers * config.hidden * (attention + 3 * config.intermediate) + config.vocabulary * config.hidden


def read_rate(runner: PooledRunner, size: int, threads: int) -> float:
    """Bytes a second, of `size` bytes that are read again and again: what caches hold of them counts. By what the
    runner's own steps run on: the team of the compiled program, or torch's threads."""
    if is_compiled(runner):
        from engine.cpu.speed import read_bandwidth

        return read_bandwidth(threads, size, TRIES)
    memory = torch.empty(size // 8, dtype=torch.int64).fill_(1)  # memory that nobody wrote to isn't there
    return memory.nbytes / _fastest(memory.sum)


def products_per_s(runner: PooledRunner, threads: int, quickly: bool = False) -> float:
    """Products a second, each added to a sum: of bytes for weights packed in 4 or 8 bits, else of the floats that the
    weights are multiplied as."""
    if not _packed_bytes(runner):
        return float_products(_floats(runner))
    from engine.cpu.speed import byte_products

    return byte_products(threads, TURNS, BYTE_TRIES) if quickly else byte_products(threads)


@torch.inference_mode()
def float_products(dtype: torch.dtype) -> float:
    x, matrix = torch.rand(MATRIX, MATRIX).to(dtype), Linear(torch.rand(MATRIX, MATRIX).to(dtype))
    return MATRIX**3 / _fastest(lambda: matrix(x))


def is_compiled(runner: PooledRunner) -> bool:
    """Whether the CPU's compiled program makes its passes, not torch."""
    return not isinstance(runner, TorchRunner)


def _packed_bytes(runner: PooledRunner) -> bool:
    """Whether the weights are held in 4 or 8 bits, and multiplied as bytes."""
    return runner.model.dtype not in FLOATS


def _floats(runner: PooledRunner) -> torch.dtype:
    """The compiled program multiplies bfloat16 as float32, torch as it is."""
    return runner.dtype if isinstance(runner, TorchRunner) else torch.float32


def _fastest(work: Callable[[], object]) -> float:
    """Seconds of the best try; the first, in which threads and caches wake up, is none."""
    work()
    found = []
    for _ in range(TRIES):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return min(found)
