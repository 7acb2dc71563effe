"""What a launch of paged attention may be given, and the tiles that a card does it in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from engine.kernels.ahead import SHARED_BYTES, TYPES, Case

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Keys of a tile: with d padded to 128 its keys and values are 32 KiB.
TILE = {4: 32, 2: 64}
TILE_OF_MANY_LINES = 16  # of float32, for more than its most lines: groups of more than 16 heads, which spill otherwise
# Bytes of shared memory a program may have, from which on two tiles are on their way while one is in work, and not one:
# 64 KiB for each of a multiprocessor's programs. A100: 163 KiB; H100, H200, B200: 227; RTX 30, 40, 50: 99.
ROOMY = 160 * 1024
# A key is found by way of its table entry, so that each tile ahead takes two stages of Triton's, and the one in work
# another.
STAGES_ROOMY, STAGES_TIGHT = 5, 3
# Lines of a tile, least and most. A tensor core's are 16 at least. float32 is done without them, each thread holding
# whole rows of both operands: more lines spill.
LINES = {4: (1, 16), 2: (16, 128)}
FEW_LINES = {4: 8, 2: 16}  # that 4 warps do without spilling; decode is as a rule among them
# Keys of a stretch at least, and per line of its result, which is written and read again in float32.
LEAST_KEYS, LEAST_KEYS_PER_LINE = 128, 8
# Numbers that one round of a merge holds in registers, by warps, for each of them: 64 or 32 a thread.
MERGED_PER_WARP = {4: 2048, 8: 1024}
# Left alone, ptxas aims at 128 registers for some programs of 8 warps, so that two fit, and spills a little. Told that
# it may take all there are, it doesn't. Not for everybody: tiles of 128 lines of 128 numbers, which take more than 128
# anyway, it then fills up until they spill; and small ones, which fit, would take room from their neighbours.
ALL_REGISTERS = 255


@dataclass(frozen=True)
class PoolShape:
    """`group`: query heads that share a key/value head; `width`: bytes of a number."""

    kv_heads: int
    group: int
    block_size: int
    d: int
    width: int


@dataclass(frozen=True)
class Tiling:
    """`lines`: queries × heads of a tile, padded; `queries` of them in it at most."""

    lines: int
    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None  # of a thread at most; None: as ptxas likes


def check_pool(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: torch.Tensor,
    contexts: torch.Tensor,
    out: torch.Tensor,
) -> PoolShape:
    """The shape of what a kernel is called with, or ValueError: a wrong stride would be read as other numbers."""
    kv_heads, _, block_size, d = keys.shape
    heads = q.shape[1]
    _need(q.dim() == 3 and q.shape == out.shape, f"q {tuple(q.shape)} and out {tuple(out.shape)} differ")
    _need(q.shape[2] == d and d % 8 == 0 and d <= 256, f"head size {q.shape[2]} over a pool of {d}: at most 256, of 8")
    _need(heads % kv_heads == 0, f"{heads} query heads over {kv_heads} key/value heads")
    _need(q.dtype in DTYPES and {q.dtype} == {keys.dtype, values.dtype, out.dtype}, "one of float32, float16, bfloat16")
    _need(q[0].is_contiguous() and out[0].is_contiguous() if len(q) else True, "a query's heads lie together")
    _need(keys.shape == values.shape and keys.stride() == values.stride(), "keys and values are laid out alike")
    _need(keys[0].is_contiguous() and keys[0].numel() < 2**31, "a head's pool lies together, under 2³¹ numbers")
    _need(tables.dim() == 2 and tables.dtype == contexts.dtype == torch.int32, "tables and contexts are int32")
    _need(tables.stride(1) == 1 and contexts.is_contiguous() and len(tables) >= len(contexts), "a table for each row")
    return PoolShape(kv_heads, heads // kv_heads, block_size, d, q.element_size())


def tiling(shape: PoolShape, lines: int, device: torch.device) -> Tiling:
    """For tiles of up to `lines` lines, on `device`."""
    room = ROOMY
    if device.type == "cuda":
        room = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    return tiling_for(shape, lines, room >= ROOMY)


def tiling_for(shape: PoolShape, lines: int, roomy: bool) -> Tiling:
    least, most = LINES[shape.width]
    padded = min(max(triton.next_power_of_2(lines), least), max(most, triton.next_power_of_2(shape.group)))
    warps = 4 if padded <= FEW_LINES[shape.width] else 8
    stages = 2 if padded == 128 else STAGES_ROOMY if roomy else STAGES_TIGHT  # 128 lines keep a tile busy by themselves
    keys = TILE[shape.width] if padded <= most else TILE_OF_MANY_LINES
    numbers = padded * triton.next_power_of_2(shape.d)
    all_of_them = warps == 8 and (numbers >= 16 * 128 if shape.width == 4 else numbers < 128 * 128)
    registers = ALL_REGISTERS if all_of_them else None
    return Tiling(padded, max(1, padded // shape.group), keys, warps, stages, registers)


def constants(shape: PoolShape, tiles: Tiling, queries: int, splits: int) -> dict[str, int]:
    """The kernels' constants, for tiles of `queries` queries."""
    used, d_padded = queries * shape.group, triton.next_power_of_2(shape.d)
    used_padded = triton.next_power_of_2(used)
    merged = MERGED_PER_WARP[tiles.warps] * tiles.warps // (used_padded * d_padded)
    splits_padded = triton.next_power_of_2(splits)
    return {
        "GROUP": shape.group,
        "QUERIES": queries,
        "USED_PADDED": used_padded,
        "LINES": tiles.lines,
        "SPLITS_PADDED": splits_padded,
        "LEAST_TILES": -(-max(LEAST_KEYS, LEAST_KEYS_PER_LINE * used) // tiles.keys),
        "MERGED": max(1, min(merged, splits_padded)),
        "BLOCK": shape.block_size,
        "TILE": tiles.keys,
        "D": shape.d,
        "D_PADDED": d_padded,
    }


def case(kernel: object, words: str, shape: PoolShape, most: int, splits: int, type_: str, roomy: bool) -> Case:
    """What a launch compiles on a card with or without room, for rows of up to `most` queries."""
    tiles = tiling_for(shape, most * shape.group, roomy)
    numbers = dict.fromkeys(("q", "keys", "values", "out"), "*" + TYPES[type_])
    floats = dict.fromkeys(("means", "log_sums"), "*fp32")
    whole = dict.fromkeys(("tables", "row_starts", "contexts", "arrivals"), "*i32")
    strides = dict.fromkeys(("q_stride", "out_stride", "table_stride", "splits"), "i32")
    return Case(
        kernel, f"{type_}, {words}, heads of {shape.d}, {shape.group} to a group, blocks of {shape.block_size}",
        {**numbers, **floats, **whole, **strides, "pool_stride": "i64", "scale": "fp32"},
        dict(constants(shape, tiles, min(tiles.queries, most), splits)), ("q_stride", "out_stride", "pool_stride"),
        tiles.warps, tiles.stages, tiles.registers,
        targets=tuple(cc for cc, room in SHARED_BYTES.items() if (room >= ROOMY) == roomy),
    )  # fmt: skip


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(f"paged attention: {otherwise}")
