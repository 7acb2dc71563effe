"""A whole model directory, tiny and random: config, weights, and a tokenizer whose words are w0, w1, …"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from tests.support.tiny_models import VOCABULARY, save


def make_directory(directory: Path, kind: str = "llama", **sizes: int) -> Path:
    save(directory, kind, tied=True, **sizes)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = Whitespace()
    words.save(str(directory / "tokenizer.json"))
    return directory
