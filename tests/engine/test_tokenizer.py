"""Ids are the checkpoint's own: against transformers, for each kind of tokenizer, and every bad request is told."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Library

from engine.model import gguf_tokenizer
from engine.model.gguf_metadata import Value, read_header
from engine.model.problem import ModelProblem
from engine.model.store import resolve
from engine.records import Request
from engine.tokenizer import BadPrompt, Tokenizer

TEXTS = [
    "Hello world",
    "  two  leading spaces and a trailing one ",
    "It's 12345.678, isn't it? I'M SURE WE'LL see 1 000 000",
    "naïve café, Straße, ﬁne, e\u0301",
    "日本語のテスト、한국어, العربية ٣٤٥",
    "🎉👩‍👩‍👧 \U0001f1e9\U0001f1ea",
    "def f(x):\n\treturn x + 1\r\n\r\n\r\n# done\n   \n",
    "<|im_start|>user\nspecial<|im_end|> tokens <|endoftext|>",
    "½ ² Ⅷ \u00a0\u2003 wide\u200b",
    "NUL \x00 and \x7f",
    "a" * 500,
    "?!... --> $5+3=8 ^~|<>",
]


def random_texts(count: int, seed: int) -> list[str]:
    pick = random.Random(seed)
    ranges = [(32, 127), (32, 127), (10, 11), (48, 58), (0x80, 0x800), (0x800, 0xD800), (0x10000, 0x1FFFF)]
    lengths = [pick.randrange(1, 60) for _ in range(count)]
    return ["".join(chr(pick.randrange(*pick.choice(ranges))) for _ in range(length)) for length in lengths]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(resolve("default").tokenizer_path)


# --- the default model ---


@pytest.mark.slow
def test_default_model_has_the_ids_of_transformers(tokenizer: Tokenizer) -> None:
    """transformers' GGUF loading leaves out how SmolLM cuts digits, so that rule is put in by its own name."""
    from transformers import AutoTokenizer

    path = resolve("default").path
    oracle = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in TEXTS:
        if not any(c.isnumeric() for c in text):
            assert tokenizer.encode(text) == oracle(text)["input_ids"], text
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    oracle.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    for text in TEXTS + random_texts(500, seed=1):
        assert tokenizer.encode(text) == oracle(text)["input_ids"], text
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == oracle.decode(ids, skip_special_tokens=True)
    for messages in (
        [{"role": "user", "content": "What is 2+2?"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\n"}],
    ):
        assert tokenizer.render_chat(messages) == oracle.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )


def test_default_model_known_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("Hello, 1234 wörld") == [19556, 28, 216, 33, 34, 35, 36, 267, 29989, 400]
    assert tokenizer.eos_ids == {2} and tokenizer.vocabulary == 49152
    assert tokenizer.notices == [] and tokenizer.has_chat_template


def test_a_request_is_raw_or_chat(tokenizer: Tokenizer) -> None:
    raw = tokenizer.encode_request(Request(number=1, prompt="Hello", raw=True))
    assert raw == [19556]
    chat = tokenizer.encode_request(Request(number=2, prompt="Hello", system="Be brief."))
    assert chat == tokenizer.encode(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.encode_request(Request(number=3, token_ids=[5, 6, 7])) == [5, 6, 7]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (Request(number=1), "prompt is empty"),
        (Request(number=1, prompt=" \n\t\u2003"), "prompt is empty"),
        (Request(number=1, prompt="", raw=True), "prompt is empty"),
        (Request(number=1, token_ids=[]), "no tokens"),
        (Request(number=1, prompt="ab\ud83d"), r"character 3 is half of a surrogate pair \(U\+D83D\)"),
        (Request(number=1, prompt="ok", system="\udc00"), "system message is no valid Unicode"),
        (Request(number=1, prompt="ok", stop=["\udc00"]), "stop string is no valid Unicode"),
        (Request(number=1, prompt="ok", stop=[""]), "empty stop string"),
        (Request(number=1, prompt="ok", stop=["x"] * 65), "too many"),
        (Request(number=1, prompt="ok", stop=["x" * 5000]), "too long"),
    ],
)
def test_bad_requests_are_told(tokenizer: Tokenizer, request_: Request, said: str) -> None:
    with pytest.raises(BadPrompt, match=said):
        tokenizer.encode_request(request_)


@pytest.mark.parametrize("prompt", ["\0", "a\0b", "\ufffd", "\u202e", "\U0010ffff x", "�" * 9])
def test_strange_prompts_are_fine(tokenizer: Tokenizer, prompt: str) -> None:
    assert tokenizer.encode_request(Request(number=1, prompt=prompt, raw=True))


