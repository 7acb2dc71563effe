"""The CUDA path on a card, in under 4 minutes: is it right, and is it as fast as the memory lets it be?

    python -m tests.bench.gpu [--dry] [--only PART ...] [--model MODEL] [--new-tokens N] [--seconds S] [--out FILE]

Parts: `kernels`, each against float64; `attention`, paged decode at 8k to 64k of context, as a share of the bandwidth
at which the card copies; `decode`, a step of batch 1 of a synthetic model of Llama 3 8B's shape in bfloat16, as a share
of bandwidth ÷ bytes, and what it costs outside its graph; `decode_w4a16`, the same with weights of 4 bits, `products`,
those of a layer alone; `engine`, token-equal to a dense reference. Prints one JSON object and keeps it in tests/bench
under the card's name. Exit code 1: something differs, failed, or is too slow.

--dry runs every part to its end on the CPU, kernels in Triton's interpreter, at sizes that mean nothing: what it shows
is that the script has no mistake. A part that can't run here says so ("unmeasured") and the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

BASE = ("torch", "triton", "numpy", "msgspec")
ENGINE = ("gguf", "safetensors", "tokenizers", "jinja2")  # what reads models and prompts
# by part: the packages that its modules import
NEEDS = {
    "kernels": (*BASE, "safetensors", "gguf"),
    "attention": BASE,
    "decode": (*BASE, "safetensors", "gguf"),
    "decode_w4a16": (*BASE, "safetensors", "gguf"),
    "products": BASE,
    "engine": (*BASE, *ENGINE),
}
KEPT = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry", action="store_true", help="on the CPU, tiny: to try the script itself")
    parser.add_argument("--only", nargs="+", choices=tuple(NEEDS), default=tuple(NEEDS), metavar="PART")
    parser.add_argument("--model", default="default")
    parser.add_argument("--new-tokens", type=int, default=0, help="of each prompt (default: 64, dry: 2)")
    parser.add_argument("--seconds", type=float, default=220.0, help="no part begins after so many")
    parser.add_argument("--out", type=Path, help="file to keep the result in (default: by the card's name; dry: none)")
    asked = parser.parse_args()
    if asked.dry:
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is first imported
    started = time.monotonic()
    missing = [name for name in BASE if find_spec(name) is None]
    if missing:
        print(json.dumps({"unmeasured": f"missing here: {', '.join(missing)}; pip install {' '.join(missing)}"}))
        return 2
    import torch

    if not asked.dry and not torch.cuda.is_available():
        print(json.dumps({"cuda": "unmeasured", "reason": "torch sees no CUDA card", "torch": torch.__version__}))
        return 0
    found = describe(asked.dry)
    for part in asked.only:
        begun = time.monotonic()
        if begun - started > asked.seconds:
            found[part] = {"unmeasured": f"{begun - started:.0f} s had gone by"}
            continue
        found[part] = attempt(part, asked)
        found[part]["seconds"] = round(time.monotonic() - begun, 1)
    found["seconds"] = round(time.monotonic() - started, 1)
    found["ok"] = all(found[part].get("ok", True) for part in asked.only)
    text = json.dumps(found, indent=1)
    print(text)
    out = asked.out or (None if asked.dry else KEPT / f"gpu_{slug(str(found['device']))}.json")
    if out is not None:
        out.write_text(text + "\n")
    return 0 if found["ok"] else 1


def attempt(part: str, asked: argparse.Namespace) -> dict[str, object]:
    """A part that fails doesn't cost the minutes that the others need."""
    missing = [name for name in NEEDS[part] if find_spec(name) is None]
    if missing:
        return {"unmeasured": f"missing here: {', '.join(missing)}; pip install {' '.join(missing)}"}
    try:
        return run_of(part, asked)()
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("engine."):
            return {"unmeasured": f"this version has no {error.name}"}
        return {"ok": False, "failed": str(error), "detail": traceback.format_exc()[-2000:]}
    except Exception as error:
        return {"ok": False, "failed": f"{type(error).__name__}: {error}", "detail": traceback.format_exc()[-2000:]}


def run_of(part: str, asked: argparse.Namespace) -> Callable[[], dict[str, object]]:
    from tests.bench import gpu_kernels, gpu_speed
    from tests.bench.gpu_timer import Bench

    bench = Bench(asked.dry)

    def engine() -> dict[str, object]:
        from tests.bench import gpu_engine

        new_tokens = asked.new_tokens or (2 if asked.dry else 64)
        found = gpu_engine.run("cpu" if asked.dry else "cuda", asked.model, new_tokens)
        return {**found, "ok": found["token_equal"]}

    return {
        "kernels": lambda: gpu_kernels.run(bench),
        "attention": lambda: gpu_speed.attention(bench),
        "decode": lambda: gpu_speed.decode(bench),
        "decode_w4a16": lambda: gpu_speed.decode(bench, bits=4),
        "products": lambda: gpu_speed.products(bench),
        "engine": engine,
    }[part]


def describe(dry: bool) -> dict[str, dict | str | bool | float]:
    import torch
    import triton

    return {
        "device": "CPU, a dry run: its figures mean nothing" if dry else torch.cuda.get_device_name(),
        "dry": dry,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": sys.version.split()[0],
        "date": time.strftime("%Y-%m-%d"),
    }


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower().removeprefix("nvidia ")).strip("_")


if __name__ == "__main__":
    sys.exit(main())
