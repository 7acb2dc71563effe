"""Invented tokens for the synthetic stream: words, drafts with p, q and draw, and verdicts that follow the rule.

Sequences differ as requests do: one in three is greedy and draws nothing, one in three samples after a draft that was
sure of itself (q = 1), and one in three after a draft that was drawn from a distribution of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.records import ACCEPTED, BONUS, DISCARDED, DRAFT, REJECTED, RESAMPLED, TOKEN

_TEXT = (
    "the sea was calm and we read on until light of morning came in over boats that lay at rest by an old wall "
    "where he had once told her about return value for each row"
)
WORDS = (*(" " + word for word in _TEXT.split()), ",", ".", "\n")


def sentence(seq: int) -> str:
    """The beginning of a prompt."""
    return "Tell me about" + "".join(WORDS[(seq * 7 + 3 * i) % (len(WORDS) - 3)] for i in range(8))


@dataclass(slots=True)
class Spoken:
    emitted: bytes
    text: list[str]
    drafts: bytes
    draft_text: list[str]
    kept: dict[int, list[str]]  # seq → its new pieces


def speak(rng: np.random.Generator, owing: list[tuple[int, int, int]]) -> Spoken:
    """Draw tokens for each (seq, known tokens, drafted): accept with min(1, p/q), or where p is the largest (greedy);
    stop at the first rejection."""
    if not owing:
        return Spoken(b"", [], b"", [], {})
    seqs, known, drafted = np.array(owing, np.int64).T
    width = int(drafted.max())
    lane = np.arange(width + 1)
    shape = (len(owing), width + 1)
    words = rng.integers(0, len(WORDS), shape)
    p, draw = rng.beta(2, 1, shape), rng.random(shape)
    q = np.where((seqs % 3 == 2)[:, None], rng.uniform(0.3, 1.0, shape), 1.0)
    greedy = (seqs % 3 == 0)[:, None] & np.ones(shape, bool)
    passes = np.where(greedy, p > 0.5, draw < np.minimum(1, p / q)) & (lane < drafted[:, None])
    accepted = np.logical_and.accumulate(passes, axis=1).sum(1)

    # tokens: the accepted ones, then one more
    told = lane <= accepted[:, None]
    origin = np.where(lane < accepted[:, None], 1, np.where(accepted == drafted, 3, 2)[:, None])
    origin[drafted == 0] = 0
    tokens = np.empty(int(told.sum()), TOKEN)
    tokens["seq"] = np.broadcast_to(seqs[:, None], shape)[told]
    tokens["position"] = (known[:, None] + lane)[told]
    tokens["token"], tokens["origin"] = words[told], origin[told]
    text = [WORDS[w] for w in words[told].tolist()]
    kept: dict[int, list[str]] = {}
    for seq, piece in zip(tokens["seq"].tolist(), text, strict=True):
        kept.setdefault(seq, []).append(piece)

    # drafts: one entry for each drafted token, and the one that ended the pass
    verdict = np.where(lane < accepted[:, None], ACCEPTED, np.where(lane == accepted[:, None], REJECTED, DISCARDED))
    last = lane == drafted[:, None]
    ending = np.where(accepted == drafted, BONUS, RESAMPLED)
    verdict = np.where(last, ending[:, None], verdict)
    shown = (lane <= drafted[:, None]) & (drafted > 0)[:, None]
    drafts = np.empty(int(shown.sum()), DRAFT)
    drafts["seq"] = np.broadcast_to(seqs[:, None], shape)[shown]
    drafts["position"] = np.where(last, (known + accepted)[:, None], known[:, None] + lane)[shown]
    ids = np.where(last, np.take_along_axis(words, accepted[:, None], 1), words + (verdict == REJECTED))
    ids %= len(WORDS)
    drafts["token"], drafts["verdict"] = ids[shown], verdict[shown]
    drafts["p"], drafts["q"] = p[shown], np.where(last, 0, q)[shown]
    drafts["draw"] = np.where(greedy | (verdict == DISCARDED), np.nan, draw)[shown]
    return Spoken(tokens.tobytes(), text, drafts.tobytes(), [WORDS[w] for w in ids[shown].tolist()], kept)