def test_token_bytes(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("héé €")
    assert b"".join(map(tokenizer.token_bytes, ids)) == "héé €".encode()
    assert tokenizer.token_bytes(2) == b"" == tokenizer.token_bytes(10**6) == tokenizer.token_bytes(-1)


# --- GGUF, other kinds ---

TRAINING = ["the cat sat on the mat", "I'll say it's 1234 or 99", "naïve 日本語 text\n\nwith   spaces", *TEXTS]


def trained_bpe(vocabulary: int = 600) -> Library:
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"])
    library.train_from_iterator(TRAINING, trainer)
    return library


@pytest.fixture(scope="module")
def bpe_values() -> dict[str, Value]:
    model = json.loads(trained_bpe().to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3] + [1] * (len(tokens) - 2),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }


def pieces(values: dict[str, Value], text: str) -> list[str]:
    built = gguf_tokenizer.build(values, "x.gguf").tokenizer
    alphabet = {"Ġ": " ", "Ċ": "\n", "č": "\r"}
    cut = [piece for piece, _ in built.pre_tokenizer.pre_tokenize_str(text)]
    return ["".join(alphabet.get(c, c) for c in piece) for piece in cut]


@pytest.mark.parametrize(
    ("pre", "cut"),
    [
        ("gpt-2", ["I", "'ll", " pay", " 12345", "!!", "\n\n ", " Go"]),
        ("smollm", ["I", "'ll", " pay", " ", "1", "2", "3", "4", "5", "!!", "\n\n ", " Go"]),
        ("llama-bpe", ["I", "'ll", " pay", " ", "123", "45", "!!\n\n", " ", " Go"]),
        ("qwen2", ["I", "'ll", " pay", " ", "1", "2", "3", "4", "5", "!!\n\n", " ", " Go"]),
        ("tekken", ["I", "'ll", " pay", " ", "1", "2", "3", "4", "5", "!!\n\n", " ", " Go"]),
        ("default", ["I", "'", "ll", " pay", " ", "123", "45", "!!", "\n\n ", " Go"]),
    ],
)
def test_each_rule_cuts_its_own_way(bpe_values: dict[str, Value], pre: str, cut: list[str]) -> None:
    found = pieces(bpe_values | {"tokenizer.ggml.pre": pre}, "I'll pay 12345!!\n\n  Go")
    assert found == cut


@pytest.mark.slow
def test_qwen2_cuts_as_transformers_does(bpe_values: dict[str, Value]) -> None:
    from transformers import Qwen2Tokenizer

    tokens, merges = bpe_values["tokenizer.ggml.tokens"], bpe_values["tokenizer.ggml.merges"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    oracle = Qwen2Tokenizer(vocabulary, [tuple(merge.split(" ")) for merge in merges])
    ours = gguf_tokenizer.build(bpe_values | {"tokenizer.ggml.pre": "qwen2"}, "x.gguf").tokenizer
    for sample in TEXTS + random_texts(100, seed=2):
        if "<|" not in sample:
            assert ours.encode(sample).ids == oracle(sample)["input_ids"], sample


def test_beginning_of_sequence_follows_the_file(bpe_values: dict[str, Value]) -> None:
    def first(**more: Value) -> int:
        values = bpe_values | {"tokenizer.ggml." + key: value for key, value in more.items()}
        return gguf_tokenizer.build(values, "x.gguf").tokenizer.encode("cat").ids[0]

    assert first(pre="gpt-2") != 0
    assert first(pre="gpt-2", add_bos_token=True) == 0
    assert first(pre="llama-bpe") == 0
    assert first(pre="llama-bpe", add_bos_token=False) != 0
    assert first(pre="llama-bpe", bos_token_id=10**9) != 0


def test_ends_of_sequence_are_collected(bpe_values: dict[str, Value]) -> None:
    built = gguf_tokenizer.build(bpe_values | {"tokenizer.ggml.eot_token_id": 7}, "x.gguf")
    assert built.eos_ids == {1, 7}
    assert (built.bos_token, built.eos_token, built.chat_template) == ("<s>", "</s>", None)


def sentencepiece_values() -> dict[str, Value]:
    words = ["▁", "t", "h", "e", "c", "a", "▁t", "he", "▁the", "▁c", "at", "▁cat"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(at) for at in range(len(words))],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(words),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def test_sentencepiece_with_bytes_for_what_it_lacks() -> None:
    built = gguf_tokenizer.build(sentencepiece_values(), "x.gguf")
    tokenizer = Tokenizer(built.tokenizer, built.eos_ids)
    tokens = tokenizer.encode("the cat é")
    names = [built.tokenizer.id_to_token(token) for token in tokens]
    assert names == ["<s>", "▁the", "▁cat", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokens) == "the cat é"
    assert tokenizer.drops_first_space
    assert b"".join(map(tokenizer.token_bytes, tokens)) == " the cat é".encode()
    assert tokenizer.encode("cat</s>cat", add_special=False)[1] == 2


def test_sentencepiece_without_a_space_before() -> None:
    built = gguf_tokenizer.build(sentencepiece_values() | {"tokenizer.ggml.add_space_prefix": False}, "x.gguf")
    tokenizer = Tokenizer(built.tokenizer, built.eos_ids)
    assert not tokenizer.drops_first_space
    tokens = tokenizer.encode(" the cat", add_special=False)
    assert tokenizer.decode(tokens) == " the cat"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokenizer.ggml.pre": "klingon"}, "rule 'klingon', which is not known"),
        ({"tokenizer.ggml.model": "bert"}, "kind 'bert'"),
        ({"tokenizer.ggml.model": "llama"}, "without scores"),
        ({"tokenizer.ggml.merges": None}, "without merges"),
        ({"tokenizer.ggml.merges": ["zz yy"]}, "is broken"),
        ({"tokenizer.ggml.tokens": []}, "holds no tokenizer"),
    ],
)
def test_what_cannot_be_built_is_told(bpe_values: dict[str, Value], change: dict[str, Value], said: str) -> None:
    with pytest.raises(ModelProblem, match=said):
        gguf_tokenizer.build(bpe_values | change, "x.gguf")


