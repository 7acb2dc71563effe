"""Whether two models speak of the same tokens: id by id, what each stands for.

A draft is passed on as ids, so a draft model of another vocabulary would propose nonsense, slowly and without an error.
A size alone says nothing: checkpoints of one family are padded to different sizes, and families differ at equal ones.
"""

from __future__ import annotations

from engine.tokenizer import Tokenizer


def difference(ours: Tokenizer, theirs: Tokenizer) -> str | None:
    """The first id that isn't the same token in both, in words; None: they are one vocabulary."""
    for token in range(max(ours.end, theirs.end)):
        one, other = ours.spelling(token), theirs.spelling(token)
        if one != other:
            return f"token {token:,} is {_words(one)} in the target and {_words(other)} in the draft model"
    return None


def _words(spelling: bytes | None) -> str:
    return "nothing" if spelling is None else repr(spelling.decode(errors="backslashreplace"))
