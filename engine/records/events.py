"""What happens to sequences, one after the other: they come, fork, are admitted, preempted, and end."""

from __future__ import annotations

import msgspec

PROMPT_SHOWN = 300  # characters of a prompt that records carry, for lists


class Submitted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
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


class Forked(msgspec.Struct, frozen=True, kw_only=True, tag=True):
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


class Searched(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A beam search is over; `found`, best first. It comes after the last tokens of its lanes and before their ends, in
    which `reason` is "beams"."""

    seq: int  # the first lane
    number: int
    found: list[Hypothesis]


class Admitted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    seq: int
    cached_tokens: int  # taken from the prefix cache, not computed
    limit: int  # tokens this sequence may come to hold
    again: bool  # back after a preemption
    looked_up: int = 0  # tokens of full blocks asked of the prefix cache; those not in `cached_tokens` were missed
    returned: int = 0  # tokens brought back from the host pool, not computed
    reserved: bool = False  # its table holds blocks for `limit` tokens from now on, in a row


class Preempted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
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


class Dropped(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The host pool gave up what it held of a waiting sequence. `cause`: "swap_blocks" (made smaller), "block_size"."""

    seq: int
    cause: str
    lost: int  # tokens that must be computed again


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`reason`: "stop" (end of sequence or stop string), "length" (max tokens), "context" (max context), "beams" (its
    search is over)."""

    seq: int
    number: int
    reason: str
    output_tokens: int
    tail: str = ""  # text held back until now


class Aborted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    seq: int
    number: int
    reason: str = ""


Event = Submitted | Admitted | Forked | Preempted | Dropped | Searched | Finished | Aborted
