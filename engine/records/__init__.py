"""THE CONTRACT: everything that crosses between the engine's process and a reader of it.

Small immutable structs, msgpack-encoded; arrays are packed little-endian structured buffers, described by the
dtypes below. Like video: a `Keyframe` carries the whole state, a `StepRecord` only what a step changed, a
`Between` what changed while no step ran. The same bytes go over the pipe, into a recording and out of it.

Sequences and blocks are integers. Times are nanoseconds. `clock` times are on the *engine clock*: monotonic
time less all time paused or held back by slow motion, so that latencies computed from them leave that out.
A reader skips fields that it doesn't know; `SCHEMA` changes when one that it needs changes meaning.
"""

from __future__ import annotations

from engine.records.answers import Ack, Compiled, Died, Ended, Gap, Loading, Notice, Ready, Refused, Status
from engine.records.arrays import (
    ACCEPTED,
    BLOCK,
    BONUS,
    CACHE,
    CACHED,
    COPY,
    DECODE,
    DISCARDED,
    DRAFT,
    EVICTED,
    FREE,
    HIT,
    HOST,
    NONE,
    ORIGINS,
    PREFILL,
    REJECTED,
    RESAMPLED,
    ROW,
    SAMPLED,
    SEAL,
    SHARED,
    TABLE,
    TOKEN,
    USED,
    VERDICTS,
    pack,
    unpack,
)
from engine.records.codec import SCHEMA, Message, WrongSchema, decode, decode_command, encode
from engine.records.commands import (
    Abort,
    Change,
    Command,
    Pause,
    Request,
    Resume,
    Sampling,
    SendKeyframe,
    SetDelay,
    Shadow,
    StepOnce,
    Stop,
    Submit,
    Watch,
    shadow_number,
)
from engine.records.events import (
    PROMPT_SHOWN,
    Aborted,
    Admitted,
    Dropped,
    Event,
    Finished,
    Forked,
    Hypothesis,
    Preempted,
    Searched,
    Submitted,
)
from engine.records.steps import (
    Between,
    Bound,
    Keyframe,
    Memory,
    Pace,
    PrefixUse,
    SequenceState,
    Serial,
    ShadowState,
    StepBudget,
    StepRecord,
    Swapped,
    Timing,
)
from engine.records.watched import Candidate, Drawn, Examined, TopTokens, Verification
