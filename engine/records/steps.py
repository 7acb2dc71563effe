"""The state and its changes: a step, what happened between two steps, and the whole of it."""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.config import LiveSettings
from engine.records.events import Event
from engine.records.watched import TopTokens, Verification


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What the child knows of its memory, bytes. Zero where a part does not exist on this device."""

    weights: int = 0
    kv_pool: int = 0
    allocated: int = 0  # CUDA: torch's allocator, in tensors
    peak: int = 0  # CUDA: most of that since the pool got its size
    reserved: int = 0  # CUDA: torch's allocator, from the driver
    graphs: int = 0
    host_pool: int = 0  # on the host, for what is swapped out
    draft: int = 0  # weights that aren't the target's and K/V of what drafts; where the target is
    resident: int = 0  # RSS of the child
    resident_files: int = 0  # of that, pages of files (Linux): the system takes them back when it needs them
    baseline: int = 0  # RSS of the child before the model came: Python, torch, libraries
    baseline_files: int = 0


class Swapped(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks copied to the host pool and back from it."""

    out: int
    back: int
    bytes: int  # both ways
    ns: int


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a step, ns, measured on the step's own thread. On CUDA `forward` comes from events."""

    schedule: int = 0
    draft: int = 0
    swap: int = 0  # copies to and from the host pool
    forward: int = 0
    sample: int = 0  # sampling and verification
    commit: int = 0  # tables, hashes, records

    @property
    def total(self) -> int:
        return self.schedule + self.draft + self.swap + self.forward + self.sample + self.commit


class PrefixUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the prefix cache was asked since the engine started, admissions after a preemption left out."""

    requests: int = 0  # that asked
    hits: int = 0  # requests that got anything
    looked_up: int = 0  # tokens, of full blocks
    hit: int = 0  # of those


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a sequence decoded: tokens after its first, and the engine clock that they took. `alone`: in steps that
    it had to itself; otherwise from its first token to its last, whoever else had rows then."""

    tokens: int
    ns: int
    alone: bool = True


class ShadowState(msgspec.Struct, frozen=True, kw_only=True):
    """A request beside its run without drafts. Tokens are counted from 0, the first of the output. Of those that both
    have, `equal` are the same and `different` are not."""

    number: int  # of the request
    seq: int  # of its own run
    shadow: int  # of the run without drafts
    tokens: int  # output of its own run so far
    equal: int
    different: int
    first: int = -1  # the first that differs; −1: none does
    words: list[str] = []  # what stands there: of its own run, of the one without drafts
    drafted: int = 0  # tokens drafted in its own run
    original_pace: Pace
    shadow_pace: Pace
    done: bool = False
    ended: str = ""  # why the run without drafts was ended early


