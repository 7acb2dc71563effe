"""Show what each weight form costs in quality: perplexity on a fixed text, and bytes, against float32.

The text is in assets/quality: prose and code in the public domain, 22,460 tokens of the default model's. It is read
in windows of 512 tokens, each without what came before it; every token but the first of a file is predicted once,
from at most 512 tokens before it. All forms read the same windows through the engine's own runner and keep their
keys and values as that form does. Perplexity is exp of the mean loss; losses are float64, from the logits on.
"""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from importlib.resources import as_file, files
from typing import get_args

from app.bench.answer import answered
from app.options import UsageError, add_engine_options, engine_config, within
from engine.config import Dtype

EXAMPLES = """examples:
  servescope bench quality
  servescope bench quality --forms bfloat16 --tokens 4000 --json
  servescope bench quality --chunk 8 --json"""

NAME = "bench quality"
REFERENCE = "float32"
FORMS = tuple(form for form in get_args(Dtype) if form not in ("auto", REFERENCE))
TEXTS = ("prose", "code")
WINDOW = 512  # tokens; a window's logits are 100 MB at 49,152 numbers a token
LEAST = 16  # tokens
MOST = 1_000_000
FINISH_WITHIN = 3 * 3600.0  # s; a large model on a small machine takes long


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is measured")
    group.add_argument(
        "--forms", metavar="F1,F2", help=f"weight forms beside {REFERENCE} (default: {','.join(FORMS)}, where there)"
    )
    group.add_argument("--tokens", type=int, metavar="N", help="read about N tokens of the text only (default: all)")
    group.add_argument(
        "--chunk",
        type=int,
        metavar="N",
        help=f"tokens in one pass of the model (default: {WINDOW}, a window); few take the kernels of decoding",
    )
    group.add_argument("--json", action="store_true", help="print one JSON object")
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    if args.dtype != "auto":
        raise UsageError(f"--dtype {args.dtype}: the bench compares forms; name them with --forms {args.dtype}")
    if args.set:
        raise UsageError(f"--set {args.set[0]}: the bench chooses the settings itself")
    return 1 if answered(NAME, args, measure, _in_words) is None else 0


def measure(args: argparse.Namespace) -> dict:
    """Have a process of its own read the text in all forms. Raises EngineFailed and UsageError."""
    import msgspec

    from app.bench.runs import fresh_process
    from app.headless import EngineFailed, tell

    forms = chosen(args.forms)
    within("--tokens", args.tokens, LEAST, MOST)
    within("--chunk", args.chunk, 1, WINDOW)
    config = engine_config(args)
    tell(NAME, f"reading the text in {', '.join((REFERENCE, *forms))}")
    with ExitStack() as stack:
        folder = files("assets") / "quality"
        texts = {name: str(stack.enter_context(as_file(folder / f"{name}.txt"))) for name in TEXTS}
        job = {
            "config": msgspec.to_builtins(config),
            "forms": forms,
            "optional": args.forms is None,
            "texts": texts,
            "window": WINDOW,
            "chunk": args.chunk or 0,
            "most": args.tokens or 0,
        }
        try:
            answer = fresh_process("engine.likelihood", json.dumps(job), timeout=FINISH_WITHIN)
        except RuntimeError as error:
            raise EngineFailed(f"the text could not be read: {error}") from None
    if "problem" in answer:
        raise EngineFailed(answer["problem"])
    return _rounded(answer)


def chosen(forms: str | None) -> list[str]:
    """The forms beside float32, which is always there. Raises UsageError."""
    if forms is None:
        return list(FORMS)
    named = [form.strip() for form in forms.split(",")]
    for form in named:
        if form not in (REFERENCE, *FORMS):
            raise UsageError(f"--forms {forms}: '{form}' is none; there are {', '.join((REFERENCE, *FORMS))}")
    return [form for form in dict.fromkeys(named) if form != REFERENCE]


def _rounded(answer: dict) -> dict:
    """As measured, with the bytes against float32's, and no more digits than mean something."""
    reference = answer["forms"][0]["weight_bytes"]
    for form in answer["forms"]:
        form["bytes_ratio"] = round(form["weight_bytes"] / reference, 4)
        for figures in (form, *form["texts"].values()):
            for key, value in figures.items():
                if isinstance(value, float):
                    figures[key] = round(value, 6)
    return answer


def _in_words(result: dict) -> str:
    lengths = ", ".join(f"{tokens:,} of {name}" for name, tokens in result["texts"].items())
    lines = [
        f"{result['model']}, {result['device']}: tokens {lengths}; windows of {result['window']}, "
        f"{result['chunk']} a pass",
        f"{'form':<10}{'perplexity':>12}{'against float32':>26}{'same top-1':>12}{'KL, nats':>10}{'weights':>22}",
    ]
    for form in result["forms"]:
        against = f"{form['difference_percent']:+.3f} % (± {form['standard_error_percent']:.3f} %)"
        size = f"{form['weight_bytes'] / 2**20:,.1f} MiB ({form['bytes_ratio']:.2f}×)"
        lines.append(
            f"{form['form']:<10}{form['perplexity']:>12.4f}{against:>26}{form['same_top_1']:>12.2%}"
            f"{form['kl_nats']:>10.5f}{size:>22}"
        )
        lines += [
            f"  {name:<8}{of['perplexity']:>12.4f}{of['difference_percent']:>+13.3f} %"
            for name, of in form["texts"].items()
        ]
    lines += [f"{form}: not measured: {why}" for form, why in result["absent"].items()]
    return "\n".join(lines)
