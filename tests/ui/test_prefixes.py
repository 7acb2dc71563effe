"""The tree of the prefix cache against the real pool: paths spell the very tokens whose hash the pool finds."""

from __future__ import annotations

import hashlib
from array import array

import numpy as np
import pytest

from engine.block_pool import BlockPool
from engine.prefix_log import PrefixLog
from engine.records import NONE, SEAL, TABLE, Request, Sampling, decode, encode, pack
from engine.sequence import Sequence
from tests.engine.test_block_pool import sequence
from tests.support.fake_texts import LetterTexts
from tests.ui.test_mirror_engine import build as build_engine
from tests.ui.test_mirror_engine import disturb
from ui import prefix_tree
from ui.block_story import tell
from ui.mirror import Mirror
from ui.prefix_words import answer, missing, requests
from ui.prefixes import Prefixes
from ui.state import EngineState

A, B, C, D, E = 11, 12, 13, 14, 15  # hashes


def of(*entries: tuple[int, int, int, int, int], blocks: int = 16) -> EngineState:
    """A state whose pool has these records.SEAL entries; their text is the block's letter, four times."""
    state = EngineState(blocks)
    state.prefixes.change(pack(list(entries), SEAL), [chr(97 + block % 26) * 4 for block, *_ in entries])
    return state


def shape(state: EngineState) -> list[tuple[list[int], int]]:
    """Each run's blocks and its parent's first block."""
    tree = prefix_tree.build(state)
    firsts = [int(run.blocks[0]) for run in tree.runs]
    return sorted((run.blocks.tolist(), firsts[run.parent] if run.parent >= 0 else -1) for run in tree.runs)


# --- against the engine ---


def assert_tree(pool: BlockPool, running: list[Sequence], state: EngineState) -> None:
    """From the pool's own hashes: every findable block is reached by a path that spells its prefix, or has lost it."""
    size = pool.block_size
    tree, links = prefix_tree.build(state), state.prefixes.links
    findable = pool.findable()
    assert sorted(np.concatenate([run.blocks for run in tree.runs] or [[]]).tolist()) == sorted(findable)
    by_hash = {whole: block for block, whole in findable.items()}
    for number, run in enumerate(tree.runs):
        path = tree.path(number)
        top = tree.runs[path[0]]
        blocks = np.concatenate([tree.runs[one].blocks for one in path]).tolist()
        assert [int(links.up[block]) for block in blocks] == [-1, *blocks[:-1]]
        assert (tree.run_of[run.blocks] == number).all() and run.blocks[0] == blocks[-len(run.blocks)]
        if top.lost:
            assert top.start > 0
            continue
        text = "".join(prefix_tree.text_of(state, tree.runs[one]) for one in path)
        tokens, parent = [ord(letter) - 97 for letter in text], b""
        assert len(tokens) == size * len(blocks)
        for place, block in enumerate(blocks):
            own = array("I", tokens[place * size : (place + 1) * size])
            parent = hashlib.blake2b(parent + own.tobytes(), digest_size=32).digest()
            assert by_hash[parent] == block
        assert len(run.children) != 1
    held = prefix_tree.sharers(state, tree)
    for number, run in enumerate(tree.runs):
        holders = [s.seq for s in running if int(run.blocks[0]) in s.table]
        assert held.get(number, []) == holders
    assert sum(run.total for run in (tree.runs[n] for n in tree.roots)) == len(findable)


