"""THE CONTRACT: everything that crosses between the engine's process and a reader of it.

Small immutable structs, msgpack-encoded; arrays are packed little-endian structured buffers, described by the
dtypes below. Like video: a `Keyframe` carries the whole state, a `StepRecord` only what a step changed, a
`Between` what changed while no step ran. The same bytes go over the pipe, into a recording and out of it.

Sequences and blocks are integers. Times are nanoseconds. `clock` times are on the *engine clock*: monotonic
time less all time paused or held back by slow motion, so that latencies computed from them leave that out.
A reader skips fields that it doesn't know; `SCHEMA` changes when one that it needs changes meaning.
"""

from __future__ import annotations

import struct
from functools import cache
from itertools import starmap
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.config import EngineConfig, Limit, LiveSettings, Model
from engine.roof import Roof

SCHEMA = 5
PROMPT_SHOWN = 300  # characters of a prompt that records carry, for lists

NONE = 0xFFFFFFFF  # no owner, no block

# states of a block: three, never two
FREE, CACHED, USED = 0, 1, 2
# kinds of a row; a decode row with drafts is a verification
PREFILL, DECODE = 0, 1
# verdicts on a drafted token, and the two origins of the token that ends a pass
ACCEPTED, REJECTED, DISCARDED, RESAMPLED, BONUS = 0, 1, 2, 3, 4
VERDICTS = ("accepted", "rejected", "discarded", "resampled", "bonus")

ROW = np.dtype([
    ("seq", "<u4"),
    ("kind", "u1"),
    ("scheduled", "<u4"),  # tokens computed by this row: its own and its drafts; 0: forked, it has another row's token
    ("context", "<u4"),  # tokens with K/V kept after the step (rejected drafts don't count)
    ("known", "<u4"),  # prompt and output tokens after the step
    ("drafted", "<u2"),
    ("accepted", "<u2"),
    ("emitted", "<u2"),
])
BLOCK = np.dtype([("block", "<u4"), ("state", "u1"), ("refcount", "<u2"), ("filled", "<u2"), ("owner", "<u4")])
# a table change (seq, index, block): entry `index` of the table is `block`, a new one at its end or another than before
# (copy-on-write); block NONE: the table ends before index
TABLE = np.dtype([("seq", "<u4"), ("index", "<u4"), ("block", "<u4")])
# the host pool: whose block it is (NONE: free), its index in that sequence's table, tokens with K/V in it
HOST = np.dtype([("block", "<u4"), ("owner", "<u4"), ("index", "<u4"), ("filled", "<u2")])
# what the prefix cache did: a sequence got a cached block back into use (hit), or one that is in use (shared), or took
# the place of a cached one (evicted). `owner`: whose the block was; steps, ns: how long it had been cached, unused
HIT, SHARED, EVICTED = 0, 1, 2
CACHE = np.dtype([
    ("kind", "u1"),
    ("block", "<u4"),
    ("seq", "<u4"),
    ("owner", "<u4"),
    ("steps", "<u4"),
    ("ns", "<u8"),
])
# copy-on-write: the sequence was about to write into `source`, which others hold too, and has its own copy `block` now
COPY = np.dtype([("seq", "<u4"), ("source", "<u4"), ("block", "<u4")])
# a full block that a prompt can find from now on: its index in the table of `seq`, which computed it, its hash and that
# of the block before it (0: it is a prompt's first). Hash 0: it can't be found any more; block NONE: none can. Hashes
# are chained, so equal ones mean equal prefixes; the records carry the first 8 bytes of the pool's own
SEAL = np.dtype([("block", "<u4"), ("index", "<u4"), ("seq", "<u4"), ("hash", "<u8"), ("parent", "<u8")])
# an output token; `position` counts from the sequence's first prompt token
TOKEN = np.dtype([("seq", "<u4"), ("position", "<u4"), ("token", "<u4"), ("origin", "u1")])
ORIGINS = ("sampled", "accepted", "resampled", "bonus")
SAMPLED = 0  # TOKEN.origin; 1..3 follow ORIGINS
# a drafted token (accepted, rejected, discarded) or the token that ended the pass (resampled, bonus).
# p, q: target and draft probability; draw: the uniform number that decided (NaN where none was drawn)
DRAFT = np.dtype([
    ("seq", "<u4"),
    ("position", "<u4"),
    ("token", "<u4"),
    ("verdict", "u1"),
    ("p", "<f4"),
    ("q", "<f4"),
    ("draw", "<f4"),
])