# --- GGUF headers ---


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(pairs: bytes, count: int, tensors: bytes = b"", tensor_count: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensor_count, count) + pairs + tensors


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "cannot read"),
        (b"GGML" + bytes(40), "is not a GGUF file"),
        (gguf(b"", 0, version=1), "GGUF version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (gguf(b"", 1 << 60), "truncated or corrupt"),
        (gguf(b"", 0, tensor_count=1 << 60), "truncated or corrupt"),
        (gguf(struct.pack("<Q", 1 << 62), 1) + bytes(64), "truncated or corrupt"),
        (gguf(text("a") + struct.pack("<IIQ", 9, 4, 1 << 62), 1) + bytes(64), "truncated or corrupt"),
        (gguf(text("a") + struct.pack("<IIQ", 9, 8, 1 << 62), 1) + bytes(64), "truncated or corrupt"),
        (gguf(text("a") + struct.pack("<I", 99), 1) + bytes(64), "truncated or corrupt"),
        (gguf(text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50, 1) + bytes(64), "truncated or corrupt"),
        (gguf(b"", 0, text("t") + struct.pack("<I", 1 << 31) + bytes(64), 1), "truncated or corrupt"),
    ],
)
def test_broken_headers_are_told(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(ModelProblem, match=said):
        read_header(tmp_path / "m.gguf")


def test_a_header_cut_anywhere_is_told(tmp_path: Path) -> None:
    whole = resolve("default").path.read_bytes()[:3_000_000]
    pick = random.Random(3)
    for end in [4, 8, 20, 24, *(pick.randrange(25, 1_500_000) for _ in range(30))]:
        (tmp_path / "m.gguf").write_bytes(whole[:end])
        with pytest.raises(ModelProblem):
            read_header(tmp_path / "m.gguf")


@pytest.mark.slow
def test_the_header_is_what_the_format_s_own_reader_finds() -> None:
    from gguf import GGUFReader

    path = resolve("default").path
    header, reader = read_header(path), GGUFReader(path)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF."):
            assert header.values[name] == field.contents(), name
    assert [(t.name, t.shape, t.kind, t.offset) for t in header.tensors] == [
        (t.name, tuple(map(int, t.shape)), int(t.tensor_type), t.data_offset) for t in reader.tensors
    ]


# --- directories ---


@pytest.fixture
def directory(tmp_path: Path) -> Callable[..., Path]:
    def make(library: Library | None = None, **files: object) -> Path:
        (library or trained_bpe()).save(str(tmp_path / "tokenizer.json"))
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path

    return make


@pytest.mark.slow
def test_a_directory_as_transformers_reads_it(directory: Callable[..., Path]) -> None:
    library = trained_bpe()
    library.decoder = decoders.ByteLevel()
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    library.enable_padding(length=99)
    library.enable_truncation(3)
    library.add_tokens([AddedToken("<tool>", normalized=False)])
    template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    path = directory(
        library,
        tokenizer_config={
            "bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": False, "rstrip": False,
                          "single_word": False, "normalized": False},
            "eos_token": "</s>",
            "chat_template": template,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
        generation_config={"eos_token_id": [1, 5]},
        config={"eos_token_id": 6, "model_type": "llama"},
    )
    tokenizer = Tokenizer.load(path)
    assert tokenizer.eos_ids == {1, 5, 6}
    ids = tokenizer.encode_request(Request(number=1, prompt="the <tool> cat sat on the mat"))
    assert ids[0] == 0 and ids.count(0) == 1
    assert tokenizer.decode(ids) == "[user]the <tool> cat sat on the mat"

    from transformers import AutoTokenizer

    oracle = AutoTokenizer.from_pretrained(path)
    messages = [{"role": "user", "content": "the cat's 12"}]
    rendered = oracle.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert tokenizer.render_chat(messages) == rendered
    for sample in TEXTS:
        assert tokenizer.encode(sample) == oracle(sample, padding=False, truncation=False)["input_ids"]


def test_templates_by_name_and_in_a_file(directory: Callable[..., Path]) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "by name"}]
    path = directory(tokenizer_config={"chat_template": named})
    assert Tokenizer.load(path).render_chat([]) == "by name"
    (path / "chat_template.jinja").write_text("own file")
    assert Tokenizer.load(path).render_chat([]) == "own file"


