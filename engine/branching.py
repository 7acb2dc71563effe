"""What logits come to where sequences belong together: one row's for several samples, several rows' for a search.

Everything else goes to the sampler as it is. It changes no sequence: what is decided here is put into them by whoever
commits the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from engine.beam_candidates import candidates
from engine.beam_search import IDLE, BeamStep
from engine.group import Group
from engine.records import SAMPLED
from engine.runner.batch import ScheduledRow
from engine.sampler import Outcome, Sampler, SampleRow
from engine.sequence import Sequence
from engine.speculation.accept import ExactRule

if TYPE_CHECKING:
    import torch

NO_Q: Mapping[int, torch.Tensor] = {}


@dataclass(slots=True)
class Decided:
    """`outcomes`: by sequence number, those included that fork from a row of this pass. `samples`: groups whose prompt
    is computed. `searches`: what each beam search decided."""

    outcomes: dict[int, Outcome]
    samples: list[Group] = field(default_factory=list)
    searches: list[tuple[Group, BeamStep]] = field(default_factory=list)


def decide(
    sampler: Sampler,
    logits: torch.Tensor | None,
    rows: Rows[ScheduledRow],
    q: Mapping[int, torch.Tensor] = NO_Q,
    rule: ExactRule | None = None,
) -> Decided:
    """logits (N, vocabulary) are those of `rows`, in order; `q`: by sequence, what its drafts were drawn from, where
    they were; `rule` as `Sampler.sample` has it. Raises BadLogits."""
    if logits is None:
        return Decided({})
    sample = sampler.sample if rule is None else partial(sampler.sample, rule=rule)
    if all(row.sequence.group is None for row in rows):
        outcomes = sample(logits, [sample_row(row.sequence, row.drafts, q) for row in rows])
        return Decided({row.sequence.seq: outcome for row, outcome in zip(rows, outcomes, strict=True)})
    asked: list[SampleRow] = []
    seqs: list[int] = []
    samples: list[Group] = []
    taken: list[int] = []  # rows of the logits that `asked` are to be drawn from
    lanes: dict[int, tuple[Group, dict[int, int]]] = {}  # by first lane: each lane's row of the logits
    for row, first in zip(rows, accumulate((len(row.drafts) + 1 for row in rows), initial=0), strict=False):
        sequence = row.sequence
        if sequence.group is not None and sequence.request.beams:
            lanes.setdefault(sequence.group.lanes[0].seq, (sequence.group, {}))[1][sequence.index] = first
            continue
        if sequence.group is not None:
            samples.append(sequence.group)
        for drawn in (sequence,) if sequence.group is None else sequence.group.lanes:
            asked.append(sample_row(drawn, row.drafts, q, len(sequence.tokens)))
            seqs.append(drawn.seq)
            taken += range(first, first + len(row.drafts) + 1)
    decided = Decided(dict(zip(seqs, sample(logits[taken], asked), strict=True)), samples)
    for group, places in lanes.values():
        decided.searches.append((group, _search(group, places, logits, decided.outcomes)))
    return decided


def sample_row(
    sequence: Sequence, drafts: list[int], q: Mapping[int, torch.Tensor] = NO_Q, position: int = 0
) -> SampleRow:
    """The sequence's own, kept from its admission: only what is drafted and where differs from pass to pass. `q` as in
    `decide`; of a draft that was trimmed it has rows to spare."""
    params = sequence.params
    assert params is not None
    params.drafts, params.position = drafts, position or len(sequence.tokens)
    drawn = q.get(sequence.seq) if drafts else None
    params.q_rows = None if drawn is None else drawn[: len(drafts)]
    if params.penalties is not None:
        params.penalties.follow(sequence.tokens, sequence.prompt_tokens)
    return params


def _search(group: Group, places: dict[int, int], logits: torch.Tensor, outcomes: dict[int, Outcome]) -> BeamStep:
    """One token further; every lane's goes to `outcomes`, none once the search is over."""
    search = group.search
    assert search is not None and sorted(places) == search.lanes
    found = candidates(logits[list(places.values())], search.needed)
    step = search.advance(dict(zip(places, found, strict=True)))
    if not step.over and IDLE in step.parents[: len(places)]:  # a model that gives hardly any token a probability
        search.close()
        none = [IDLE] * len(group.lanes)
        step = replace(step, parents=none, tokens=none, over=True)
    for lane, sequence in enumerate(group.lanes):
        token = step.tokens[lane]
        tokens = [token] if token >= 0 else []
        outcomes[sequence.seq] = Outcome(tokens, 0, [SAMPLED] * len(tokens), [])
    return step