class StepBudget(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens that a step may take. Where the engine finds them (`token_budget` 0), they are so many that the step
    takes about `goal`: `fixed`, and `each` for every token. All three are 0 where it doesn't: the number is set by
    hand, or there is no chunked prefill."""

    tokens: int
    goal: float = 0.0  # ms
    fixed: float = 0.0  # ms, of a step with the streams that decode now
    each: float = 0.0  # ms a token


# "static": somebody waits for the whole batch to end
Bound = Literal["no_work", "batch_cap", "token_budget", "kv_blocks", "static"]
# why a step was not begun while the one before it ran. What a row needs: drafts, beams, samples, penalties, watch,
# shadow. What could have made it preempt or copy: blocks (the pool is nearly full), prompts (whole ones wait), sharing.
# Else: idle (no step ran before), command (one was obeyed in between), stepping (paused or in slow motion), failure
# (it couldn't be begun then, and was tried again)
Serial = Literal[
    "", "drafts", "beams", "samples", "penalties", "watch", "shadow", "blocks", "prompts", "sharing", "idle", "command",
    "stepping", "failure",
]  # fmt: skip


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One step, whole. Buffers are described by the dtypes of the same name."""

    v: int
    step: int  # counts from 1
    start: int  # monotonic ns
    clock: int  # engine clock at the start
    end_clock: int  # engine clock when the step's tokens were there
    timing: Timing
    rows: bytes  # ROW
    blocks: bytes  # BLOCK, final values, at most one entry a block
    tables: bytes  # TABLE, in order
    events: list[Event]  # in order; a sequence's Searched and Finished come after its tokens
    bound: Bound  # what kept the step from doing more
    running: int  # sequences, after the step
    waiting: int
    used: int  # blocks, after the step
    cached: int
    free: int
    emitted: bytes  # TOKEN
    text: list[str]  # one piece per emitted token; "" while bytes are incomplete or a stop string may follow
    drafts: bytes  # DRAFT, grouped by sequence, in position order
    draft_text: list[str]
    settings: LiveSettings  # in force during the step
    budget: StepBudget  # the step's own
    # what `formulas.waste_parts` takes, after the step
    stored: int = 0  # tokens in used blocks
    empty: int = 0  # used blocks without any
    gaps: int = 0  # blocks that nobody uses, in rows too short for the reservation that waits next
    cache: bytes = b""  # CACHE, in order
    copies: bytes = b""  # COPY, in order; done before the step's rows were computed
    sealed: bytes = b""  # SEAL, in order
    sealed_text: list[str] = []  # what the tokens of each say
    # the price of preemption: of all tokens computed in this step, and of the step's time
    recomputed: int = 0  # tokens that had been computed before
    swapped: Swapped | None = None  # since the last record
    host: bytes = b""  # HOST, final values, at most one entry a block
    memory: Memory | None = None  # when newly sampled
    top: list[TopTokens] = []
    shadows: list[ShadowState] = []  # those that changed
    verification: Verification | None = None
    # whether it was begun while the step before it ran; if not, and steps may overlap here, why not
    overlapped: bool = False
    serial: Serial = ""
    wasted: int = 0  # tokens computed for sequences that turned out to have stopped before
    # of a pass on a GPU: whether it was replayed from a graph, and the tokens that it computed besides, to fill the
    # graph's shape
    graph: bool = False
    padded: int = 0


class Between(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What changed while no step ran: arrivals, aborts, settings. `after` is the last finished step."""

    v: int
    after: int
    clock: int
    blocks: bytes
    tables: bytes
    events: list[Event]
    running: int
    waiting: int
    used: int
    cached: int
    free: int
    settings: LiveSettings
    budget: StepBudget  # what the next step would have, were it now
    copies: bytes = b""  # COPY, in order, of a step that failed
    swapped: Swapped | None = None
    host: bytes = b""
    sealed: bytes = b""
    sealed_text: list[str] = []
    memory: Memory | None = None
    shadows: list[ShadowState] = []  # those that changed


class SequenceState(msgspec.Struct, frozen=True, kw_only=True):
    """One unfinished sequence, whole, as a keyframe carries it."""

    seq: int
    number: int
    status: Literal["waiting", "running"]
    prompt_tokens: int
    known: int
    computed: int
    max_tokens: int
    limit: int
    priority: int
    arrival: int
    first_token: int  # engine clock, 0 = none yet
    last_token: int
    cached_tokens: int
    preemptions: int
    drafted: int
    accepted: int
    reserved: bool = False
    swapped: int = 0  # tokens with K/V in the host pool
    prompt: str
    output: str
    label: str
    index: int = 0
    of: int = 1
    beams: int = 0
    shadow: bool = False


class Keyframe(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The whole state after step `step`, read from the structures themselves."""

    v: int
    step: int
    clock: int
    block_size: int
    settings: LiveSettings
    budget: StepBudget  # as the last record said
    state: bytes  # u1 per block
    refcount: bytes  # <u2 per block
    filled: bytes  # <u2 per block
    owner: bytes  # <u4 per block
    table_seqs: bytes  # <u4, sequences that hold blocks
    table_lengths: bytes  # <u4, blocks of each
    table_blocks: bytes  # <u4, all tables, one after the other
    sequences: list[SequenceState]
    running: list[int]  # in scheduling order
    waiting: list[int]  # in queue order
    # the host pool, as records.HOST has it
    host_owner: bytes = b""  # <u4 per block
    host_index: bytes = b""  # <u4 per block
    host_filled: bytes = b""  # <u2 per block
    # every block that a prompt can find, parents before their children
    sealed: bytes = b""  # SEAL
    sealed_text: list[str] = []
    prefix_use: PrefixUse = PrefixUse()  # as of the last record
    memory: Memory | None = None
    shadows: list[ShadowState] = []  # all that are remembered, the oldest first