def pack(rows: list[tuple], dtype: np.dtype) -> bytes:
    """Rows of plain tuples as one packed buffer. Nine times as fast as numpy's own way from tuples."""
    return b"".join(starmap(_row_format(dtype).pack, rows))


@cache
def _row_format(dtype: np.dtype) -> struct.Struct:
    codes = {"<u8": "Q", "<u4": "I", "<u2": "H", "|u1": "B", "<f4": "f"}
    return struct.Struct("<" + "".join(codes[kind] for _, kind in dtype.descr))


def unpack(buffer: bytes, dtype: np.dtype) -> NDArray:
    """A read-only structured view of a packed buffer; no copy."""
    return np.frombuffer(buffer, dtype=dtype)


class _Struct(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pass


# --- What is asked of the engine ---


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How one request is sampled; None takes the live setting's default at the time of admission."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    speculate: bool = True  # False: never draft for this request


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """`number` is chosen by the sender, unique in its session; a sequence number is the engine's own."""

    number: int
    prompt: str = ""
    system: str = ""  # a system message, chat only
    raw: bool = False  # leave the chat template out
    token_ids: list[int] | None = None  # takes the place of `prompt` and its template
    max_tokens: int = 128
    n: int = 1  # samples, each a sequence of its own; of seed s they draw as if asked for alone with s, s + 1, …
    beams: int = 0  # beam search of that width; 0 = none
    length_penalty: float = 1.0  # beams: a finished one scores its log-probability ÷ length ** length_penalty
    early_stopping: bool | Literal["never"] = False  # beams: when a search ends; see engine.beam_search
    stop: list[str] = []
    ignore_eos: bool = False
    priority: int = 0  # lower runs first
    sampling: Sampling = Sampling()
    label: str = ""  # where it came from: workload, playground, bench


class Submit(_Struct):
    id: int
    request: Request


class Abort(_Struct):
    """Abort the request of that number; number None aborts all."""

    id: int
    number: int | None = None


class Change(_Struct):
    """Change live settings: all of them, or none and the Ack says why."""

    id: int
    changes: dict[str, int | float | bool | str | list[float]]


class Pause(_Struct):
    id: int


class Resume(_Struct):
    id: int


class StepOnce(_Struct):
    """While paused: run this many steps, then stay paused."""

    id: int
    steps: int = 1


class SetDelay(_Struct):
    """Slow motion: hold each step back by this long. 0 = full speed."""

    id: int
    seconds: float


class SendKeyframe(_Struct):
    """Send a keyframe now, and from now on one every `every` steps (0 = none, None = leave as is)."""

    id: int
    every: int | None = None


class Watch(_Struct):
    """Send with each step of one sequence its k likeliest next tokens, and how its drafts were decided; seq None stops
    that."""

    id: int
    seq: int | None = None
    k: int = 10


class Shadow(_Struct):
    """Run the request of that number again without drafts, in steps that nobody else has a row in, and compare the two.
    Its Ack says why where it can't be: engine.shadow."""

    id: int
    number: int


def shadow_number(number: int) -> int:
    """The number of a request's second run. Senders count up, so theirs are never negative."""
    return -1 - number


class Stop(_Struct):
    """End the child in good order."""

    id: int


Command = Submit | Abort | Change | Pause | Resume | StepOnce | SetDelay | SendKeyframe | Watch | Shadow | Stop


# --- What the engine says ---


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


class Submitted(_Struct):
    seq: int
    number: int
    prompt_tokens: int
    max_tokens: int
    priority: int
    arrival: int  # engine clock
    prompt: str  # the first few hundred characters, for lists
    label: str
    index: int = 0  # among the sequences of its request
    of: int = 1  # sequences that serve the request
    beams: int = 0  # width of the beam search that they are lanes of
    shadow: bool = False  # it runs again what another came to, without drafts: see `shadow_number`


class Forked(_Struct):
    """From now on the sequence continues the first `known` tokens of `parent`; what it had of its own is void. It comes
    to the text and blocks of another sample's prompt so, and to those of another beam."""

    seq: int
    parent: int
    known: int
    computed: int  # tokens whose K/V it has, by reference where it isn't reserved
    shared: int  # blocks that it holds together with the parent
    running: bool  # False: there is no room for it now, and it waits
    limit: int  # as in Admitted


class Hypothesis(msgspec.Struct, frozen=True, kw_only=True):
    """What a beam search found."""

    token_ids: list[int]  # of the output, an end of sequence included
    text: str
    log_probability: float  # of all its tokens together
    score: float  # log-probability ÷ length ** length_penalty
    reason: str  # as in Finished


class Searched(_Struct):
    """A beam search is over; `found`, best first. It comes after the last tokens of its lanes and before their ends, in
    which `reason` is "beams"."""

    seq: int  # the first lane
    number: int
    found: list[Hypothesis]


class Admitted(_Struct):
    seq: int
    cached_tokens: int  # taken from the prefix cache, not computed
    limit: int  # tokens this sequence may come to hold
    again: bool  # back after a preemption
    looked_up: int = 0  # tokens of full blocks asked of the prefix cache; those not in `cached_tokens` were missed
    returned: int = 0  # tokens brought back from the host pool, not computed
    reserved: bool = False  # its table holds blocks for `limit` tokens from now on, in a row


class Preempted(_Struct):
    """`cause`: "kv_blocks" (another row needed `needed` blocks), "max_batch", "resize", "block_size", "beams" (lanes of
    one search waited for others that found no room), "shadow" (it is one, and others have work). Lanes of a beam search
    leave together."""

    seq: int
    cause: str
    by: int  # the sequence in need, NONE when a setting did it
    needed: int
    lost: int  # computed tokens that must be computed again
    swapped: int = 0  # tokens whose K/V is in the host pool now
    bytes: int = 0  # moved there for it
    note: str = ""  # why nothing was moved although swapping was asked for


class Dropped(_Struct):
    """The host pool gave up what it held of a waiting sequence. `cause`: "swap_blocks" (made smaller), "block_size"."""

    seq: int
    cause: str
    lost: int  # tokens that must be computed again


class Finished(_Struct):
    """`reason`: "stop" (end of sequence or stop string), "length" (max tokens), "context" (max context), "beams" (its
    search is over)."""

    seq: int
    number: int
    reason: str
    output_tokens: int
    tail: str = ""  # text held back until now


class Aborted(_Struct):
    seq: int
    number: int
    reason: str = ""


Event = Submitted | Admitted | Forked | Preempted | Dropped | Searched | Finished | Aborted


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


class TopTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The likeliest next tokens of the watched sequence, after temperature and filters."""

    seq: int
    position: int
    tokens: list[int]
    probabilities: list[float]
    text: list[str] = []


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A token that might have come at a position. `p`: the target's probability of it, after temperature, penalties
    and filters; `q`: the draft's; `left`: its share of max(0, p − q), where that was drawn from. `below`: what all
    tokens of lower ids have together of the distribution that a token was drawn from here."""

    token: int
    text: str
    p: float
    q: float = 0.0
    left: float = 0.0
    below: float = 0.0


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """The token that ended a verification. The number drawn fell on it: below ≤ draw < below + share."""

    token: int
    text: str
    draw: float | None = None  # None: greedy, the likeliest is taken
    share: float = 1.0  # of the distribution that it was drawn from
    below: float = 0.0


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """One position of a verification. A drafted token is accepted if draw · q < p."""

    position: int
    verdict: int  # ACCEPTED, REJECTED, DISCARDED (it was never examined: only the draft's side is told), or BONUS
    token: int | None = None  # drafted; None of a bonus
    text: str = ""
    p: float = 0.0  # of that token
    q: float = 0.0
    draw: float | None = None  # None: greedy, accepted if it is the likeliest
    candidates: list[Candidate] = []  # by p: the target's best and the leftover's, the drafted and the drawn one
    rejection: float = 0.0  # the sum of max(0, p − q): how likely any draft from q was to be rejected here
    drawn: Drawn | None = None  # of a rejection, from max(0, p − q); of a bonus, from p


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """How the drafts of the watched sequence were decided. Of a greedy one p is the model's own, at temperature 1, and
    decides by its largest alone. What an end (a stop, a limit) left out of the output is told here all the same."""

    seq: int
    greedy: bool
    certain: bool  # the draft was deterministic: q is 1 at each of its tokens
    sampling: Sampling = Sampling()  # of the request, every default resolved
    positions: list[Examined]  # of each drafted token, then the bonus if there was one


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


class StepRecord(_Struct):
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


class Between(_Struct):
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


class Keyframe(_Struct):
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


class Loading(_Struct):
    """Progress before Ready. `total` 0 = not known."""

    stage: str
    done: int
    total: int
    unit: str = "bytes"


class Ready(_Struct):
    v: int
    pid: int
    device: str  # in words, "CPU, 2 threads" or the card's name
    runner: str  # "cpu", "cuda"
    config: EngineConfig
    settings: LiveSettings  # in force: a default that memory didn't allow was lowered
    model: Model
    block_size: int
    limits: dict[str, Limit]
    notices: list[str] = []  # what the user should know: a shrunken pool, a missing chat template
    absent: dict[str, str] = {}  # forms of weights (`EngineConfig.dtype`) that can't be had here, and why
    absent_drafts: dict[str, str] = {}  # draft methods that can't be had here, and why
    gpu: str = ""  # CUDA: the card's identifier, or its instance's, without what NVML puts in front
    roof: Roof | None = None  # over the steps of this model on this device; None: nobody said


class Ack(_Struct):
    """The answer to command `id`. `step`: the first step that obeys it. Not ok: nothing changed; `message` says why."""

    id: int
    ok: bool
    step: int
    message: str = ""
    key: str = ""  # the setting refused, if one was
    settings: LiveSettings | None = None
    limits: dict[str, Limit] | None = None  # where the change moved them


class Refused(_Struct):
    """A request that was not taken, with the remedy."""

    number: int
    message: str


class Status(_Struct):
    """Sent when it changes."""

    paused: bool
    delay: float  # seconds
    idle: bool


class Notice(_Struct):
    """Something to tell the user; nothing was lost."""

    message: str
    level: Literal["info", "warning"] = "warning"


class Gap(_Struct):
    """Records of steps first..last were dropped before a slow reader; a keyframe follows."""

    first: int
    last: int


class Died(_Struct):
    """The engine is gone. `reason` is for people, `detail` for a bug report."""

    reason: str
    detail: str = ""


class Ended(_Struct):
    """The child ended in good order."""


Message = (
    StepRecord | Between | Keyframe | Loading | Ready | Ack | Refused | Status | Notice | Gap | Died | Ended
)


class WrongSchema(ValueError):
    """Bytes that this version can't read, with both versions named."""


_encoder = msgspec.msgpack.Encoder()
_messages = msgspec.msgpack.Decoder(Message)
_commands = msgspec.msgpack.Decoder(Command)


class _Version(msgspec.Struct):
    v: int = SCHEMA


_version = msgspec.msgpack.Decoder(_Version)


def encode(record: Message | Command) -> bytes:
    return _encoder.encode(record)


def decode(data: bytes) -> Message:
    """Raises WrongSchema for bytes of another version or of no version at all."""
    try:
        return _messages.decode(data)
    except msgspec.MsgspecError as error:
        raise WrongSchema(_explain(data, error)) from None


def decode_command(data: bytes) -> Command:
    """Raises WrongSchema."""
    try:
        return _commands.decode(data)
    except msgspec.MsgspecError as error:
        raise WrongSchema(_explain(data, error)) from None


def _explain(data: bytes, error: Exception) -> str:
    try:
        version = _version.decode(data).v
    except msgspec.MsgspecError:
        return f"these bytes are no Servescope record ({error})"
    if version == SCHEMA:
        return f"a damaged record of schema {SCHEMA} ({error})"
    return f"a record of schema {version}; this version reads schema {SCHEMA}"
