"""An engine without a window, for the command line: start it, serve requests to the end, add up what came.

Reads records and nothing else, as the window does. Progress goes to standard error, so that standard output
holds results alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from engine import records as r
from engine.client import EngineClient
from engine.config import EngineConfig, LiveSettings
from engine.formulas import MIB

PAUSE = 0.2  # s between looks at a silent engine; Ctrl-C is answered within it on every platform
BAR = 30  # characters
LINES = 5  # of progress, where standard error is no terminal


class EngineFailed(Exception):
    """The engine died; the message is for the user."""


@dataclass
class Answer:
    """What became of one request, or of one of its samples. Times are on the engine clock, ns; 0 = not reached.

    Of a beam search there is one for all its lanes: its counts are theirs together, its tokens those of the best
    sequence in `found`.
    """

    number: int
    index: int = 0  # of the sample
    prompt_tokens: int = 0
    cached_tokens: int = 0
    token_ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    finish_reason: str = ""
    error: str = ""
    arrival: int = 0
    admitted: int = 0
    first_token: int = 0
    last_token: int = 0
    preemptions: int = 0
    passes: int = 0  # decode passes of the model, verifications included
    drafted: int = 0
    examined: int = 0  # accepted or rejected; drafts after a rejection aren't looked at
    accepted: int = 0
    found: list[r.Hypothesis] = field(default_factory=list)  # by a beam search, best first

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def ended(self) -> bool:
        return bool(self.finish_reason)


class Answers:
    """Adds records up into one `Answer` a request number, and a further one for each further sample.

    Attributes:
        by_number: of each request the only answer, or that of its first sample.
        samples: of each request all of them.
        left: answers that haven't ended.
    """

    def __init__(self, numbers: Iterable[int]):
        self.by_number = {number: Answer(number) for number in numbers}
        self.samples = {number: [answer] for number, answer in self.by_number.items()}
        self._by_seq: dict[int, Answer] = {}
        self._lanes: set[int] = set()  # sequences that are lanes of a beam search
        self.left = len(self.by_number)

    def apply(self, message: r.Message) -> None:
        match message:
            case r.StepRecord():
                # arrivals and admissions come before the tokens, ends after them
                ends = [event for event in message.events if isinstance(event, r.Searched | r.Finished)]
                for event in message.events:
                    self._event(event, message.clock)
                self._rows(message)
                self._tokens(message)
                for event in ends:
                    self._searched(event) if isinstance(event, r.Searched) else self._finished(event)
            case r.Between():
                for event in message.events:
                    self._event(event, message.clock)
            case r.Refused():
                self._end(self.by_number.get(message.number), "refused", message.message)
            case r.Gap():
                raise EngineFailed(
                    f"records of steps {message.first} to {message.last} were lost because this program was too "
                    "slow to read them; the answers would be incomplete. Run it again"
                )

    def _event(self, event: r.Event, clock: int) -> None:
        match event:
            case r.Submitted() if event.number in self.by_number:
                answer = self._by_seq[event.seq] = self._answer(event)
                answer.prompt_tokens, answer.arrival = event.prompt_tokens, event.arrival
            case r.Admitted() if event.seq in self._by_seq:
                answer = self._by_seq[event.seq]
                if not event.again:
                    answer.admitted, answer.cached_tokens = clock, event.cached_tokens
            case r.Preempted() if event.seq in self._by_seq:
                self._by_seq[event.seq].preemptions += 1
            case r.Forked() if event.seq in self._by_seq:
                answer = self._by_seq[event.seq]
                answer.admitted = answer.admitted or clock  # with the blocks of the sequence that it forks from
            case r.Aborted() if event.seq in self._by_seq:
                self._end(self._by_seq.pop(event.seq), "aborted", event.reason)

    def _answer(self, event: r.Submitted) -> Answer:
        """Lanes of a beam search have one between them, samples one each."""
        if event.beams:
            self._lanes.add(event.seq)
            return self.by_number[event.number]
        samples = self.samples[event.number]
        if event.index == len(samples):
            samples.append(Answer(event.number, event.index))
            self.left += 1
        return samples[event.index]

    def _rows(self, record: r.StepRecord) -> None:
        rows = r.unpack(record.rows, r.ROW)
        for seq, kind, drafted, accepted in rows[["seq", "kind", "drafted", "accepted"]].tolist():
            if answer := self._by_seq.get(seq):
                answer.passes += kind == r.DECODE
                answer.drafted += drafted
                answer.accepted += accepted
        if record.drafts:
            drafts = r.unpack(record.drafts, r.DRAFT)
            looked = drafts[(drafts["verdict"] == r.ACCEPTED) | (drafts["verdict"] == r.REJECTED)]
            for seq in looked["seq"].tolist():
                if answer := self._by_seq.get(seq):
                    answer.examined += 1

    def _tokens(self, record: r.StepRecord) -> None:
        emitted = r.unpack(record.emitted, r.TOKEN)
        for (seq, token), piece in zip(emitted[["seq", "token"]].tolist(), record.text, strict=True):
            if answer := self._by_seq.get(seq):
                if seq not in self._lanes:
                    answer.token_ids.append(token)
                    answer.pieces.append(piece)
                answer.first_token = answer.first_token or record.end_clock
                answer.last_token = record.end_clock

    def _searched(self, event: r.Searched) -> None:
        answer = self._by_seq.get(event.seq)
        if answer is not None and event.found:
            best = event.found[0]
            answer.found, answer.token_ids, answer.pieces = event.found, best.token_ids, [best.text]
            self._end(answer, best.reason)

    def _finished(self, event: r.Finished) -> None:
        answer = self._by_seq.pop(event.seq, None)
        if answer is not None and not answer.ended:
            answer.pieces.append(event.tail)
            self._end(answer, event.reason)

    def _end(self, answer: Answer | None, reason: str, error: str = "") -> None:
        if answer is not None and not answer.ended:
            answer.finish_reason, answer.error = reason, error
            self.left -= 1


@contextmanager
def running(config: EngineConfig, command: str) -> Iterator[EngineClient]:
    """An engine that is ready; gone when the block is left, however that is. Raises EngineFailed."""
    client = EngineClient(config)
    progress = Progress(command)
    try:
        while client.ready is None:
            client.wait(PAUSE)
            for message in client.poll(limit=1):
                if isinstance(message, r.Loading):
                    progress.show(message)
                check(message)
        progress.clear()
        for notice in client.ready.notices:
            tell(command, notice)
        yield client
    finally:
        progress.clear()
        client.close()
        client.join()


def serve(
    client: EngineClient,
    requests: list[r.Request],
    command: str,
    seen: Callable[[r.Message, Answers], None] | None = None,
) -> Answers:
    """Hand all requests over together and read until each has ended. `seen` is called with every message."""
    answers = Answers(request.number for request in requests)
    client.send(r.Pause(id=client.next_id()))  # so that all of them arrive at one moment of the engine's clock
    for request in requests:
        client.send(r.Submit(id=client.next_id(), request=request))
    client.send(r.Resume(id=client.next_id()))
    while answers.left:
        client.wait(PAUSE)
        for message in client.poll():
            check(message)
            if isinstance(message, r.Notice):
                tell(command, message.message)
            answers.apply(message)
            if seen is not None:
                seen(message, answers)
    return answers


def change(client: EngineClient, changes: dict[str, int | float | bool | str]) -> LiveSettings:
    """Change live settings and wait until they are in force. Raises EngineFailed with the refusal."""
    command = r.Change(id=client.next_id(), changes=changes)
    client.send(command)
    while True:
        client.wait(PAUSE)
        for message in client.poll():
            check(message)
            if isinstance(message, r.Ack) and message.id == command.id:
                if not message.ok or message.settings is None:
                    raise EngineFailed(message.message)
                return message.settings


def check(message: r.Message) -> None:
    """Raises EngineFailed when the engine is gone."""
    if isinstance(message, r.Died):
        raise EngineFailed(message.reason + _last_words(message.detail))
    if isinstance(message, r.Ended):
        raise EngineFailed("The engine was stopped.")


def _last_words(detail: str) -> str:
    """What a crashed engine printed where that was asked for; else how to ask for it."""
    if os.environ.get("SERVESCOPE_DEBUG"):
        return f"\n{detail}" if detail else ""
    # a traceback says no more than the reason to whoever isn't going to mend the code
    return "" if not detail or "Traceback" in detail else " (SERVESCOPE_DEBUG=1 shows what it printed.)"


def tell(command: str, text: str) -> None:
    """One line to the user, beside the results."""
    print(f"servescope {command}: {text}", file=sys.stderr)


class Progress:
    """A bar on a terminal; elsewhere a few lines, and only while something is fetched."""

    def __init__(self, command: str):
        self._command = command
        self._terminal = sys.stderr.isatty()
        self._drawn = False
        self._told = (-1, "")

    def show(self, loading: r.Loading) -> None:
        share = loading.done / loading.total if loading.total else 0.0
        if self._terminal:
            bar = ("█" * round(share * BAR)).ljust(BAR, "░") if loading.total else ""
            size = f" {loading.done / MIB:,.0f} of {loading.total / MIB:,.0f} MiB" if _is_bytes(loading) else ""
            print(f"\r\033[K{loading.stage} {bar}{size}", end="", file=sys.stderr, flush=True)
            self._drawn = True
        elif loading.stage.startswith("fetching"):
            step = (int(share * LINES), loading.stage)
            if step != self._told:
                self._told = step
                tell(self._command, f"{loading.stage}: {share:.0%}" if loading.total else loading.stage)

    def clear(self) -> None:
        if self._drawn:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self._drawn = False


def _is_bytes(loading: r.Loading) -> bool:
    return loading.unit == "bytes" and loading.total >= MIB
