"""Records of a request with several lanes, made by hand: a step is the tokens that its lanes get, and who forks."""

from __future__ import annotations

from engine import records as r
from engine.config import LiveSettings
from engine.records import Hypothesis, StepRecord

PROMPT_TOKENS = 20
END = 2  # token

Tokens = dict[int, tuple[int, str]]  # lane: token, text


class Lanes:
    """One request, number `number`, whose lanes are the sequences from `first` on."""

    def __init__(self, count: int, beams: bool = True, number: int = 7, first: int = 40):
        self.number, self.first, self.count = number, first, count
        self.beams = count if beams else 0
        self.step = 0

    def submitted(self) -> list[r.Event]:
        return [
            r.Submitted(
                seq=self.first + index,
                number=self.number,
                prompt_tokens=PROMPT_TOKENS,
                max_tokens=16,
                priority=0,
                arrival=0,
                prompt="Why is the sky blue?",
                label="test",
                index=index,
                of=self.count,
                beams=self.beams,
            )
            for index in range(self.count)
        ]

    def fork(self, lane: int, parent: int, output: int) -> r.Forked:
        known = PROMPT_TOKENS + output
        return r.Forked(
            seq=self.first + lane,
            parent=self.first + parent,
            known=known,
            computed=known - 1,
            shared=1,
            running=True,
            limit=64,
        )

    def record(
        self,
        tokens: Tokens,
        position: int,
        events: list[r.Event] = (),  # type: ignore[assignment]
        tables: list[tuple[int, int, int]] = (),  # type: ignore[assignment]
        copies: list[tuple[int, int, int]] = (),  # type: ignore[assignment]
    ) -> StepRecord:
        """The next step: output tokens at one position; table and copy entries begin with a lane."""
        self.step += 1
        at = PROMPT_TOKENS + position
        emitted = [(self.first + lane, at, token, r.SAMPLED) for lane, (token, _) in tokens.items()]
        return StepRecord(
            v=r.SCHEMA, step=self.step, start=self.step, clock=self.step, end_clock=self.step, timing=r.Timing(),
            rows=b"", blocks=b"", tables=r.pack([(self.first + lane, *rest) for lane, *rest in tables], r.TABLE),
            events=list(events), bound="no_work", running=self.count, waiting=0, used=0, cached=0, free=64,
            emitted=r.pack(emitted, r.TOKEN), text=[text for _, text in tokens.values()], drafts=b"", draft_text=[],
            settings=LiveSettings(kv_blocks=64), budget=r.StepBudget(tokens=64),
            copies=r.pack([(self.first + lane, *rest) for lane, *rest in copies], r.COPY),
        )  # fmt: skip

    def over(self, *found: tuple[list[int], str, float]) -> list[r.Event]:
        """The search's end: token ids, text and log-probability of each, best first."""
        hypotheses = [
            Hypothesis(token_ids=ids, text=text, log_probability=p, score=p / len(ids), reason="stop")
            for ids, text, p in found
        ]
        ends: list[r.Event] = [
            r.Finished(seq=self.first + lane, number=self.number, reason="beams", output_tokens=1)
            for lane in range(self.count)
        ]
        return [r.Searched(seq=self.first, number=self.number, found=hypotheses), *ends]


FOUND = (
    ([10, 20, 31, END], "It is red", -1.5),
    ([10, 20, 30, END], "It is blue", -2.0),
    ([11, END], "The", -3.0),
)


def sky() -> list[StepRecord]:
    """Three beams over three positions, prompt and first block shared. Lane 2 dies after its first token and continues
    lane 0, which copies the block that both would write into; lane 1 dies after its second and continues lane 0 too."""
    lanes = Lanes(3)
    prompt = [(lane, 0, 5) for lane in range(3)] + [(lane, 1, 6) for lane in range(3)]
    return [
        lanes.record(
            {0: (10, "It"), 1: (11, "The"), 2: (12, "Sky")},
            0,
            [*lanes.submitted(), lanes.fork(1, 0, 0), lanes.fork(2, 0, 0)],
            prompt,
        ),
        lanes.record(
            {0: (20, " is"), 1: (21, " sky"), 2: (22, " was")},
            1,
            [lanes.fork(2, 0, 1)],
            [(0, 1, 7), (2, 1, 8)],
            [(0, 6, 7), (2, 6, 8)],
        ),
        lanes.record({0: (30, " blue"), 1: (31, " red"), 2: (32, " not")}, 2, [lanes.fork(1, 0, 2)]),
        lanes.record(
            {},
            3,
            lanes.over(*FOUND),
            [(lane, 0, r.NONE) for lane in range(3)],
        ),
    ]
