"""Measure what a long prompt does to streams that decode: their worst gap, and its own time to first token.

N streams decode; once each has had a few tokens, one prompt arrives. `worst_gap_ms` is the largest time between two
tokens of any of the N from then on, `ttft_ms` the newcomer's time to its first token. Both are taken where a user is:
from this process sending the request to this process having the record. No speculation; all other settings are the
defaults, unless --set says otherwise.
"""

from __future__ import annotations

import argparse
import random
from itertools import pairwise
from statistics import median
from time import perf_counter

from app.bench.answer import answered
from app.bench.load import NEWCOMER_TOKENS, SETTLED, LoadFailed, gaps, prompts
from app.options import UsageError, add_engine_options, engine_config, within

EXAMPLES = """examples:
  servescope bench interference --json
  servescope bench interference --newcomer-tokens 1024 --set token_budget=128"""

NAME = "bench interference"
SEED = 7
FIGURES = ("worst_gap_ms", "ttft_ms", "usual_gap_ms")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load")
    group.add_argument("--streams", type=int, default=8, metavar="N", help="requests that decode (default 8)")
    group.add_argument("--prompt-tokens", type=int, default=32, metavar="P", help="of each stream (default 32)")
    group.add_argument("--new-tokens", type=int, default=256, metavar="M", help="of each stream (default 256)")
    group.add_argument("--newcomer-tokens", type=int, default=512, metavar="Q", help="of the prompt (default 512)")
    group.add_argument("--rounds", type=int, default=5, metavar="R", help="repeats in one engine (default 5)")
    group.add_argument("--json", action="store_true", help="print one JSON object")
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    return 1 if answered(NAME, args, measure, _in_words, LoadFailed) is None else 0


def measure(args: argparse.Namespace) -> dict:
    """Start an engine and run the rounds in it. Raises EngineFailed, LoadFailed and UsageError."""
    import msgspec

    from app.bench.runs import summary
    from app.headless import running, serve

    with running(_config(args), NAME) as client:
        vocabulary = client.ready.model.vocabulary
        numbers = iter(range(1, 1_000_000))
        rng = random.Random(SEED)
        serve(client, _requests(numbers, prompts(rng, 1, 16, vocabulary), 8), NAME)  # not counted
        rounds = []
        for _ in range(args.rounds):
            streams = _requests(numbers, prompts(rng, args.streams, args.prompt_tokens, vocabulary), args.new_tokens)
            late = _requests(numbers, prompts(rng, 1, args.newcomer_tokens, vocabulary), NEWCOMER_TOKENS)
            rounds.append(_round(client, streams, late[0]))
        settings, ready = client.settings, client.ready
    return {
        **{name: summary([found[name] for found in rounds]) for name in FIGURES},
        "rounds": args.rounds,
        "streams": args.streams,
        "prompt_tokens": args.prompt_tokens,
        "new_tokens": args.new_tokens,
        "newcomer_tokens": args.newcomer_tokens,
        "model": ready.model.name,
        "dtype": ready.model.dtype,
        "device": ready.device,
        "settings": msgspec.to_builtins(settings),
    }


def _round(client, streams: list, newcomer) -> dict[str, float]:
    """`newcomer` is sent once every stream has had SETTLED tokens."""
    from app.headless import PAUSE, Answers, EngineFailed, check
    from engine.records import Submit

    answers = Answers([request.number for request in (*streams, newcomer)])
    times: dict[int, list[float]] = {number: [] for number in answers.by_number}
    for request in streams:
        client.send(Submit(id=client.next_id(), request=request))
    arrival = 0.0
    while answers.left:
        client.wait(PAUSE)
        for message in client.poll():
            check(message)
            answers.apply(message)
            now = perf_counter()
            for number, answer in answers.by_number.items():
                times[number] += [now] * (len(answer.token_ids) - len(times[number]))
        if not arrival and min(len(times[request.number]) for request in streams) >= SETTLED:
            arrival = perf_counter()
            client.send(Submit(id=client.next_id(), request=newcomer))
        elif not arrival and answers.left == 1:
            raise LoadFailed("the streams ended before the newcomer could arrive; give them more new tokens")
    for answer in answers.by_number.values():
        if answer.error:
            raise EngineFailed(answer.error)
    others = [times[request.number] for request in streams]
    before = [b - a for stream in others for a, b in pairwise(stream) if b <= arrival]
    usual = {"usual_gap_ms": round(1e3 * median(before), 2)}
    return gaps(others, arrival, times[newcomer.number][0]) | usual


def _config(args: argparse.Namespace):
    """The default settings without drafts; room for all where the defaults have too little."""
    from app.fitting import fit, given
    from engine.config import MAX_BATCH, EngineConfig, LiveSettings

    ranges = (
        ("--streams", args.streams, 1, MAX_BATCH - 1),
        ("--prompt-tokens", args.prompt_tokens, 1, 1_000_000),
        ("--new-tokens", args.new_tokens, 2 * SETTLED, 1_000_000),
        ("--newcomer-tokens", args.newcomer_tokens, 1, 1_000_000),
        ("--rounds", args.rounds, 1, 1000),
    )
    for option, value, low, high in ranges:
        within(option, value, low, high)
    usual = LiveSettings()
    each, late = args.prompt_tokens + args.new_tokens, args.newcomer_tokens + NEWCOMER_TOKENS
    config = engine_config(
        args,
        LiveSettings(
            max_batch=max(usual.max_batch, args.streams + 1),
            max_context=max(usual.max_context, each, late),
            draft_length=0,
            draft_method="off",
        ),
    )
    if config.settings.draft_length:
        raise UsageError("--set draft_length: a gap is measured without drafts; leave it out")
    size = EngineConfig().block_size
    tokens = (args.streams * -(-each // size) + -(-late // size)) * size
    return fit(config, given(args.set), max(tokens * 2, usual.kv_blocks * size))


def _requests(numbers, texts: list[list[int]], new_tokens: int) -> list:
    from engine.records import Request, Sampling

    return [
        Request(
            number=next(numbers),
            token_ids=text,
            max_tokens=new_tokens,
            ignore_eos=True,
            sampling=Sampling(temperature=0.0),
            label="bench",
        )
        for text in texts
    ]


def _in_words(result: dict) -> str:
    gap, ttft = result["worst_gap_ms"], result["ttft_ms"]
    return "\n".join(
        [
            f"{result['model']}, {result['dtype']}, {result['device']}: {result['newcomer_tokens']} prompt tokens "
            f"arrive beside {result['streams']} streams, {result['rounds']} rounds",
            f"worst gap of the others      {gap['median']:,.1f} ms ({gap['min']:,.1f} to {gap['max']:,.1f}); usually "
            f"{result['usual_gap_ms']['median']:,.1f} ms",
            f"time to its own first token  {ttft['median']:,.1f} ms ({ttft['min']:,.1f} to {ttft['max']:,.1f})",
        ]
    )
