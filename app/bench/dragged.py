"""The dragging run of `bench exactness`: prompts served again and again while drafting is dragged about at random, each
output compared with the reference and with what the same engine gave without drafts."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from app.bench.combinations import LONGEST, ROOMY
from app.bench.drag import changes
from app.bench.equality import Reference, Report, compare
from app.bench.greedy import serve_greedily
from app.headless import Answers, change, running
from engine import records as r
from engine.config import EngineConfig, LiveSettings

if TYPE_CHECKING:
    from engine.client import EngineClient

# Those that are made within a step's time; to load a model under load at every turn of the hand would test loading.
METHODS = ("off", "ngram", "suffix", "head", "mixed")
BATCH, BUDGET, SEED = 16, 256, 3


class _Hand:
    """At the sliders: moves one after every step, and counts what became of it."""

    def __init__(self, client: EngineClient, methods: Sequence[str]):
        self._client, self._methods, self._rng = client, methods, random.Random(SEED)
        self._sent: set[int] = set()
        self.made = self.refused = 0
        self.lengths: set[int] = set()

    def __call__(self, message: r.Message, answers: Answers) -> None:
        if isinstance(message, r.Ack) and message.id in self._sent:
            self._sent.remove(message.id)
            self.made += message.ok
            self.refused += not message.ok
        if isinstance(message, r.StepRecord) and answers.left:
            self.lengths.add(message.settings.draft_length)
            command = r.Change(id=self._client.next_id(), changes=changes(self._rng, self._methods))
            self._sent.add(command.id)
            self._client.send(command)


def measure(config: EngineConfig, references: list[Reference], allowance: float, seconds: float, command: str) -> dict:
    """Raises EngineFailed."""
    settings = LiveSettings(
        max_batch=BATCH, max_context=LONGEST, kv_blocks=ROOMY // config.block_size, token_budget=BUDGET, draft_length=0,
        temperature=0.0,
    )  # fmt: skip
    with running(msgspec.structs.replace(config, settings=settings), command) as client:
        ready = client.ready
        absent = ready.absent_drafts if ready is not None else {}
        methods = [method for method in METHODS if method not in absent]
        plain = [answer.token_ids for answer in serve_greedily(client, references, command)]
        hand = _Hand(client, methods)
        rounds: list[Report] = []
        as_plain = accepted = 0
        ends = time.monotonic() + seconds
        while not rounds or time.monotonic() < ends:
            answers = serve_greedily(client, references, command, hand)
            found = [answer.token_ids for answer in answers]
            rounds.append(compare(found, references, allowance))
            as_plain += sum(ours == theirs for ours, theirs in zip(found, plain, strict=True))
            accepted += sum(answer.accepted for answer in answers)
            change(client, {"draft_length": 0})  # waits until all changes are made
    without = compare(plain, references, allowance)
    return {
        "equal": without.equal and all(report.equal for report in rounds) and len(hand.lengths) > 1,
        "seconds": seconds,
        "methods": methods,
        "rounds": len(rounds),
        "outputs": sum(report.prompts for report in rounds),
        "outputs_as_without_drafts": as_plain,
        "allowed_differences": sum(len(report.differences) for report in rounds),
        "changes": hand.made,
        "refused": hand.refused,
        "draft_lengths": sorted(hand.lengths),
        "drafts_accepted": accepted,
        "differences": [str(difference) for report in (without, *rounds) for difference in report.differences],
    }
