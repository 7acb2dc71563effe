"""Measure the engine: N streams of P prompt tokens and M new ones each, end of sequence ignored.

The decode phase runs from the step that gave the last stream its first token to the end. Prompts are random
tokens, none shared, after a warm-up that isn't counted. Times are the engine's own, so this program's reading
of the records isn't in them.
"""

from __future__ import annotations

import argparse

from app.bench.answer import answered
from app.options import add_engine_options, engine_config, within

EXAMPLES = """examples:
  servescope bench engine --streams 8 --prompt-tokens 32 --new-tokens 128
  servescope bench engine --streams 1 --prompt-tokens 1024 --new-tokens 64 --gamma 4 --json"""

NAME = "bench engine"
LEAST_BUDGET = 256  # tokens a step; short prompts of few streams are computed in one
MOST_BUDGET = 2048  # tokens a step: enough to keep matrix products busy; more only costs memory
SEED = 7
WARM_UP = (16, 8)  # prompt and new tokens of the request that isn't counted
SPARE_BLOCKS = 8  # beyond what the streams need, and the watermark


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load")
    group.add_argument("--streams", type=int, default=8, metavar="N", help="requests served at once (default 8)")
    group.add_argument("--prompt-tokens", type=int, default=32, metavar="P", help="of each stream (default 32)")
    group.add_argument("--new-tokens", type=int, default=128, metavar="M", help="of each stream (default 128)")
    group.add_argument("--gamma", type=int, default=0, metavar="K", help="draft length; 0 = no speculation (default)")
    group.add_argument("--json", action="store_true", help="print one JSON object")
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    return 1 if answered(NAME, args, measure, _in_words) is None else 0


def measure(args: argparse.Namespace) -> dict:
    """Start an engine, run the load once, and give the figures. Raises EngineFailed and UsageError."""
    import msgspec

    from app.headless import EngineFailed, running, serve

    with running(_config(args), NAME) as client:
        ready = client.ready
        asked = requests(args.streams, args.prompt_tokens, args.new_tokens, ready.model.vocabulary)
        serve(client, requests(1, *WARM_UP, ready.model.vocabulary, first=len(asked)), NAME)
        meter = Meter(args.streams)
        answers = serve(client, asked, NAME, meter.see).by_number.values()
        settings = client.settings
    for answer in answers:
        if answer.error:
            raise EngineFailed(answer.error)
        if len(answer.token_ids) != args.new_tokens:
            raise EngineFailed(
                f"a stream ended after {len(answer.token_ids)} tokens ({answer.finish_reason}); raise max_context"
            )
    prompt_tokens = sum(answer.prompt_tokens for answer in answers)
    firsts = [(answer.first_token - answer.arrival) / 1e9 for answer in answers]
    examined = sum(answer.examined for answer in answers)
    return {
        **meter.figures(),
        "prefill_tokens_per_s": round(prompt_tokens / max(firsts), 2),
        "ttft_s": round(max(firsts), 6),
        "ttft_first_s": round(min(firsts), 6),
        "streams": args.streams,
        "prompt_tokens": args.prompt_tokens,
        "new_tokens": args.new_tokens,
        "gamma": args.gamma,
        "acceptance": round(sum(a.accepted for a in answers) / examined, 4) if examined else None,
        "tokens_per_pass": round(
            sum(len(a.token_ids) - 1 for a in answers) / max(1, sum(a.passes for a in answers)), 3
        ),
        "preemptions": sum(answer.preemptions for answer in answers),
        "model": ready.model.name,
        "dtype": ready.model.dtype,
        "device": ready.device,
        "block_size": ready.block_size,
        "settings": msgspec.to_builtins(settings),
    }


