"""What a prefix hit spares, on a real model: `bench kv`'s other half. Each prompt is sent twice, cold and then again,
and the engine's own times to the first token are compared pair by pair."""

from __future__ import annotations

import argparse
import random

from app.options import engine_config, within

SEED = 7
NEW_TOKENS = 2
WARM_UP = 16  # tokens of the prompt that isn't counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prefix hits")
    group.add_argument("--pairs", type=int, default=5, metavar="N", help="prompts, each sent twice (default 5)")
    group.add_argument("--prompt-tokens", type=int, default=1024, metavar="P", help="of each (default 1024)")
    group.add_argument(
        "--no-model", dest="model_too", action="store_false", help="only pool and scheduler, no prefix hits"
    )


def check(args: argparse.Namespace) -> None:
    """Raises UsageError."""
    within("--pairs", args.pairs, 1, 1000)
    within("--prompt-tokens", args.prompt_tokens, 2, 1_000_000)
    engine_config(args)


def measure(args: argparse.Namespace, command: str) -> dict:
    """Raises EngineFailed."""
    import msgspec

    from app.bench.load import prompts
    from app.bench.runs import summary
    from app.fitting import DEFAULT_TOKENS, fit, given
    from app.headless import EngineFailed, running
    from engine.config import LiveSettings

    context = max(LiveSettings().max_context, args.prompt_tokens + NEW_TOKENS)
    config = engine_config(args, LiveSettings(max_context=context))
    with running(fit(config, given(args.set), max(DEFAULT_TOKENS, 2 * context)), command) as client:
        rng, vocabulary = random.Random(SEED), client.ready.model.vocabulary
        _first_token(client, 0, prompts(rng, 1, WARM_UP, vocabulary)[0], command)
        pairs = []
        for number, prompt in enumerate(prompts(rng, args.pairs, args.prompt_tokens, vocabulary)):
            cold, _ = _first_token(client, 2 * number + 1, prompt, command)
            warm, hit = _first_token(client, 2 * number + 2, prompt, command)
            pairs.append((cold, warm, hit))
        ready, settings = client.ready, client.settings
    if not all(hit for *_, hit in pairs):
        raise EngineFailed("a prompt sent again found nothing in the cache; leave prefix_cache on and blocks enough")
    return {
        "prefix_ttft_ratio": summary([cold / warm for cold, warm, _ in pairs]),
        "prefix_cold_ms": summary([cold for cold, *_ in pairs]),
        "prefix_hit_ms": summary([warm for _, warm, _ in pairs]),
        "prefix_hit_tokens": min(hit for *_, hit in pairs),
        "prefix_prompt_tokens": args.prompt_tokens,
        "pairs": args.pairs,
        "model": ready.model.name,
        "dtype": ready.model.dtype,
        "device": ready.device,
        "settings": msgspec.to_builtins(settings),
    }


def _first_token(client, number: int, prompt: list[int], command: str) -> tuple[float, int]:
    """ms from the arrival of a request to its first token, and tokens of it that the cache had."""
    from app.headless import EngineFailed, serve
    from engine.records import Request, Sampling

    request = Request(
        number=number, token_ids=prompt, max_tokens=NEW_TOKENS, ignore_eos=True, sampling=Sampling(temperature=0.0)
    )
    answer = serve(client, [request], command).by_number[number]
    if answer.error:
        raise EngineFailed(answer.error)
    return (answer.first_token - answer.arrival) / 1e6, answer.cached_tokens


def in_words(result: dict) -> list[str]:
    if "prefix_ttft_ratio" not in result:
        return []
    ratio, cold, hit = (result[f"prefix_{name}"] for name in ("ttft_ratio", "cold_ms", "hit_ms"))
    return [
        f"{result['model']}, {result['dtype']}, {result['device']}: first token of {result['prefix_prompt_tokens']:,} "
        f"tokens {cold['median']:.0f} ms cold, {hit['median']:.1f} ms with {result['prefix_hit_tokens']:,} of them "
        f"cached: {ratio['median']:.1f} times as fast ({ratio['min']:.1f}–{ratio['max']:.1f}, {result['pairs']} pairs)"
    ]
