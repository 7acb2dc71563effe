"""The least that a reader must do to follow an engine: apply records one by one, end where a keyframe stands.

Plain Python on purpose, and written from the contract alone, so that it can judge both the engine's records and
faster readers of them.
"""

from __future__ import annotations

from msgspec.structs import asdict

from engine.records import (
    BLOCK,
    COPY,
    FREE,
    HOST,
    NONE,
    ROW,
    SEAL,
    TABLE,
    TOKEN,
    Aborted,
    Admitted,
    Between,
    Dropped,
    Finished,
    Forked,
    Hypothesis,
    Keyframe,
    Preempted,
    Searched,
    StepRecord,
    Submitted,
    unpack,
)

_NOBODYS = (NONE, 0, 0)  # a host block: owner, index, filled


class Applier:
    """Follows from an engine's very first record. `outputs`: tokens of every sequence ever seen; `ended`: reasons."""

    def __init__(self, first: Keyframe):
        assert not first.sequences
        self.block_size = first.block_size
        self.settings = first.settings
        self.step = first.step
        self.blocks: list[tuple[int, int, int, int]] = [(FREE, 0, 0, NONE)] * first.settings.kv_blocks
        self.host = [_NOBODYS] * first.settings.swap_blocks
        self.tables: dict[int, list[int]] = {}
        self.sealed: dict[int, tuple] = {}  # by block: the rest of records.SEAL, and the text
        self.live: dict[int, dict] = {}  # by seq; the fields of records.SequenceState
        self.outputs: dict[int, list[int]] = {}
        self.limits: dict[int, int] = {}
        self._pieces: dict[int, list[str]] = {}
        self.texts: dict[int, str] = {}
        self.ended: dict[int, str] = {}
        self.found: dict[int, list[Hypothesis]] = {}  # by number: of beam searches that are over
        self.copies = 0

    def apply(self, record: StepRecord | Between) -> None:
        self.settings = record.settings
        self.block_size = record.settings.block_size
        size = record.settings.kv_blocks
        self.blocks = self.blocks[:size] + [(FREE, 0, 0, NONE)] * (size - len(self.blocks))
        more = record.settings.swap_blocks - len(self.host)
        self.host = self.host[: record.settings.swap_blocks] + [_NOBODYS] * more
        for block, *entry in unpack(record.host, HOST).tolist():
            self.host[block] = tuple(entry)
        for (block, *seal), text in zip(unpack(record.sealed, SEAL).tolist(), record.sealed_text, strict=True):
            if block == NONE:
                self.sealed.clear()
            elif seal[2]:
                self.sealed[block] = (*seal, text)
            else:
                del self.sealed[block]
        for event in record.events:
            if not isinstance(event, Finished | Searched):
                self._event(event)
        copied = unpack(record.copies, COPY).tolist()
        self.copies += len(copied)
        for seq, index, block in unpack(record.tables, TABLE).tolist():
            table = self.tables.setdefault(seq, [])
            if block == NONE:
                del table[index:]
            elif index < len(table):
                assert (seq, table[index], block) in copied, "an entry changes by copy-on-write alone"
                table[index] = block
            else:
                assert index == len(table), "tables grow at their end"
                table.append(block)
        self.tables = {seq: table for seq, table in self.tables.items() if table}
        for block, *values in unpack(record.blocks, BLOCK).tolist():
            self.blocks[block] = tuple(values)
        if isinstance(record, StepRecord):
            assert record.step == self.step + 1
            self.step = record.step
            self._work(record)
        for event in record.events:
            if isinstance(event, Finished | Searched):
                self._event(event)
        states = [state for state, *_ in self.blocks]
        assert (record.free, record.cached, record.used) == tuple(states.count(s) for s in range(3))
        statuses = [s["status"] for s in self.live.values()]
        assert (record.running, record.waiting) == (statuses.count("running"), statuses.count("waiting"))

    def expect(self, keyframe: Keyframe) -> None:
        """Assert that everything is as `keyframe` says."""
        assert keyframe.block_size == self.block_size
        assert keyframe.step == self.step and keyframe.settings == self.settings
        states = list(keyframe.state)
        counts, fills, owners = (
            unpack(buffer, dtype).tolist()
            for buffer, dtype in ((keyframe.refcount, "<u2"), (keyframe.filled, "<u2"), (keyframe.owner, "<u4"))
        )
        assert self.blocks == list(zip(states, counts, fills, owners, strict=True))
        host = (
            unpack(buffer, dtype).tolist()
            for buffer, dtype in (
                (keyframe.host_owner, "<u4"), (keyframe.host_index, "<u4"), (keyframe.host_filled, "<u2")
            )
        )  # fmt: skip
        assert self.host == list(zip(*host, strict=True))
        seals = zip(unpack(keyframe.sealed, SEAL).tolist(), keyframe.sealed_text, strict=True)
        assert self.sealed == {block: (*seal, text) for (block, *seal), text in seals}
        flat = unpack(keyframe.table_blocks, "<u4").tolist()
        tables = {}
        lengths = unpack(keyframe.table_lengths, "<u4").tolist()
        for seq, length in zip(unpack(keyframe.table_seqs, "<u4").tolist(), lengths, strict=True):
            tables[seq], flat = flat[:length], flat[length:]
        assert not flat and self.tables == {seq: table for seq, table in tables.items() if table}
        assert self.live == {s.seq: asdict(s) for s in keyframe.sequences}
        for status in ("running", "waiting"):
            mine = [s for s in self.live.values() if s["status"] == status]
            mine.sort(key=lambda s: (s["priority"], s["seq"]))  # sequence numbers count arrivals
            assert [s["seq"] for s in mine] == getattr(keyframe, status)

    def _event(self, event: object) -> None:
        match event:
            case Submitted():
                self.live[event.seq] = {
                    "seq": event.seq,
                    "number": event.number,
                    "status": "waiting",
                    "prompt_tokens": event.prompt_tokens,
                    "known": event.prompt_tokens,
                    "computed": 0,
                    "max_tokens": event.max_tokens,
                    "limit": 0,
                    "priority": event.priority,
                    "arrival": event.arrival,
                    "first_token": 0,
                    "last_token": 0,
                    "cached_tokens": 0,
                    "preemptions": 0,
                    "drafted": 0,
                    "accepted": 0,
                    "reserved": False,
                    "swapped": 0,
                    "prompt": event.prompt,
                    "output": "",
                    "label": event.label,
                    "index": event.index,
                    "of": event.of,
                    "beams": event.beams,
                    "shadow": event.shadow,
                }
                self.outputs[event.seq], self._pieces[event.seq] = [], []
            case Admitted():
                sequence = self.live[event.seq]
                assert sequence["status"] == "waiting" and event.again == (sequence["limit"] > 0)
                sequence["status"] = "running"
                self.limits[event.seq] = sequence["limit"] = event.limit
                sequence["cached_tokens"] = event.cached_tokens
                sequence["computed"] = event.cached_tokens + event.returned
                assert event.returned <= sequence["swapped"]
                sequence["swapped"] = 0
                sequence["reserved"] = event.reserved
            case Forked():
                sequence, parent = self.live[event.seq], self.live[event.parent]
                assert parent["status"] == "running" and parent["number"] == sequence["number"]
                if sequence["status"] == "waiting":
                    assert not sequence["limit"] and not self.outputs[event.seq]
                    sequence["status"] = "running" if event.running else "waiting"
                    self.limits[event.seq] = sequence["limit"] = event.limit
                sequence["computed"], sequence["known"] = event.computed, event.known
                output = event.known - sequence["prompt_tokens"]
                self.outputs[event.seq] = self.outputs[event.parent][:output]
                self._pieces[event.seq] = self._pieces[event.parent][:output]
                sequence["output"] = "".join(self._pieces[event.seq])
            case Preempted():
                sequence = self.live[event.seq]
                assert sequence["status"] == "running" and event.lost + event.swapped == sequence["computed"]
                sequence["swapped"] = event.swapped
                sequence["status"] = "waiting"
                sequence["computed"] = 0
                sequence["reserved"] = False
                sequence["preemptions"] += 1
            case Dropped():
                sequence = self.live[event.seq]
                assert sequence["status"] == "waiting" and event.lost == sequence["swapped"] > 0
                sequence["swapped"] = 0
            case Aborted():
                del self.live[event.seq]
                self.ended[event.seq] = "aborted"
            case Searched():
                assert self.live[event.seq]["number"] == event.number and event.found
                self.found[event.number] = event.found
            case Finished():
                sequence = self.live.pop(event.seq)
                assert event.output_tokens == len(self.outputs[event.seq])
                assert sequence["number"] == event.number
                self.texts[event.seq] = sequence["output"] + event.tail
                self.ended[event.seq] = event.reason

    def _work(self, record: StepRecord) -> None:
        for seq, _, scheduled, context, known, drafted, accepted, _ in unpack(record.rows, ROW).tolist():
            sequence = self.live[seq]
            assert sequence["status"] == "running" or not scheduled
            sequence["computed"], sequence["known"] = context, known
            sequence["drafted"] += drafted
            sequence["accepted"] += accepted
        tokens = unpack(record.emitted, TOKEN).tolist()
        for (seq, position, token, _), piece in zip(tokens, record.text, strict=True):
            sequence = self.live[seq]
            assert position == sequence["prompt_tokens"] + len(self.outputs[seq])
            self.outputs[seq].append(token)
            self._pieces[seq].append(piece)
            sequence["output"] += piece
            sequence["first_token"] = sequence["first_token"] or record.end_clock
            sequence["last_token"] = record.end_clock
