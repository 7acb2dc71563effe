"""Whether a request can be served at all. A refusal says what to do about it; nothing is changed here."""

from __future__ import annotations

import hashlib
import math
from typing import TypeVar

from engine.config import MAX_BEAMS, MAX_LENGTH_PENALTY, MAX_SAMPLES, PENALTIES, WIDEST, LiveSettings
from engine.formulas import blocks_for
from engine.penalties import Penalties
from engine.records import Request, Sampling
from engine.sampler import SampleRow

T = TypeVar("T")
_SEED_BYTES = 8  # the sampler's random numbers are keyed by 64 bits


class RequestRefused(ValueError):
    """A request that was not taken; the message names the remedy."""


def check_request(ids: list[int], request: Request, settings: LiveSettings, vocabulary: int, block_size: int) -> None:
    """Raises RequestRefused."""
    if not ids:
        raise RequestRefused("the prompt is empty; type at least one word")
    low, high = min(ids), max(ids)
    if low < 0 or high >= vocabulary:
        wrong = low if low < 0 else high
        raise RequestRefused(f"token id {wrong} is outside the model's vocabulary, which is 0 to {vocabulary - 1:,}")
    if request.max_tokens < 1:
        raise RequestRefused(f"max_tokens is {request.max_tokens}; ask for at least 1")
    if len(ids) >= settings.max_context:
        raise RequestRefused(
            f"the prompt has {len(ids):,} tokens and max_context is {settings.max_context:,}, which must also hold "
            "the answer; shorten the prompt or raise max_context"
        )
    need = blocks_for(min(len(ids) + request.max_tokens, settings.max_context), block_size)
    if need > settings.kv_blocks:
        raise RequestRefused(
            f"the request may need {need:,} KV blocks and the pool has {settings.kv_blocks:,}; raise kv_blocks, "
            "lower max_tokens or shorten the prompt"
        )
    if any(not stop for stop in request.stop):
        raise RequestRefused("a stop string is empty and would end every answer at once; leave it out")
    _check_sampling(request.sampling)
    if not 1 <= request.n <= MAX_SAMPLES:
        raise RequestRefused(f"n is {request.n}; ask for 1 to {MAX_SAMPLES} samples")
    if request.beams:
        _check_beams(request, need, settings)


def _check_beams(request: Request, need: int, settings: LiveSettings) -> None:
    """`need`: blocks that one of them may come to hold."""
    beams = request.beams
    if not 1 <= beams <= MAX_BEAMS:
        raise RequestRefused(f"{beams} beams; ask for 1 to {MAX_BEAMS}")
    if request.n > 1:
        raise RequestRefused("beams and n > 1 don't go together: a search gives its best beams; leave n out")
    if request.stop:
        raise RequestRefused("a beam search ends at tokens, not at stop strings; leave them out")
    if request.sampling.temperature:
        raise RequestRefused("a beam search draws nothing; leave the temperature out, or ask for samples with n")
    for name, neutral in PENALTIES.items():
        if getattr(request.sampling, name) not in (None, neutral):
            raise RequestRefused(
                f"a beam search ranks what the model itself finds likely, without {name}; leave it out, or ask for "
                "samples with n"
            )
    if not abs(request.length_penalty) <= MAX_LENGTH_PENALTY:
        low, high = -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY
        raise RequestRefused(f"length_penalty is {request.length_penalty:g}; it must be {low:g} to {high:g}")
    if beams > settings.max_batch:
        raise RequestRefused(
            f"{beams} beams run together and max_batch is {settings.max_batch}; raise max_batch or ask for fewer beams"
        )
    if beams * need > settings.kv_blocks:
        raise RequestRefused(
            f"{beams} beams may need {beams * need:,} KV blocks and the pool has {settings.kv_blocks:,}; raise "
            "kv_blocks, lower max_tokens or ask for fewer beams"
        )


def _check_sampling(sampling: Sampling) -> None:
    ranges = (
        ("temperature", sampling.temperature, 0.0, math.inf),
        ("top_k", sampling.top_k, 0, math.inf),
        ("min_p", sampling.min_p, 0.0, 1.0),
        *((name, getattr(sampling, name), WIDEST[name].low, WIDEST[name].high) for name in PENALTIES),
    )
    for name, value, low, high in ranges:
        if value is not None and not (low <= value <= high and math.isfinite(value)):
            allowed = f"{low:g} to {high:g}" if math.isfinite(high) else f"{low:g} or more"
            raise RequestRefused(f"{name} is {value:g}; it must be {allowed}")
    if sampling.top_p is not None and not 0.0 < sampling.top_p <= 1.0:
        raise RequestRefused(f"top_p is {sampling.top_p:g}; it must be above 0 and at most 1")


def resolve_sampling(request: Request, settings: LiveSettings, engine_seed: int, index: int = 0) -> SampleRow:
    """The request's own sampling, with the live settings' defaults where it has none. `index`: of the sample."""
    own = request.sampling
    return SampleRow(
        temperature=_pick(own.temperature, settings.temperature),
        top_k=_pick(own.top_k, settings.top_k),
        top_p=_pick(own.top_p, settings.top_p),
        min_p=_pick(own.min_p, settings.min_p),
        seed=(_pick(own.seed, _seed(engine_seed, request.number)) + index) % (1 << 8 * _SEED_BYTES),
        penalties=_penalties(own, settings),
    )


def settled(params: SampleRow) -> Sampling:
    """What asks for just these params, whatever the defaults are by now."""
    names = ("temperature", "top_k", "top_p", "min_p", "seed")
    penalties = params.penalties or Penalties()
    values = (penalties.repetition, penalties.presence, penalties.frequency)
    return Sampling(**{name: getattr(params, name) for name in names}, **dict(zip(PENALTIES, values, strict=True)))


def _penalties(own: Sampling, settings: LiveSettings) -> Penalties | None:
    values = [_pick(getattr(own, name), getattr(settings, name)) for name in PENALTIES]
    return Penalties(*values) if values != list(PENALTIES.values()) else None


def _pick(value: T | None, default: T) -> T:
    return default if value is None else value


def _seed(engine_seed: int, number: int) -> int:
    """A seed for a request that brings none: another for every request, the same in every run."""
    text = f"{engine_seed}:{number}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=_SEED_BYTES).digest(), "little")