class Meter:
    """The decode phase: from the step that gave the last stream its first token, to the last step."""

    def __init__(self, streams: int):
        self._streams = streams
        self._started: set[int] = set()  # sequences with a token
        self._begin = self._end = 0  # engine clock, ns
        self._tokens = 0
        self._steps: list[int] = []  # ns, of decode steps

    def see(self, message, _answers=None) -> None:
        from engine import records as r

        if not isinstance(message, r.StepRecord):
            return
        seqs = r.unpack(message.emitted, r.TOKEN)["seq"].tolist()
        if len(self._started) == self._streams:
            self._tokens += len(seqs)
            self._steps.append(message.timing.total)
            self._end = message.end_clock
            return
        self._started.update(seqs)
        if len(self._started) == self._streams:
            self._begin = self._end = message.end_clock

    def figures(self) -> dict:
        import numpy as np

        seconds = (self._end - self._begin) / 1e9
        p50, p99 = (np.percentile(self._steps, [50, 99]) / 1e6).tolist() if self._steps else (None, None)
        return {
            "output_tokens_per_s": round(self._tokens / seconds, 2) if seconds else None,
            "step_ms_p50": p50 and round(p50, 3),
            "step_ms_p99": p99 and round(p99, 3),
        }


def _config(args: argparse.Namespace):
    """Settings under which all streams run at once and nothing is preempted, unless --set says otherwise."""
    from app.fitting import fit, given
    from engine.config import MAX_BATCH, MAX_DRAFT, LiveSettings

    ranges = (
        ("--streams", args.streams, 1, MAX_BATCH),
        ("--prompt-tokens", args.prompt_tokens, 1, 1_000_000),
        ("--new-tokens", args.new_tokens, 2, 1_000_000),
        ("--gamma", args.gamma, 0, MAX_DRAFT),
    )
    for option, value, low, high in ranges:
        within(option, value, low, high)
    context = max(args.prompt_tokens + args.new_tokens, sum(WARM_UP))
    verified = args.streams * (args.gamma + 1)  # tokens of a step in which every stream has a full draft
    defaults = LiveSettings(
        max_batch=args.streams,
        max_context=context,
        token_budget=max(verified, LEAST_BUDGET, min(args.streams * args.prompt_tokens, MOST_BUDGET)),
        draft_length=args.gamma,
        draft_method="ngram" if args.gamma else "off",
    )
    config = engine_config(args, defaults)
    size = config.block_size
    blocks = args.streams * -(-(context + args.gamma) // size)
    blocks = int(blocks / (1 - defaults.watermark)) + SPARE_BLOCKS
    return fit(config, given(args.set), blocks * size)


def requests(streams: int, prompt_tokens: int, new_tokens: int, vocabulary: int, first: int = 0):
    """Greedy requests of random tokens. Low ids are left out: many models keep their special tokens there."""
    import numpy as np

    from engine.records import Request, Sampling

    low = 256 if vocabulary > 1024 else 0
    ids = np.random.default_rng(SEED + first).integers(low, vocabulary, (streams, prompt_tokens))
    return [
        Request(
            number=first + i,
            token_ids=row,
            max_tokens=new_tokens,
            ignore_eos=True,
            sampling=Sampling(temperature=0.0),
            label="bench",
        )
        for i, row in enumerate(ids.tolist())
    ]


def _in_words(result: dict) -> str:
    lines = [
        f"{result['model']}, {result['dtype']}, {result['device']}: {result['streams']} streams of "
        f"{result['prompt_tokens']} + {result['new_tokens']} tokens, draft length {result['gamma']}",
        f"decode   {result['output_tokens_per_s']:,} tokens/s over all streams, "
        f"step {result['step_ms_p50']} ms p50, {result['step_ms_p99']} ms p99",
        f"prefill  {result['prefill_tokens_per_s']:,} tokens/s, time to first token {result['ttft_s']} s",
    ]
    if result["acceptance"] is not None:
        lines.append(f"drafts   {result['acceptance']:.0%} accepted, {result['tokens_per_pass']} tokens a pass")
    return "\n".join(lines)
