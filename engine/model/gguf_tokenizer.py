"""A tokenizers.Tokenizer out of a GGUF header: byte-level BPE ("gpt2") and SentencePiece BPE ("llama").

GGUF names how text is cut before merging (`tokenizer.ggml.pre`) but doesn't hold the rule; the rules are here.
An unknown name is refused: a wrong cut gives plausible but wrong ids. Knows nothing of chats or streams.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from engine.model.gguf_metadata import Value
from engine.model.problem import ModelProblem

# tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4


@dataclass(frozen=True)
class Cut:
    """How a byte-level tokenizer cuts text: patterns applied one after the other, each match its own piece."""

    patterns: tuple[str, ...]
    add_bos: bool = False  # where the file doesn't say
    whole_words: bool = False  # a piece that is a token is taken as it is, without merging
    nfc: bool = False


_CONTRACTIONS = r"'s|'t|'re|'ve|'m|'ll|'d"
_ANY_CASE = rf"(?i:{_CONTRACTIONS})"
_GPT2 = _CONTRACTIONS + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

_GPT2_CUT = Cut((_GPT2,))
_SINGLE_DIGITS = Cut((r"\p{N}", _GPT2))
_LLAMA3 = Cut((f"{_ANY_CASE}|{_LETTERS}|\\p{{N}}{{1,3}}|{_REST}",), add_bos=True, whole_words=True)
_QWEN2 = Cut((f"{_ANY_CASE}|{_LETTERS}|\\p{{N}}|{_REST}",), nfc=True)
_TEKKEN = Cut(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    add_bos=True,
    whole_words=True,
)
_DEFAULT = Cut((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))

CUTS = {
    "default": _DEFAULT,
    "gpt-2": _GPT2_CUT,
    "gpt2": _GPT2_CUT,
    "smollm": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "tekken": _TEKKEN,
}


@dataclass(frozen=True)
class GgufTokenizer:
    tokenizer: Tokenizer
    eos_ids: frozenset[int]
    bos_token: str
    eos_token: str
    chat_template: str | None


def build(values: dict[str, Value], source: str) -> GgufTokenizer:
    """`values`: the header's key-values; `source` names the file in messages. Raises ModelProblem."""
    try:
        return _build(values, source)
    except ModelProblem:
        raise
    except Exception as error:  # values of any type and order, given to a library that raises bare Exception
        why = str(error) or type(error).__name__
        raise ModelProblem(f"the tokenizer in {source} is broken ({why}); fetch the file again") from error


def _build(values: dict[str, Value], source: str) -> GgufTokenizer:
    kind = values.get("tokenizer.ggml.model")
    tokens = values.get("tokenizer.ggml.tokens")
    if kind is None or not isinstance(tokens, list) or not tokens:
        raise ModelProblem(f"{source} holds no tokenizer; take a GGUF file converted together with its tokenizer")
    if kind == "gpt2":
        tokenizer, add_bos = _byte_level(values, tokens, source)
    elif kind == "llama":
        tokenizer, add_bos = _sentencepiece(values, tokens, source), True
    else:
        raise ModelProblem(f"{source} has a tokenizer of kind '{kind}'; 'gpt2' and 'llama' can be read")
    _add_special(tokenizer, values, tokens)
    bos, eos = (_token_id(values, name, tokens) for name in ("bos", "eos"))
    if values.get("tokenizer.ggml.add_bos_token", add_bos) and bos is not None:
        tokenizer.post_processor = prepend(tokens[bos], bos)
    ends = [eos, *(_token_id(values, name, tokens) for name in ("eot", "eom"))]
    template = values.get("tokenizer.chat_template")
    return GgufTokenizer(
        tokenizer,
        frozenset(end for end in ends if end is not None),
        "" if bos is None else tokens[bos],
        "" if eos is None else tokens[eos],
        template if isinstance(template, str) and template else None,
    )


def prepend(token: str, number: int) -> processors.PostProcessor:
    """Puts the beginning-of-sequence token before a raw prompt."""
    return processors.TemplateProcessing(
        single=f"{token}:0 $A:0", pair=f"{token}:0 $A:0 {token}:1 $B:1", special_tokens=[(token, number)]
    )


def _byte_level(values: dict[str, Value], tokens: list[str], source: str) -> tuple[Tokenizer, bool]:
    name = values.get("tokenizer.ggml.pre", "default")
    cut = CUTS.get(name) if isinstance(name, str) else None
    if cut is None:
        raise ModelProblem(
            f"{source} cuts text by the rule '{name}', which is not known here; known are {', '.join(CUTS)}. "
            "The Hugging Face directory of the same model works where its tokenizer.json is there"
        )
    merges = values.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise ModelProblem(f"{source} has a BPE tokenizer without merges; convert it again")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=cut.whole_words))
    if cut.nfc:
        tokenizer.normalizer = normalizers.NFC()
    split = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cut.patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, cut.add_bos


def _sentencepiece(values: dict[str, Value], tokens: list[str], source: str) -> Tokenizer:
    scores = values.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ModelProblem(f"{source} has a SentencePiece tokenizer without scores; convert it again")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    unknown = _token_id(values, "unknown", tokens)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(vocabulary, scores),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", "▁")
    prefixed = values.get("tokenizer.ggml.add_space_prefix", True)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefixed else spaces
    steps: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps)
    return tokenizer


def _merges(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """SentencePiece joins the neighbours whose joint token scores best; BPE wants such pairs in that order."""
    ranked: list[tuple[float, int, int, tuple[str, str]]] = []
    for token, number in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                ranked.append((-scores[number], vocabulary[left], vocabulary[right], (left, right)))
    return [pair for *_, pair in sorted(ranked)]


def _add_special(tokenizer: Tokenizer, values: dict[str, Value], tokens: list[str]) -> None:
    kinds = values.get("tokenizer.ggml.token_type")
    if not isinstance(kinds, list):
        return
    named = [(token, kind) for token, kind in zip(tokens, kinds, strict=False) if token]
    special = [token for token, kind in named if kind in (_CONTROL, _UNKNOWN)]
    own = [token for token, kind in named if kind == _USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in own])


def _token_id(values: dict[str, Value], name: str, tokens: list[str]) -> int | None:
    number = values.get(f"tokenizer.ggml.{name}_token_id")
    return number if isinstance(number, int) and 0 <= number < len(tokens) else None