class Driven:
    """The real pool, used as a scheduler might and worse, and a state that is told of it in records alone."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.pool = BlockPool(40, 4)
        self.log = PrefixLog(self.pool, LetterTexts())
        self.state = EngineState(40, 4)
        self.live: list[Sequence] = []
        self.last = 0

    def turn(self) -> None:
        chance = self.rng.random()
        if chance < 0.45:
            self.admit()
        elif chance < 0.8 and self.live:
            self.compute(self.live[self.rng.integers(len(self.live))])
        elif chance < 0.96 and self.live:
            self.pool.truncate(self.live.pop(self.rng.integers(len(self.live))), 0)
        elif chance < 0.98:
            self.resize()
        elif chance < 0.985:
            self.pool.drop_cache()
            for s in self.live:
                s.sealed = 0
        elif chance < 0.988 and not self.live:
            self.pool.drop_cache()
            self.pool.rebuild(40, int(self.rng.choice([2, 4])))
        self.tell()

    def admit(self) -> None:
        rng, pool = self.rng, self.pool
        self.last += 1
        stem = [int(rng.integers(2))] * 9 + [int(rng.integers(2))] * 6
        s = sequence(self.last, stem[: rng.integers(1, 16)] + rng.integers(0, 3, rng.integers(1, 12)).tolist())
        hits = pool.lookup(s)
        need = -(-len(s.tokens) // pool.block_size)
        reserved = rng.random() < 0.2
        first = pool.first_fit(need) if reserved else -1
        if reserved and first >= 0:  # takes blocks wherever they are in the order of reuse
            pool.reserve(s, first, need)
            s.reserved = True
        elif need - len(hits) <= pool.available - sum(map(pool.is_cached, hits)):
            pool.attach(s, hits)
            s.sealed, s.computed = len(hits), len(hits) * pool.block_size
            pool.grow(s, need - len(hits))
        else:
            return
        self.live.append(s)

    def compute(self, s: Sequence) -> None:
        start, s.computed = s.computed, int(self.rng.integers(s.computed, len(s.tokens) + 1))
        self.pool.fill(s, start, s.computed)
        self.pool.seal(s)

    def resize(self) -> None:
        size = int(self.rng.integers(20, 60))
        for s in [s for s in self.live if any(block >= size for block in s.table)]:
            self.live.remove(s)
            self.pool.truncate(s, 0)
        self.pool.resize(size)

    def tell(self) -> None:
        pool, state = self.pool, self.state
        if state.num_blocks != pool.num_blocks:
            state.resize_blocks(pool.num_blocks, 0)
            state.prefixes.resize(pool.num_blocks)
        blocks, tables = pool.drain()
        state.change_blocks(blocks.tobytes(), 0)
        state.tables.apply(np.frombuffer(pack(tables, TABLE), TABLE))
        buffer, texts = self.log.drain([])
        state.prefixes.change(buffer, texts)
        state.running = [s.seq for s in self.live]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_tree_of_a_real_pool_driven_at_random(seed: int) -> None:
    driven, lost, branched, twins = Driven(seed), 0, 0, 0
    for _ in range(1_500):
        driven.turn()
        driven.log.check()
        driven.pool.check(driven.live)
        assert_tree(driven.pool, driven.live, driven.state)
        tree = prefix_tree.build(driven.state)
        lost += any(run.lost for run in tree.runs)
        branched += any(len(run.children) > 1 for run in tree.runs)
        findable = driven.pool.findable()
        twins += any(block not in findable for s in driven.live for block in s.table[: s.sealed])
    assert min(lost, branched, twins) > 20, (lost, branched, twins)


@pytest.mark.parametrize("seed", [3, 4])
def test_the_tree_of_a_real_engine_under_random_use(seed: int) -> None:
    rng = np.random.default_rng(seed)
    engine, mirror, number = build_engine(rng), Mirror(), 0
    mirror.apply(engine.keyframe())
    seen = {"lost": 0, "branches": 0, "deep": 0}
    was: dict[int, EngineState] = {}
    while mirror.live.step < 700:
        number = disturb(engine, rng, number)
        if engine.has_work and rng.random() < 0.9:
            mirror.apply(decode(encode(engine.step())))
        elif (record := engine.between()) is not None:
            mirror.apply(decode(encode(record)))
        else:
            continue
        engine.check()
        assert_tree(engine.pool, engine.scheduler.running, mirror.live)
        if mirror.live.step % 40 == 0:
            was[mirror.live.step] = mirror.live.copy()
        tree = prefix_tree.build(mirror.live)
        seen["lost"] += any(run.lost for run in tree.runs)
        seen["branches"] += any(run.children for run in tree.runs)
        seen["deep"] += any(len(run.blocks) > 2 for run in tree.runs)
    assert min(seen["branches"], seen["deep"]) > 50, seen
    for step, then in was.items():
        assert shape(mirror.state_at(step)) == shape(then)


def test_a_window_that_comes_late_has_the_tree_and_the_figures() -> None:
    engine, early = build_engine(np.random.default_rng(0)), Mirror()
    early.apply(engine.keyframe())
    for number in (1, 2):
        engine.submit(number, [1, 2, 3, 4] * 10, Request(number=number, max_tokens=4, sampling=Sampling(temperature=0)))
        while engine.has_work:
            early.apply(engine.step())
    late = Mirror()
    late.apply(decode(encode(engine.keyframe())))
    assert (late.live.prefixes.entries == early.live.prefixes.entries).all() and late.live.prefixes.count > 3
    use = late.live.prefixes.use
    assert use == early.live.prefixes.use and (use.requests, use.hits) == (2, 1)
    assert (use.looked_up, use.hit) == (80, 39)
    assert shape(late.live) == shape(early.live)
    block = int(prefix_tree.build(late.live).runs[0].blocks[0])
    assert tell(late.live, block).text == "bcdebcde"  # of a prompt, which nobody holds any more


# --- by hand ---


def test_chains_fold_and_branches_part() -> None:
    stem = [(0, 0, 1, A, 0), (1, 1, 1, B, A)]
    assert shape(of(*stem)) == [([0, 1], -1)]
    state = of(*stem, (5, 2, 1, C, B), (3, 2, 2, D, B), (9, 3, 2, E, D))
    assert shape(state) == [([0, 1], -1), ([3, 9], 0), ([5], 0)]
    tree = prefix_tree.build(state)
    assert sorted(prefix_tree.text_of(state, run) for run in tree.runs) == ["aaaabbbb", "ddddjjjj", "ffff"]


def test_evicting_cuts_a_branch_and_a_parent_that_returns_takes_it_up_again() -> None:
    state = of((0, 0, 1, A, 0), (1, 1, 1, B, A), (2, 2, 1, C, B))
    state.prefixes.links  # noqa: B018 - kept up to date from here on
    state.prefixes.change(pack([(1, 0, NONE, 0, 0)], SEAL), [""])
    assert shape(state) == [([0], -1), ([2], -1)]
    tree = prefix_tree.build(state)
    assert [run.lost for run in tree.runs] == [False, True]
    state.prefixes.change(pack([(7, 1, 4, B, A)], SEAL), ["hhhh"])
    assert shape(state) == [([0, 7, 2], -1)]
    state.prefixes.change(pack([(NONE, 0, NONE, 0, 0), (3, 0, 5, D, 0)], SEAL), ["", "dddd"])
    assert shape(state) == [([3], -1)] and state.prefixes.count == 1
    state.prefixes.resize(3)
    assert shape(state) == [] and state.prefixes.count == 0


def test_links_kept_equal_links_made_anew() -> None:
    rng, state = np.random.default_rng(1), EngineState(40)
    prefixes = state.prefixes
    prefixes.links  # noqa: B018
    where: dict[int, int] = {}  # hash → block
    for turn in range(4_000):
        block = int(rng.integers(40))
        old = prefixes.get(block)
        if old is not None and rng.random() < 0.6:
            del where[old.hash]
            prefixes.change(pack([(block, 0, NONE, 0, 0)], SEAL), [""])
        elif old is None:
            own = int(rng.integers(1, 60))
            if own in where:
                continue
            where[own] = block  # a hash's parent is always the same
            prefixes.change(pack([(block, own.bit_length(), turn, own, own // 2)], SEAL), ["x"])
        fresh = prefixes.copy().links
        assert (prefixes.links.up == fresh.up).all() and (prefixes.links.depth == fresh.depth).all()
        wanted = [-1] * 40
        for own, at in where.items():
            wanted[at] = where.get(own // 2, -1)
        assert prefixes.links.up.tolist() == wanted


def test_what_has_no_room_is_counted() -> None:
    entries = [(0, 0, 1, 1, 0)]
    entries += [(block, 1, block, 1 + block, 1) for block in range(1, 40)]
    entries += [(40, 2, 40, 900, 31), (41, 3, 40, 901, 900)]
    state = of(*entries, blocks=64)
    state.since[17] = 99
    tree = prefix_tree.build(state)
    shown = prefix_tree.rows(tree)
    inner = [row for row in shown if row.level == 1 and row.run >= 0]
    (more,) = [row for row in shown if row.run < 0]
    assert len(inner) == prefix_tree.INNER and more.hidden == 39 - prefix_tree.INNER
    assert more.blocks + sum(tree.runs[row.run].total for row in inner) + 1 == 42
    firsts = [int(tree.runs[row.run].blocks[0]) for row in inner]
    assert 30 in firsts and 17 in firsts and firsts == sorted(firsts)  # the largest, the last used; in order of arrival
    assert [row.last for row in shown] == [True, *[False] * len(inner), True]
    wanted = frozenset({int(tree.run_of[25])})
    kept = [row.run for row in prefix_tree.rows(tree, wanted=wanted)]
    assert wanted <= set(kept)
    full = prefix_tree.filling(tree, 27)
    assert prefix_tree.filling(tree, 3) == shown and 12 < len(full) <= 27 and prefix_tree.filling(tree, 99)[-1].run >= 0
    wide = prefix_tree.rows(tree, {tree.runs[tree.roots[0]].hash: 100})
    assert len(wide) == 40 and all(row.run >= 0 for row in wide)


def test_words_that_all_branches_begin_with_are_counted() -> None:
    state = EngineState(8)
    texts = ["You are", " a tool.\nUser:\nsay yes", " a tool.\nUser:\nsay no", " a tool.\nUser:\nsay no more"]
    entries = [(0, 0, 1, A, 0), (1, 1, 1, B, A), (2, 1, 2, C, A), (3, 2, 2, D, C)]
    state.prefixes.change(pack(entries, SEAL), texts)
    tree = prefix_tree.build(state)
    alike = prefix_tree.alike(state, tree, prefix_tree.rows(tree))
    assert [alike.get(int(tree.run_of[block]), 0) for block in (0, 1, 2)] == [0, 19, 19]
    assert texts[1][19:] == "yes" and texts[2][19:] == "no"


def test_thousands_of_branches_stay_a_screenful() -> None:
    entries = [(block, 0, block, block + 1, 0) for block in range(3_000)]
    entries += [(3_000 + block, 1, block, 10_000 + block, block + 1) for block in range(3_000)]
    state = of(*entries, blocks=6_000)
    shown = prefix_tree.rows(prefix_tree.build(state))
    assert len(shown) == prefix_tree.TOP + 1
    assert shown[-1].hidden == 3_000 - prefix_tree.TOP and shown[-1].blocks == 6_000 - 2 * prefix_tree.TOP
    deep = [(block, block, 1, block + 1, block) for block in range(5_000)]
    assert [len(run.blocks) for run in prefix_tree.build(of(*deep, blocks=5_000)).runs] == [5_000]


def test_an_empty_cache_has_no_tree() -> None:
    tree = prefix_tree.build(EngineState(8))
    assert tree.runs == [] and prefix_tree.rows(tree) == []
    assert Prefixes(4).get(9) is None


# --- words ---


def test_the_answer_says_whether_it_works_and_what_stays() -> None:
    engine, mirror = build_engine(np.random.default_rng(0)), Mirror()
    mirror.apply(engine.keyframe())
    assert missing(mirror.live)[0] == "No full block yet"

    def send(number: int) -> None:
        request = Request(number=number, max_tokens=4, sampling=Sampling(temperature=0))
        engine.submit(number, [1, 2, 3, 4] * 10, request)
        while engine.has_work:
            mirror.apply(engine.step())

    send(1)
    verdict, held = answer(mirror.live)
    assert verdict == "Prefix caching is on; the first prompt (40 tokens) had nothing to find yet"
    assert held == "Nothing runs: KV used is 0, yet 5 blocks (40 tokens) stay cached"
    send(2)
    verdict, _ = answer(mirror.live)
    found = "39 of 80 tokens asked for were found"  # the last one is computed again, for its logits
    assert verdict == f"Prefix caching works: {found}"
    assert requests(mirror.live) == "1 of 2 requests hit"
    engine.change({"prefix_cache": False})
    mirror.apply(engine.between())
    assert answer(mirror.live) == (f"Prefix caching is off; before, {found}", "")
    assert missing(mirror.live)[0] == "The prefix cache is off" and not mirror.live.prefixes.count
    engine.change({"prefix_cache": True, "allocation": "reserved"})
    mirror.apply(engine.between())
    assert missing(mirror.live)[0] == "Reserved allocation shares nothing"
    assert missing(EngineState())[0] == "No pool yet"
