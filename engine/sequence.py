"""One sequence: what is known of it, what is computed, and which blocks hold it.

Two counters carry the whole scheduling rule. `known` tokens are the prompt and the output so far; `computed` tokens
have K/V in the pool. A step lets computed catch up with known; a sequence whose computed is known − 1 decodes.
Drafts lengthen known for one step only and are never final. It refuses to know of other sequences, of the pool's
lists and of time, except for the clocks it carries.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from engine.records import Request, SequenceState

if TYPE_CHECKING:
    from engine.group import Group
    from engine.sampler import SampleRow


@dataclass(slots=True, eq=False)
class Sequence:
    """Counters' inequalities: cached_tokens ≤ computed < known ≤ limit and prompt_tokens ≤ known while it runs.

    `order` is (priority, arrival index): lower is served first, the largest is preempted first.
    """

    seq: int
    number: int
    request: Request
    prompt_tokens: int
    tokens: list[int]  # known: prompt and output; only ever appended to
    arrival: int  # engine clock, ns
    order: tuple[int, int]
    index: int = 0  # among the sequences of its request
    shadow: bool = False  # a second run of what another came to: in steps that nobody else has work in, without drafts
    group: Group | None = None  # that it can't run without: lanes of a search, samples until their prompt is computed

    status: Literal["waiting", "running", "finished"] = "waiting"
    limit: int = 0  # tokens it may come to hold; 0 until it is first admitted
    params: SampleRow | None = None  # how it is sampled, every default resolved; None until it is first admitted
    computed: int = 0  # tokens with K/V in the pool
    table: array[int] = field(default_factory=lambda: array("q"))  # block ids, logical order; a buffer numpy can read
    drafts: list[int] = field(default_factory=list)  # proposed for the coming step
    hashes: list[bytes] = field(default_factory=list)  # chained, one per full block of known tokens, as far as needed
    sealed: int = 0  # leading blocks of the table that were offered to the prefix cache (or came from it)
    host: array[int] = field(default_factory=lambda: array("q"))  # host blocks, logical order, while it is swapped out
    swapped: int = 0  # tokens with K/V in them
    reached: int = 0  # most tokens ever computed before a preemption; computing them again is its price
    shares: bool = False  # the block that its next token belongs to may be another's too
    reserved: bool = False  # its table holds blocks for `limit` tokens, in a row, from admission on

    cached_tokens: int = 0  # taken from the prefix cache at the latest admission
    preemptions: int = 0
    drafted: int = 0
    accepted: int = 0
    first_token: int = 0  # engine clock, ns; 0 = none yet
    last_token: int = 0
    pieces: list[str] = field(default_factory=list)  # output text shown so far

    @property
    def known(self) -> int:
        return len(self.tokens)

    @property
    def due(self) -> int:
        """Tokens to be computed for its own sake: a beam's last one waits for those of its search."""
        return len(self.tokens) - (self.group is not None and self.group.together)

    @property
    def priority(self) -> int:
        return self.order[0]

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def decoding(self) -> bool:
        """Only its latest output token is uncomputed; a prompt's last token still counts as prefill."""
        known = len(self.tokens)
        return self.computed == known - 1 and known > self.prompt_tokens

    def state(self, prompt_text: str) -> SequenceState:
        """As a keyframe carries it."""
        assert self.status != "finished"
        return SequenceState(
            seq=self.seq,
            number=self.number,
            status=self.status,
            prompt_tokens=self.prompt_tokens,
            known=self.known,
            computed=self.computed,
            max_tokens=self.request.max_tokens,
            limit=self.limit,
            priority=self.priority,
            arrival=self.arrival,
            first_token=self.first_token,
            last_token=self.last_token,
            cached_tokens=self.cached_tokens,
            preemptions=self.preemptions,
            drafted=self.drafted,
            accepted=self.accepted,
            reserved=self.reserved,
            swapped=self.swapped,
            prompt=prompt_text,
            output="".join(self.pieces),
            label=self.request.label,
            index=self.index,
            of=sequences_of(self.request),
            beams=self.request.beams,
            shadow=self.shadow,
        )

    def check(self, block_size: int, ahead: int = 0) -> None:
        """Assert the inequalities, between steps. `ahead`: tokens that a step which runs already may have added to
        those computed."""
        assert 0 < self.prompt_tokens <= self.known, self
        assert 0 <= self.accepted <= self.drafted, self
        assert self.cached_tokens < self.known and not self.drafts, self
        full = -(-self.computed // block_size)
        if self.status == "running":
            assert self.cached_tokens <= self.computed < self.known < self.limit, self
            if self.reserved:
                assert len(self.table) == -(-self.limit // block_size) and self.sealed == 0, self
            else:  # a block for the next token may be held already, never more
                most = max(self.computed // block_size + 1, -(-(self.computed + ahead) // block_size))
                assert full <= len(self.table) <= most, self
            assert self.sealed <= self.computed // block_size, self
        else:
            assert self.computed == 0 and not self.table and self.sealed == 0 and not self.reserved, self
        assert self.swapped < self.known and not (self.swapped and self.status == "running"), self
        if self.limit:
            assert self.known <= self.limit, self


def sequences_of(request: Request) -> int:
    """How many serve it."""
    return request.beams or request.n
