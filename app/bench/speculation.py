"""Measure whether drafting pays: each way to draft, on chat, code and code to be edited, at several γ and batches.

The built-in prompts, answered greedily to their end. Half of a kind's prompts choose the best γ, the engine's own
choice up to the longest (`≤`) among them; the other half is then served without drafts and with them, pair by pair in
turns, and the ratio of output tokens per second is the speed-up. What loops is told apart. At last every output is made
once more in float32, with drafts and without, and compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from itertools import product
from statistics import median

from app.bench.answer import answered
from app.bench.drafted_load import NAME, PLAIN, Figures, Way, drive
from app.options import UsageError, add_engine_options, engine_config, within

EXAMPLES = """examples:
  servescope bench speculation --json
  servescope bench speculation --methods ngram suffix --kinds edit --batches 1 --pairs 5
  servescope bench speculation --dtype float32 --methods bits --gammas 2 4 6"""

KINDS = ("chat", "code", "edit")
METHODS = ("ngram", "suffix", "head", "mixed")
LOOKUPS = ("ngram", "suffix")  # what the edit prompts are answered with
GAMMAS = (1, 2, 3, 4, 6, 8)
BATCHES = (1, 4, 16)
ADAPTIVE_KINDS = ("chat", "code")
CONTEXT = 1024  # tokens
LEAST_PAIRS = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is measured")
    group.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="of prompts (default: all)")
    group.add_argument(
        "--methods", nargs="+", default=list(METHODS), metavar="M", help=f"(default: {', '.join(METHODS)})"
    )  # fmt: skip
    group.add_argument("--gammas", nargs="+", type=int, default=list(GAMMAS), metavar="K", help="draft lengths")
    group.add_argument("--batches", nargs="+", type=int, default=list(BATCHES), metavar="N", help="(default 1 4 16)")
    group.add_argument("--new-tokens", type=int, default=128, metavar="M", help="of an answer at most (default 128)")
    group.add_argument("--pairs", type=int, default=10, metavar="P", help="of each speed-up told (default 10)")
    group.add_argument("--no-adaptive", action="store_true", help="leave the adaptive γ out")
    group.add_argument("--no-lossless", action="store_true", help="leave the pass in float32 out")
    group.add_argument("--json", action="store_true", help="print one JSON object")
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    if args.set:
        raise UsageError(f"--set {args.set[0]}: the bench chooses the settings itself")
    for gamma in args.gammas:
        within("--gammas", gamma, 1, 16)
    for batch in args.batches:
        within("--batches", batch, 1, 64)
    within("--pairs", args.pairs, LEAST_PAIRS, 1000)
    within("--new-tokens", args.new_tokens, 8, CONTEXT // 2)
    return 1 if answered(NAME, args, measure, _in_words) is None else 0


def measure(args: argparse.Namespace) -> dict:
    """Raises EngineFailed and UsageError."""
    from app.bench.machine import cpu_name, own_versions
    from app.headless import running

    with running(_config(args, args.dtype), NAME) as client:
        ready = client.ready
        absent = {method: why for method, why in ready.absent_drafts.items() if method in args.methods}
        methods = [method for method in args.methods if method not in absent]
        drive(client, _requests("chat", 1, args)[:2], PLAIN, 1)  # warm-up
        runs = _survey(client, args, methods)
        speedups = [_speedup(client, args, kind, runs) for kind in args.kinds if 1 in args.batches]
        adaptive = [] if args.no_adaptive else _adaptive(client, args, runs, methods)
        beside = _beside_bench_engine(client, args) if 1 in args.batches else None
    result = {
        "model": ready.model.name,
        "dtype": ready.model.dtype,
        "device": ready.device,
        "machine": cpu_name(),
        "versions": own_versions(),
        "new_tokens": args.new_tokens,
        "pairs": args.pairs,
        "absent": absent,
        **{f"{found['kind']}_speedup_batch1": found["speedup"] for found in speedups},
        "speedups": speedups,
        "adaptive": adaptive,
        "plain_to_bench_engine": beside,
        "runs": runs,
    }
    if not args.no_lossless:
        result["lossless"] = _lossless(args, speedups)
    return result


# --- the parts ---


def _survey(client, args: argparse.Namespace, methods: list[str]) -> list[dict]:
    """Every way, once, on the first half of the prompts; plain loads between, which speed-ups are against."""
    from app.headless import tell

    runs: list[dict] = []
    for kind, batch in product(args.kinds, args.batches):
        tell(NAME, f"{kind}, batch {batch}: {len(methods)} methods at γ {', '.join(map(str, args.gammas))}")
        requests = _requests(kind, 0, args, batch)
        plain = [drive(client, requests, PLAIN, batch)]
        found: list[tuple[Way, Figures, int]] = []
        for method in methods:
            for number, way in enumerate(_ways(method, args)):
                found.append((way, drive(client, requests, way, batch), len(plain)))
                if number == len(args.gammas) // 2:
                    plain.append(drive(client, requests, PLAIN, batch))
            plain.append(drive(client, requests, PLAIN, batch))
        base = median(one.rate for one in plain)
        runs.append({
            "kind": kind, "batch": batch, "method": "off", "gamma": 0, "policy": "fixed", "speedup": 1.0,
            **plain[0].told(), "tokens_per_s": round(base, 1),
        })  # fmt: skip
        for way, figures, after in found:
            near = median(one.rate for one in plain[max(0, after - 2) : after + 2])
            runs.append({
                "kind": kind, "batch": batch, "method": way.method, "gamma": way.gamma, "policy": way.policy,
                "speedup": round(figures.rate / near, 3), **figures.told(),
            })  # fmt: skip
    return runs


def _ways(method: str, args: argparse.Namespace) -> list[Way]:
    """Every γ, and the engine's own choice of it."""
    fixed = [Way(method, gamma) for gamma in args.gammas]
    return fixed if args.no_adaptive else [*fixed, Way(method, max(args.gammas), "adaptive")]