def test_no_template_and_no_end_are_said(directory: Callable[..., Path]) -> None:
    tokenizer = Tokenizer.load(directory())
    assert len(tokenizer.notices) == 2 and "no chat template" in tokenizer.notices[0]
    assert "no end-of-sequence" in tokenizer.notices[1]
    ids = tokenizer.encode_request(Request(number=1, prompt="cat"))
    assert ids == tokenizer.encode("User: cat\n\nAssistant:")


def test_a_broken_template_is_said_and_done_without(directory: Callable[..., Path]) -> None:
    tokenizer = Tokenizer.load(directory(tokenizer_config={"chat_template": "{% if %}"}))
    assert "does not compile" in tokenizer.notices[0]
    assert tokenizer.encode_request(Request(number=1, prompt="cat"))


def test_a_refusing_template_is_a_bad_prompt(directory: Callable[..., Path]) -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}ok"
    tokenizer = Tokenizer.load(directory(tokenizer_config={"chat_template": template}))
    assert tokenizer.encode_request(Request(number=1, prompt="cat"))
    with pytest.raises(BadPrompt, match=r"no system role; send the prompt raw"):
        tokenizer.encode_request(Request(number=2, prompt="cat", system="s"))


def test_a_template_cannot_smuggle_broken_unicode(directory: Callable[..., Path]) -> None:
    tokenizer = Tokenizer.load(directory(tokenizer_config={"chat_template": "{{ '\\ud800' }}"}))
    with pytest.raises(BadPrompt, match="chat template made"):
        tokenizer.encode_request(Request(number=1, prompt="cat"))


@pytest.mark.parametrize("name", ["tokenizer", "tokenizer_config", "config", "generation_config"])
@pytest.mark.parametrize("content", ["", "{", "[]", "\0\0"])
def test_broken_files_are_named(directory: Callable[..., Path], name: str, content: str) -> None:
    with pytest.raises(ModelProblem, match=f"{name}.json"):
        Tokenizer.load(directory(**{name: content}))


def test_an_absent_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelProblem, match=r"holds no tokenizer\.json"):
        Tokenizer.load(tmp_path)
    with pytest.raises(ModelProblem, match="cannot read"):
        Tokenizer.load(tmp_path / "none.gguf")


def test_an_unknown_way_to_put_text_together(directory: Callable[..., Path]) -> None:
    library = trained_bpe()
    library.decoder = decoders.WordPiece()
    with pytest.raises(ModelProblem, match="WordPiece"):
        Tokenizer.load(directory(library))


def test_added_tokens_beside_the_byte_alphabet() -> None:
    library = trained_bpe()
    library.decoder = decoders.ByteLevel()
    library.add_tokens([AddedToken("two words", normalized=False), AddedToken("日本", normalized=False)])
    tokenizer = Tokenizer(library, frozenset())
    ids = tokenizer.encode("a two words 日本 b", add_special=False)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == tokenizer.decode(ids) == "a two words 日本 b"


def test_metaspace_and_plain_word_decoders() -> None:
    words = Library(models.WordLevel({"the": 0, "cat": 1}, unk_token="the"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = Tokenizer(words, frozenset({1}))
    assert b"".join(map(tokenizer.token_bytes, [0, 1])) == b" the cat" and tokenizer.drops_first_space
    meta = Library(models.BPE(vocab={"▁": 0, "a": 1}, merges=[]))
    meta.decoder = decoders.Metaspace()
    assert Tokenizer(meta, frozenset()).token_bytes(0) == b" "
