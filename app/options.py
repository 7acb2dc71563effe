"""Options that several commands share: the model, where it runs, and its first settings.

A mistake on the command line is a `UsageError`: one clear line, exit code 2.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import IO, NoReturn, get_args

from engine.config import (
    BLOCK_SIZES,
    WIDEST,
    Device,
    Dtype,
    EngineConfig,
    LiveSettings,
    SettingRefused,
    Simulation,
    change,
    check_drafts,
    check_ranges,
    number,
)

MESSAGE = 300  # characters of what argparse says, which quotes what was typed
MEMORY_FRACTION = (0.05, 0.98)  # some is the driver's own, and what shares the card moves a little
# What the window begins with: who drafts, and how much. By `bench speculation` suffix is ahead of the others in every
# kind of text with one stream, and drafts of a fixed length cost up to a fifth with four streams and more. What is
# typed into a terminal keeps to a fixed length: which tokens are drafted then doesn't hang on measured times.
STARTING = LiveSettings(draft_method="suffix", draft_policy="adaptive")
MOST_THREADS = 64  # or the machine's cores, where it has more; threads without a core only wait for each other


class UsageError(Exception):
    """What the user typed can't be done; the message names the remedy."""


class Parser(argparse.ArgumentParser):
    """Answers a mistake with one line, without the usage in front of it."""

    def __init__(self, **kwargs):
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **kwargs)

    def print_help(self, file: IO[str] | None = None) -> None:
        """As argparse's own, but a disk that is full isn't passed over in silence."""
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        short = message if len(message) < MESSAGE else f"{message[: MESSAGE - 1]}…"
        self.exit(2, f"{self.prog}: {short} (see {self.prog} --help)\n")


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--model",
        default="default",
        metavar="MODEL",
        help="a Hugging Face directory, a .gguf file, or a hub id (default: SmolLM2-135M-Instruct)",
    )
    group.add_argument(
        "--dtype",
        choices=get_args(Dtype),
        default="auto",
        help="form of the weights: a GGUF file's own 4 or 8 bits ('file') or any model rounded to 8 bits ('int8'), "
        "with keys and values in 16 bits; or floats (default: auto, what suits device and model)",
    )
    group.add_argument("--device", choices=get_args(Device), default="auto", help="where the model runs")
    group.add_argument(
        "--gpu",
        default="",
        metavar="GPU",
        help="of several NVIDIA GPUs: its number as nvidia-smi has it, or the beginning of its identifier, GPU-… or "
        "MIG-… (default: CUDA's first)",
    )
    group.add_argument(
        "--memory-fraction",
        type=float,
        default=EngineConfig().memory_fraction,
        metavar="F",
        help="of a card's memory, for weights, KV pool, graphs and what a step takes (default: %(default)s)",
    )
    group.add_argument("--threads", type=int, default=0, metavar="N", help="CPU threads of the engine (0: all cores)")
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting, such as max_batch=8, draft_method=suffix or simulated_acceptance=0.9,0.7; may be given "
        "several times",
    )


def add_simulate(parser: argparse.ArgumentParser) -> None:
    """Of commands that say of everything simulated that it is."""
    parser.add_argument(
        "--simulate",
        default="",
        metavar="DEVICE:MODEL",
        help="a cost model in the place of the model, such as h200:llama-3-8b: real scheduler and pool, computed "
        "times, meaningless text",
    )


def engine_config(args: argparse.Namespace, defaults: LiveSettings | None = None) -> EngineConfig:
    """The configuration that the options ask for. Raises UsageError naming the option and the remedy."""
    block_size = EngineConfig().block_size
    changes: dict[str, object] = {}
    for item in args.set:
        key, separator, value = item.partition("=")
        if not separator or not value:
            raise UsageError(f"--set {item}: expected KEY=VALUE, such as max_batch=8")
        if not is_unicode(item):
            raise UsageError(f"--set {key}: its value is not UTF-8 here; rename or link it, or run with PYTHONUTF8=1")
        if key == "block_size":
            block_size = _block_size(value)
        else:
            changes[key] = value
    within("--threads", args.threads, 0, max(MOST_THREADS, os.cpu_count() or 1))
    within("--memory-fraction", args.memory_fraction, *MEMORY_FRACTION)
    if args.gpu and not re.fullmatch(r"\d{1,3}|(GPU|MIG)-[0-9a-zA-Z/-]+", args.gpu, re.ASCII):
        raise UsageError(f"--gpu {args.gpu!r}: must be a number or identifier, GPU-… or MIG-…, of nvidia-smi -L")
    if args.gpu and args.device == "cpu":
        raise UsageError(f"--gpu {args.gpu}: the model runs on the CPU by --device cpu; leave one of the two out")
    if not is_unicode(args.model):
        raise UsageError("--model: its name is not UTF-8 here; rename or link it, or run with PYTHONUTF8=1")
    try:
        settings = change(defaults or LiveSettings(), changes)
        check_ranges(settings, {key: limit for key, limit in WIDEST.items() if key in changes})
        check_drafts(settings)
    except SettingRefused as refusal:
        raise UsageError(f"--set {refusal.key}: {refusal}") from None
    if settings.draft_method == "model" and not settings.draft_model:
        raise UsageError("--set draft_method=model needs --set draft_model=MODEL, a checkpoint as --model takes it")
    return EngineConfig(
        model=args.model,
        dtype=args.dtype,
        device=args.device,
        gpu=args.gpu,
        memory_fraction=args.memory_fraction,
        block_size=block_size,
        threads=args.threads,
        settings=settings,
        simulation=_simulation(args),
    )


def _simulation(args: argparse.Namespace) -> Simulation | None:
    """Of --simulate; it stands for model and device, so that these can't be given beside it."""
    asked = getattr(args, "simulate", "")
    if not asked:
        return None
    from engine.profiles import UnknownProfile, parse

    others = {"--model": args.model != "default", "--dtype": args.dtype != "auto", "--device": args.device != "auto"}
    if given := [option for option, is_given in others.items() if is_given]:
        raise UsageError(f"--simulate names device and model itself; leave {', '.join(given)} out")
    try:
        parse(asked)
    except UnknownProfile as error:
        raise UsageError(f"--simulate: {error}") from None
    return Simulation(profile=asked)


def within(option: str, value: float | None, low: float, high: float) -> None:
    """Raises UsageError for a number out of range; None was not given."""
    if value is not None and not low <= value <= high:
        raise UsageError(f"{option} {number(value)}: must be from {number(low)} to {number(high)}")


def pixels(option: str, text: str) -> tuple[int, int]:
    """Width and height of a window, as in 1600x1000. Raises UsageError."""
    width, _, height = text.lower().partition("x")
    if width.isdecimal() and height.isdecimal() and len(text) < 20:
        wide, high = int(width), int(height)
        if 200 <= wide <= 16384 and 150 <= high <= 16384:
            return wide, high
    raise UsageError(f"{option} {text!r} is not a size such as 1600x1000 (200x150 to 16384x16384)".lstrip())


def typed(text: str) -> str:
    """An argument as it was typed: where the locale is not UTF-8, Python hides its bytes behind surrogates."""
    try:
        return text if is_unicode(text) else os.fsencode(text).decode()
    except UnicodeError:
        return text


def is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _block_size(text: str) -> int:
    sizes = {str(size): size for size in BLOCK_SIZES}
    if text not in sizes:
        raise UsageError(f"--set block_size={text}: must be one of {', '.join(sizes)} (a power of two)")
    return sizes[text]
