"""One load under one way of drafting, and what it came to: for `bench speculation`.

A load serves a set of prompts greedily to their end, `batch` at a time. Time is counted over steps without a prompt
in them, each from the end of the step before to its own, as `bench engine` counts its decode phase, and of those over
steps of the full batch: answers that are drafted end at different times, and the passes over what is left, which
others would have joined, aren't the batch's. Whoever drafts
from past outputs starts with none: every load begins with drafting off, which forgets them. Nor are prompts cached
between loads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from app.bench.repeats import loops

if TYPE_CHECKING:
    from engine.client import EngineClient
    from engine.records import Request, StepRecord

NAME = "bench speculation"


@dataclass(frozen=True)
class Way:
    """How drafts are made. γ 0: not at all."""

    method: str = "off"
    gamma: int = 0
    policy: str = "fixed"

    def __str__(self) -> str:
        if not self.gamma:
            return "no drafts"
        return f"{self.method} γ {self.gamma}" if self.policy == "fixed" else f"{self.method} γ ≤ {self.gamma}"


PLAIN = Way()


@dataclass
class Figures:
    """`alone`: by request, its tokens and ns, where the batch is 1; with several in a step they can't be told apart."""

    tokens: int = 0
    ns: int = 0
    passes: int = 0  # of sequences that had drafts
    examined: int = 0
    accepted: int = 0
    drafted: int = 0
    draft_ns: int = 0
    verify_ns: int = 0
    steps: int = 0
    alone: dict[int, tuple[int, int]] = field(default_factory=dict)
    outputs: dict[int, list[int]] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return 1e9 * self.tokens / self.ns

    def rate_without_loops(self) -> float | None:
        kept = [self.alone[number] for number, output in self.outputs.items() if not loops(output)]
        ns = sum(ns for _, ns in kept)
        return 1e9 * sum(tokens for tokens, _ in kept) / ns if ns else None

    def told(self) -> dict:
        return {
            "tokens_per_s": round(self.rate, 1),
            "acceptance": round(self.accepted / self.examined, 4) if self.examined else None,
            "tokens_per_pass": round(1 + self.accepted / self.passes, 3) if self.passes else None,
            "drafted_per_pass": round(self.drafted / self.passes, 2) if self.passes else None,
            "draft_ms": round(self.draft_ns / self.steps / 1e6, 3) if self.steps else None,
            "verify_ms": round(self.verify_ns / self.steps / 1e6, 3) if self.steps else None,
        }


class _Meter:
    def __init__(self, batch: int, requests: int):
        self.found = Figures()
        self._batch = batch
        self._full = min(batch, requests)
        self._end: int | None = None
        self._numbers: dict[int, int] = {}  # request by sequence

    def see(self, message, _answers=None) -> None:
        from engine import records as r

        for event in getattr(message, "events", ()):
            if isinstance(event, r.Submitted):
                self._numbers[event.seq] = event.number
        if isinstance(message, r.StepRecord):
            rows = r.unpack(message.rows, r.ROW)
            full = len(rows) == self._full and self._end is not None
            if full and (rows["kind"] == r.DECODE).all():
                self._count(message, rows)
            self._end = message.end_clock

    def _count(self, step: StepRecord, rows) -> None:
        from engine import records as r

        found, took = self.found, step.end_clock - (self._end or 0)
        tokens = len(step.text)
        found.tokens += tokens
        found.ns += took
        found.steps += 1
        found.draft_ns += step.timing.draft
        found.verify_ns += step.timing.forward + step.timing.sample
        found.passes += int((rows["drafted"] > 0).sum())
        found.drafted += int(rows["drafted"].sum())
        if step.drafts:
            verdicts = r.unpack(step.drafts, r.DRAFT)["verdict"]
            accepted = int((verdicts == r.ACCEPTED).sum())
            found.accepted += accepted
            found.examined += accepted + int((verdicts == r.REJECTED).sum())
        if self._batch == 1:
            number = self._numbers[int(rows["seq"][0])]
            had, spent = found.alone.get(number, (0, 0))
            found.alone[number] = had + tokens, spent + took


def drive(client: EngineClient, requests: list[Request], way: Way, batch: int) -> Figures:
    """Raises EngineFailed."""
    from app.headless import EngineFailed, change, serve

    change(client, {"draft_method": "off", "max_batch": batch})
    if way.gamma:
        change(client, {"draft_method": way.method, "draft_length": way.gamma, "draft_policy": way.policy})
    meter = _Meter(batch, len(requests))
    answers = serve(client, requests, NAME, meter.see).by_number
    for answer in answers.values():
        if answer.error:
            raise EngineFailed(answer.error)
    meter.found.outputs = {number: answer.token_ids for number, answer in answers.items()}
    return meter.found
