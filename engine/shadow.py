"""Shadow runs: a request once more without drafts, beside what it came to with them.

*Original*: the request as it was asked. *Shadow*: its second run, a sequence of its own with the same prompt, limit and
sampling that never drafts. It runs while nobody else has work (`Scheduler.shadows`), and neither takes K/V from the
prefix cache nor leaves any there, so that it is as independent of the original as a run can be.

Greedy tokens are compared one by one. Speeds are those of decoding: tokens over the engine clock of the steps that a
sequence had to itself, from one step's end to the next one's. An original that hardly ever ran alone is measured from
its first token to its last, others' rows included, and the state says so. It refuses to know of queues and blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from engine.records import DECODE, Pace, Request, ShadowState, shadow_number
from engine.requests import RequestRefused, settled
from engine.sequence import Sequence, sequences_of
from engine.texts import Texts

KEPT = 64  # finished requests that can still be run again, and comparisons that are remembered
PRIORITY = 1 << 30  # after everybody else, in every list
_ENOUGH = 16  # tokens decoded alone that give a speed, or half of all where there are fewer


@dataclass(slots=True, eq=False)
class Run:
    """One comparison. Tokens are counted from the first of the output."""

    original: Sequence
    shadow: Sequence
    equal: int = 0
    different: int = 0
    first: int = -1  # that differs; −1: none does
    done: bool = False
    ended: str = ""  # why the shadow came to no end of its own


class Shadows:
    def __init__(self, texts: Texts):
        self._texts = texts
        self._past: dict[int, Sequence] = {}  # finished originals by number, the oldest first
        self._runs: dict[int, Run] = {}  # by the original's number, the oldest first
        self._ahead: dict[int, Run] = {}  # of those, whose originals still run
        self._alone: dict[int, tuple[int, int]] = {}  # by seq: tokens decoded alone, engine ns that they took
        self._simulated: set[int] = set()  # seqs that had drafts accepted at given rates
        self._last, self._until = 0, 0  # the one sequence of the step before, if it decoded alone, and its end
        self._changed: dict[int, Run] = {}  # since the last record

    # --- to begin one ---

    def original(self, number: int, live: Mapping[int, list[Sequence]]) -> Sequence:
        """The sequence of request `number`. Raises RequestRefused where it can't be run again now."""
        if shadow_number(number) in live:
            raise RequestRefused(f"request {number} is being run again already")
        found = live[number][0] if number in live else self._past.get(number)
        if found is None or number < 0:
            raise RequestRefused(
                f"request {number} is not among those that run or the last {KEPT} that finished; send it again"
            )
        self._check(found)
        return found

    def request(self, original: Sequence) -> Request:
        """What its shadow asks for."""
        assert original.params is not None
        return replace(
            original.request,
            number=shadow_number(original.number),
            token_ids=None,
            max_tokens=original.limit - original.prompt_tokens,
            priority=PRIORITY,
            sampling=replace(settled(original.params), speculate=False),
            label="shadow",
        )

    def begin(self, original: Sequence, shadow: Sequence) -> None:
        number = original.number
        if (before := self._runs.pop(number, None)) is not None:
            self._forget(before.shadow)
        self._runs[number] = self._changed[number] = run = Run(original, shadow)
        if original.status != "finished":
            self._ahead[number] = run
        while len(self._runs) > KEPT:
            self._forget(self._runs.pop(next(iter(self._runs))).shadow)

    def _check(self, sequence: Sequence) -> None:
        number, request, params = sequence.number, sequence.request, sequence.params
        if sequences_of(request) > 1 or request.beams:
            what = f"{request.beams} beams" if request.beams else f"{request.n} samples"
            raise RequestRefused(f"request {number} has {what}; one answer to a prompt can be compared with another")
        if params is None:
            raise RequestRefused(f"request {number} still waits; ask again when it runs")
        if not params.greedy:
            raise RequestRefused(
                f"request {number} was sampled at temperature {params.temperature:g}: drafts keep the distribution of "
                "sampled tokens, not the tokens themselves; send it at temperature 0 to compare them"
            )
        if sequence.seq in self._simulated:
            raise RequestRefused(f"request {number} ran with simulated acceptance: its text is meaningless by design")

    # --- as steps go by ---

    def simulated(self, sequences: Iterable[Sequence]) -> None:
        """They have drafts accepted at given rates."""
        self._simulated.update(sequence.seq for sequence in sequences)

    def see(self, rows: list[tuple[int, ...]], started: int, now: int) -> None:
        """A step of these rows (records.ROW) began and ended then, on the engine clock."""
        if self._ahead:
            self._changed.update(self._ahead)
        if len(rows) != 1 or rows[0][1] != DECODE:
            self._last = 0
            return
        seq, emitted = rows[0][0], rows[0][-1]
        tokens, ns = self._alone.get(seq, (0, 0))
        since = self._until if self._last == seq else started
        self._alone[seq] = tokens + emitted, ns + now - since
        self._last, self._until = seq, now
        for number, run in self._runs.items():
            if run.shadow.seq == seq and not run.done:
                self._compare(run)
                self._changed[number] = run

    def finished(self, sequence: Sequence) -> None:
        """To its own end: an original can be run again from now on; a shadow has been."""
        if sequence.shadow:
            self._close(sequence, "")
            return
        sequence.hashes = []
        if (run := self._ahead.pop(sequence.number, None)) is not None:
            self._changed[sequence.number] = run
        if (before := self._past.pop(sequence.number, None)) is not None:  # another lane of it, or one of that number
            self._forget(before)
        self._past[sequence.number] = sequence
        while len(self._past) > KEPT:
            self._forget(self._past.pop(next(iter(self._past))))

    def aborted(self, sequence: Sequence, reason: str) -> None:
        if sequence.shadow:
            self._close(sequence, reason or "aborted")
        else:
            self._ahead.pop(sequence.number, None)
            self._forget(sequence)

    def take(self) -> list[ShadowState]:
        """Those that changed since the last call."""
        if not self._changed:
            return []
        changed, self._changed = self._changed, {}
        return [self._state(number, run) for number, run in changed.items()]

    def all(self) -> list[ShadowState]:
        return [self._state(number, run) for number, run in self._runs.items()]

    @property
    def changed(self) -> bool:
        return bool(self._changed)

    # --- within ---

    def _forget(self, sequence: Sequence) -> None:
        if not any(sequence in (run.original, run.shadow) for run in self._runs.values()):
            self._alone.pop(sequence.seq, None)
            self._simulated.discard(sequence.seq)

    def _close(self, shadow: Sequence, ended: str) -> None:
        for number, run in self._runs.items():
            if run.shadow is shadow:
                self._compare(run)
                run.done, run.ended = True, ended
                self._changed[number] = run

    @staticmethod
    def _compare(run: Run) -> None:
        one, two = run.original, run.shadow
        first = one.prompt_tokens
        for place in range(first + run.equal + run.different, min(one.known, two.known)):
            if one.tokens[place] == two.tokens[place]:
                run.equal += 1
            else:
                run.different += 1
                run.first = place - first if run.first < 0 else run.first

    def _state(self, number: int, run: Run) -> ShadowState:
        one, two, place = run.original, run.shadow, run.original.prompt_tokens + run.first
        words = [self._texts.piece(s.tokens[place]) for s in (one, two)] if run.first >= 0 else []
        return ShadowState(
            number=number,
            seq=one.seq,
            shadow=two.seq,
            tokens=one.output_tokens,
            equal=run.equal,
            different=run.different,
            first=run.first,
            words=words,
            drafted=one.drafted,
            original_pace=self._pace(one),
            shadow_pace=self._pace(two),
            done=run.done,
            ended=run.ended,
        )

    def _pace(self, sequence: Sequence) -> Pace:
        decoded = max(0, sequence.output_tokens - 1)  # the first one is the prompt's
        tokens, ns = self._alone.get(sequence.seq, (0, 0))
        if sequence.shadow or tokens >= min(_ENOUGH, (decoded + 1) // 2) > 0:
            return Pace(tokens=tokens, ns=ns)
        return Pace(tokens=decoded, ns=sequence.last_token - sequence.first_token, alone=False)
