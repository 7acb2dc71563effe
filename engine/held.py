"""What the weights of a running engine come to, byte by byte, from the model's sizes and their form.

Parameters × bytes is what a checkpoint holds. An engine holds more, for reasons that are known and counted here:
norms stay in float32, a head's norms are repeated for every head, a tied head is laid out a second time for the
CPU's matrix library, packed weights bring scales and fill whole tiles. Plain Python; `engine.runner` makes what this
counts, and a test with each form holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from engine.config import Model
from engine.shape import KINDS, Shape

GROUP, TILE = 32, 16  # of packed matrices: inputs that share a scale, outputs of a tile
FLOATS = {"float32": 4, "bfloat16": 2, "float16": 2}
MATRICES = ("embedding", "head", "qkv", "output", "gate_up", "down")


@dataclass(frozen=True)
class Part:
    """`name` says what it is, `why` what makes it so large."""

    name: str
    bytes: int
    why: str


@dataclass(frozen=True)
class Held:
    shape: Shape
    parts: tuple[Part, ...]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


def in_floats(shape: Shape, size: int, head_again: bool) -> Held:
    """Numbers of `size` bytes. `head_again`: a tied head is held in a layout of its own."""
    parts = [Part("parameters", shape.parameters * size, f"{shape.parameters:,} × {size} B")]
    if shape.tied and head_again:
        parts.append(Part("head again", shape.embedding * size, "tied, laid out for products"))
    return Held(shape, (*parts, *_norms(shape, size)))


def _norms(shape: Shape, size: int) -> Iterator[Part]:
    """What norms hold beyond `size` bytes a number."""
    if size < 4:
        more = (shape.norms + shape.head_norms) * (4 - size)
        yield Part("norms in float32", more, f"{shape.norms + shape.head_norms:,} numbers × {4 - size} B more")
    if shape.qk_norm:
        copies = (shape.heads + shape.kv_heads - 2) * shape.head_dim * shape.layers
        yield Part("head norms", 4 * copies, f"a row for each of {shape.heads} + {shape.kv_heads} heads, not 2")


def in_codes(shape: Shape, bits: Mapping[str, int]) -> Held:
    """Packed matrices of 4, 8 or 16 bits a number, by the names in MATRICES; everything else float32."""
    matrices = {"embedding": ((shape.vocabulary, shape.hidden), 1)}
    if not shape.tied:
        matrices["head"] = ((shape.vocabulary, shape.hidden), 1)
    matrices |= {name: (sizes, shape.layers) for name, sizes in shape.layer_matrices.items()}
    codes = scales = filled = 0
    for name, ((rows, columns), count) in matrices.items():
        halves = {4: 2, 8: 1, 16: 0}[bits[name]]  # float16 numbers a group: in 4 bits a minimum beside the scale
        groups = columns // GROUP
        spare = -rows % TILE
        codes += count * rows * columns * bits[name] // 8
        scales += count * rows * groups * 2 * halves
        filled += count * spare * (columns * bits[name] // 8 + groups * 2 * halves)
    numbers = shape.parameters - shape.norms - shape.head_norms - shape.biases
    widths = sorted({bits[name] for name in matrices})
    small = 4 * (shape.norms + shape.biases + shape.head_norms)
    parts = [
        Part("codes", codes, f"{numbers:,} weights in {' and '.join(map(str, widths))} bits"),
        Part("scales", scales, f"float16 for every {GROUP} weights"),
        Part("norms, biases", small, "float32"),
        *(part for part in _norms(shape, 4)),
    ]
    if filled:
        parts.append(Part("padding", filled, f"rows that fill tiles of {TILE}"))
    return Held(shape, tuple(part for part in parts if part.bytes))


def explain(model: Model, weights: int) -> Held | None:
    """How a running engine's `weights` bytes come about, to the byte; None if no model of its sizes holds so many.

    What the engine doesn't tell (the MLP's width, biases, a tied head, bits by matrix) is found by trying: few
    combinations give whole sizes, and of these the first that holds exactly `weights`.
    """
    for shape in _candidates(model):
        for held in _forms(shape, model.dtype):
            if held.bytes == weights:
                return held
    return None


def nearest(model: Model, weights: int) -> Held | None:
    """What comes nearest to an engine's figure, where nothing explains it."""
    found = [held for shape in _candidates(model) for held in _forms(shape, model.dtype)]
    return min(found, key=lambda held: abs(held.bytes - weights), default=None)


def _forms(shape: Shape, form: str) -> Iterator[Held]:
    whole = not any(columns % GROUP for _, columns in shape.layer_matrices.values())
    if form == "bfloat16" and whole:  # the CPU's compiled program
        yield in_codes(shape, dict.fromkeys(MATRICES, 16))
    if form in FLOATS:
        for again in (True, False) if shape.tied else (False,):
            yield in_floats(shape, FLOATS[form], again)
        return
    if not whole:
        return
    if form == "int8":
        yield in_codes(shape, dict.fromkeys(MATRICES, 8))
        return
    names = [name for name in MATRICES if name != "head" or not shape.tied]
    most = 8 if form == "Q8_0" else 4
    chosen = [dict(zip(names, widths, strict=True)) for widths in product((8, 4), repeat=len(names))]
    for bits in sorted(chosen, key=lambda bits: sum(width != most for width in bits.values())):
        yield in_codes(shape, bits)


def _candidates(model: Model) -> Iterator[Shape]:
    """Shapes with this many parameters, the plainest first."""
    qkv_bias, qk_norm = KINDS.get(model.architecture, (False, False))
    may_bias = model.architecture in ("llama", "qwen3")
    for mlp_bias, bias, tied in product((False, True), (False, True), (True, False)):
        if (bias and not may_bias) or (mlp_bias and model.architecture != "llama"):
            continue
        shape = Shape(
            kind=model.architecture, layers=model.layers, hidden=model.hidden, intermediate=0, heads=model.heads,
            kv_heads=model.kv_heads, head_dim=model.head_dim, vocabulary=model.vocabulary,
            max_positions=model.max_positions, tied=tied, qkv_bias=qkv_bias or bias, output_bias=bias,
            mlp_bias=mlp_bias, qk_norm=qk_norm,
        )  # fmt: skip
        each = model.layers * (3 * model.hidden + 2 * mlp_bias)  # numbers for each unit of the MLP's width
        width, left = divmod(model.parameters - shape.parameters, each)
        if width > 0 and not left:
            yield Shape(**{**shape.__dict__, "intermediate": width})