def _best(
    runs: list[dict], kind: str, batch: int, methods: Iterable[str], policies: tuple[str, ...] = ("fixed", "adaptive")
) -> Way:
    """The fastest way on the first half of the prompts."""
    here = [run for run in runs if run["kind"] == kind and run["batch"] == batch and run["method"] in methods]
    run = max((run for run in here if run["policy"] in policies), key=lambda run: run["speedup"])
    return Way(run["method"], run["gamma"], run["policy"])


def _speedup(client, args: argparse.Namespace, kind: str, runs: list[dict]) -> dict:
    """The best way of the first half of the prompts, on the other half, one stream: pairs in turns."""
    from app.bench.runs import interval
    from app.headless import tell

    lookups = [method for method in args.methods if method in LOOKUPS]
    drafting = {run["method"] for run in runs if run["gamma"]}
    way = _best(runs, kind, 1, (lookups or drafting) if kind == "edit" else drafting)
    tell(NAME, f"{kind}, one stream: {args.pairs} pairs of {way} and no drafts")
    pairs = _pairs(client, _requests(kind, 1, args), way, PLAIN, 1, args.pairs)
    ratios = [a.rate / b.rate for a, b in pairs]
    straight = [_ratio(a.rate_without_loops(), b.rate_without_loops()) for a, b in pairs]
    outputs = list(pairs[0][1].outputs.values())
    from app.bench.repeats import loops, repeated

    low, high = interval(ratios)
    return {
        "kind": kind,
        "method": way.method,
        "gamma": way.gamma,
        "policy": way.policy,
        "speedup": round(median(ratios), 3),
        "interval": [round(low, 3), round(high, 3)],
        "ratios": [round(ratio, 3) for ratio in ratios],
        "prompts": len(outputs),
        "tokens_per_s": round(median(a.rate for a, _ in pairs), 1),
        "tokens_per_s_without": round(median(b.rate for _, b in pairs), 1),
        "repeated_share": round(sum(map(repeated, outputs)) / max(1, sum(map(len, outputs))), 4),
        "prompts_that_loop": sum(map(loops, outputs)),
        "speedup_without_loops": round(median(straight), 3) if None not in straight else None,  # type: ignore[type-var]
        **{name: value for name, value in pairs[0][0].told().items() if name != "tokens_per_s"},
        "same_output": sum(a.outputs[n] == b.outputs[n] for a, b in pairs[:1] for n in b.outputs),
    }


