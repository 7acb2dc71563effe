"""Prompts of references served greedily, each to its reference's length, so that tokens can be compared one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from app.bench.equality import Reference
from app.headless import Answer, Answers, EngineFailed, serve
from engine import records as r

if TYPE_CHECKING:
    from engine.client import EngineClient


def serve_greedily(
    client: EngineClient,
    references: Sequence[Reference],
    command: str,
    seen: Callable[[r.Message, Answers], None] | None = None,
    samples: int = 1,
) -> list[Answer]:
    """`samples` answers to each prompt, in order. `command`, `seen`: as of `serve`. Raises EngineFailed."""
    requests = [
        r.Request(
            number=number,
            token_ids=reference.prompt,
            max_tokens=len(reference.tokens),
            n=samples,
            ignore_eos=True,
            sampling=r.Sampling(temperature=0.0),
            label="exactness",
        )
        for number, reference in enumerate(references)
    ]
    found = serve(client, requests, command, seen)
    answers = [answer for number in range(len(references)) for answer in found.samples[number]]
    for answer in answers:
        if answer.error:
            raise EngineFailed(answer.error)
    return answers
