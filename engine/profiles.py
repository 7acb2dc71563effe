"""Devices and models that can be simulated: what the makers say of them. No torch; the command line asks it too.

`assets/calculator` has the figures. A device's are its data sheet's: memory as its driver counts it, bandwidth, dense
bf16 products without sparsity. What share of them a program reaches is `cost_model`'s business.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import accumulate
from typing import TypeVar

from engine.formulas import MIB, blocks_for, kv_bytes_per_token
from engine.shape import Shape, from_config

BYTES = 2  # of a parameter and of a number of the cache: simulated models run in bfloat16
CONTEXT_BYTES = 500 * MIB  # of CUDA itself, once it is up: about this on every card since Ampere
MOST_BLOCKS = 2**22  # of a simulated pool: three times what any profile holds, and still a gigabyte of bookkeeping
FRACTION = 0.9  # of a card, for all that an engine holds there, as engines for real ones take by default


class UnknownProfile(ValueError):
    """The message names those that there are."""


@dataclass(frozen=True)
class Device:
    """`bandwidth` in bytes/s, `flops` in bf16 FLOP/s, both the data sheet's."""

    name: str
    bytes: int
    bandwidth: float
    flops: float


@dataclass(frozen=True)
class ModelProfile:
    name: str
    shape: Shape

    @property
    def weight_bytes(self) -> int:
        return self.shape.parameters * BYTES

    @property
    def kv_bytes_per_token(self) -> int:
        return kv_bytes_per_token(self.shape.layers, self.shape.kv_heads, self.shape.head_dim, BYTES)


@dataclass(frozen=True)
class Profile:
    device: Device
    model: ModelProfile

    def blocks(self, block_size: int, tokens_at_once: int) -> int:
        """The largest pool that the device really holds beside the weights and a step's activations."""
        shape = self.model.shape
        # of a step: the widest product's input and output and the residual, and float32 logits of the rows
        wide = 2 * shape.intermediate + 2 * shape.hidden
        step = tokens_at_once * wide * BYTES + 512 * shape.vocabulary * 4
        room = self.device.bytes * FRACTION - CONTEXT_BYTES - self.model.weight_bytes - step
        return max(0, int(room // (self.model.kv_bytes_per_token * block_size)))


@cache
def devices() -> tuple[Device, ...]:
    return tuple(
        Device(card["name"], card["mib"] * MIB, card["gb_per_s"] * 1e9, card["bf16_tflops"] * 1e12)
        for card in _read("cards.json")
    )


@cache
def models() -> tuple[ModelProfile, ...]:
    return tuple(ModelProfile(model["name"], from_config(model["config"]).shape) for model in _read("models.json"))


def parse(text: str) -> Profile:
    """'h200:llama-3-8b'. Raises UnknownProfile."""
    device, separator, model = text.partition(":")
    if not separator:
        raise UnknownProfile(f"{text!r} is not DEVICE:MODEL, such as h200:llama-3-8b; {_listing()}")
    return Profile(_find("device", device, devices()), _find("model", model, models()))


def slug(name: str) -> str:
    """As it is typed: 'A100 80 GB' is a100-80-gb."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower().replace(".", "")).split())


def fills(profile: Profile, block_size: int, tokens_at_once: int, needed: int) -> int:
    """Blocks of a pool nobody sized: all that the device holds, at least `needed` tokens."""
    return max(profile.blocks(block_size, tokens_at_once), blocks_for(needed, block_size))


_Named = TypeVar("_Named", Device, ModelProfile)


def _find(kind: str, asked: str, among: tuple[_Named, ...]) -> _Named:
    """By name, or by its first words where only one has them: not by a part of a word, since an L4 or an H20 is another
    card. Spaces, dots and dashes don't count."""
    wanted = slug(asked).replace("-", "")

    def beginnings(name: str) -> list[str]:
        return list(accumulate(slug(name).split("-")))

    exact = [each for each in among if beginnings(each.name)[-1] == wanted]
    found = exact or [each for each in among if wanted in beginnings(each.name)]
    if len(found) != 1:
        why = f"could be {' or '.join(slug(each.name) for each in found)}" if found else "is not known"
        raise UnknownProfile(f"the {kind} {asked[:40]!r} {why}; {_listing()}")
    return found[0]


def _listing() -> str:
    return (
        f"devices: {', '.join(slug(each.name) for each in devices())}; "
        f"models: {', '.join(slug(each.name) for each in models())}"
    )


def _read(name: str) -> list[dict]:
    return json.loads((files("assets") / "calculator" / name).read_text("utf-8"))