def _adaptive(client, args: argparse.Namespace, runs: list[dict], methods: list[str]) -> list[dict]:
    """Adaptive γ beside the best fixed one, 0 included, of the same method; on the other half of the prompts."""
    from app.bench.runs import interval
    from app.headless import tell

    found = []
    for kind, batch in product([kind for kind in ADAPTIVE_KINDS if kind in args.kinds], args.batches):
        method = _best(runs, kind, 1, methods).method
        fixed = _best(runs, kind, batch, (method, "off"), ("fixed",))
        adaptive = Way(method, max(args.gammas), "adaptive")
        tell(NAME, f"{kind}, batch {batch}: {args.pairs} pairs of {adaptive} and {fixed}")
        pairs = _pairs(client, _requests(kind, 1, args, batch), adaptive, fixed, batch, args.pairs)
        ratios = [a.rate / b.rate for a, b in pairs]
        low, high = interval(ratios)
        found.append({
            "kind": kind, "batch": batch, "method": method, "fixed_gamma": fixed.gamma,
            "ratio": round(median(ratios), 3), "interval": [round(low, 3), round(high, 3)],
            "tokens_per_s": round(median(a.rate for a, _ in pairs), 1),
            "drafted_per_pass": pairs[0][0].told()["drafted_per_pass"],
        })  # fmt: skip
    return found


def _beside_bench_engine(client, args: argparse.Namespace) -> dict:
    """What speed-ups are against, beside what `bench engine --streams 1` makes of the same engine: pairs in turns."""
    from app.bench import engine
    from app.bench.runs import interval
    from app.headless import serve, tell

    kind = args.kinds[0]
    requests = _requests(kind, 1, args)
    tell(NAME, f"{kind} without drafts beside bench engine: {args.pairs} pairs")

    def load() -> float:
        meter = engine.Meter(1)
        asked = engine.requests(1, 32, args.new_tokens, client.ready.model.vocabulary, first=len(requests) * 2)
        serve(client, asked, NAME, meter.see)
        return meter.figures()["output_tokens_per_s"]

    ratios = []
    for number in range(args.pairs):
        other = load() if number % 2 else None
        plain = drive(client, requests, PLAIN, 1).rate  # leaves drafts off and one stream
        ratios.append(plain / (other or load()))
    low, high = interval(ratios)
    return {"kind": kind, "ratio": round(median(ratios), 3), "interval": [round(low, 3), round(high, 3)]}


def _pairs(client, requests: list, way: Way, other: Way, batch: int, count: int) -> list[tuple[Figures, Figures]]:
    """In turns, each first as often as the other."""
    pairs = []
    for number in range(count):
        if number % 2:
            second = drive(client, requests, other, batch)
            pairs.append((drive(client, requests, way, batch), second))
        else:
            first = drive(client, requests, way, batch)
            pairs.append((first, drive(client, requests, other, batch)))
    return pairs


def _lossless(args: argparse.Namespace, speedups: list[dict]) -> dict:
    """The prompts of both halves in float32, without drafts and with the ways that were told of."""
    from app.headless import running, tell

    tell(NAME, "once more in float32: outputs with drafts and without")
    compared = equal = 0
    different: list[dict] = []
    with running(_config(args, "float32"), NAME) as client:
        for found in speedups:
            way = Way(found["method"], found["gamma"], found["policy"])
            requests = [request for half in (0, 1) for request in _requests(found["kind"], half, args)]
            if not way.gamma or way.method in client.ready.absent_drafts:
                continue
            plain = drive(client, requests, PLAIN, 8).outputs
            drafted = drive(client, requests, way, 8).outputs
            for number, tokens in plain.items():
                compared += 1
                equal += tokens == drafted[number]
                if tokens != drafted[number]:
                    at = next((i for i, (a, b) in enumerate(zip(tokens, drafted[number], strict=False)) if a != b), -1)
                    different.append({"kind": found["kind"], "prompt": number, "at": at})
    return {"outputs": compared, "equal": equal, "different": different}


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


def _requests(kind: str, half: int, args: argparse.Namespace, batch: int = 1) -> list:
    """Every other prompt of a kind, from the first or the second on; of more than one at a time twice as many as the
    batch, so that it stays full while as many again are answered, as far as there are prompts."""
    from app.workload.prompts import PromptSet, more
    from engine.records import Request, Sampling

    prompts = [prompt.text for prompt in PromptSet.load().prompts if prompt.kind == kind][half::2]
    if len(prompts) < 2 * batch > 2:
        prompts = (prompts + more(kind)[half::2])[: 2 * batch]
    return [
        Request(
            number=2 * index + half, prompt=prompt, max_tokens=args.new_tokens,
            sampling=Sampling(temperature=0.0), label="bench",
        )
        for index, prompt in enumerate(prompts)
    ]  # fmt: skip


def _config(args: argparse.Namespace, dtype: str):
    import msgspec

    from engine.config import LiveSettings

    config = msgspec.structs.replace(engine_config(args), dtype=dtype)
    most = max(*args.batches, 8)
    settings = LiveSettings(
        max_batch=most, max_context=CONTEXT, kv_blocks=most * CONTEXT // config.block_size + 64,
        prefix_cache=False, draft_method="off", draft_length=4,
    )  # fmt: skip
    return msgspec.structs.replace(config, settings=settings)


def _in_words(result: dict) -> str:
    lines = [f"{result['model']}, {result['dtype']}, {result['device']}; {result['pairs']} pairs of every ratio"]
    for found in result["speedups"]:
        low, high = found["interval"]
        without = found["speedup_without_loops"]
        lines.append(
            f"{found['kind']}, one stream: {_named(found)} {found['speedup']:.2f}× "
            f"({low:.2f}–{high:.2f}): {found['tokens_per_s_without']:.0f} → {found['tokens_per_s']:.0f} tokens/s, "
            f"{found['tokens_per_pass']} tokens a pass; {found['repeated_share']:.0%} of the tokens repeat, "
            f"{found['prompts_that_loop']} of {found['prompts']} outputs loop"
            + (f", {without:.2f}× without those" if without else "")
        )
    for found in result["adaptive"]:
        low, high = found["interval"]
        lines.append(
            f"{found['kind']}, batch {found['batch']}: adaptive {found['method']} ÷ best fixed γ "
            f"({found['fixed_gamma']}) {found['ratio']:.3f} ({low:.3f}–{high:.3f})"
        )
    if lossless := result.get("lossless"):
        lines.append(f"float32: {lossless['equal']} of {lossless['outputs']} outputs equal with drafts and without")
    if beside := result["plain_to_bench_engine"]:
        low, high = beside["interval"]
        lines.append(f"without drafts ÷ bench engine: {beside['ratio']:.3f} ({low:.3f}–{high:.3f})")
    lines.append("kind  batch  method      γ  speed-up  accepted  tokens a pass  draft ms  verify ms")
    for run in result["runs"]:
        share = f"{run['acceptance']:.0%}" if run["acceptance"] is not None else "–"
        lines.append(
            f"{run['kind']:<5} {run['batch']:>5}  {run['method']:<7} {_gamma(run):>4}  {run['speedup']:>8.2f}  "
            f"{share:>8}  {run['tokens_per_pass'] or 1:>13.2f}  {run['draft_ms']:>8.3f}  {run['verify_ms']:>9.2f}"
        )
    return "\n".join(lines)


def _gamma(run: dict) -> str:
    return str(run["gamma"]) if run["policy"] == "fixed" else f"≤ {run['gamma']}"


def _named(run: dict) -> str:
    return str(Way(run["method"], run["gamma"], run["policy"]))
