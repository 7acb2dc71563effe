"""Drafts made for a real target: loaded live and at the start, refused with the reason, and never a token changed."""

from __future__ import annotations

import gc
import json
import random
import weakref
from pathlib import Path

import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer as Library
from tokenizers.models import WordLevel

from app.bench.equality import compare
from engine import drafters
from engine.build import build
from engine.config import EngineConfig, LiveSettings, SettingRefused
from engine.core import Engine
from engine.loop import Loop
from engine.model.cache import no_progress
from engine.records import ROW, TOKEN, Ack, Change, Request, StepRecord, Submit, unpack
from tests.support import oracle, tiny_models
from tests.support.tiny_directory import make_directory

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 16, "num_hidden_layers": 3}  # fmt: skip
SETTINGS = {"max_batch": 4, "max_context": 128, "kv_blocks": 64, "token_budget": 32, "draft_method": "ngram"}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    """target; same: its very weights elsewhere; narrow: half as wide; other: another word at id 5; longer: a word
    more."""
    home = tmp_path_factory.mktemp("drafters")
    found = {name: make_directory(home / name, **SIZES) for name in ("target", "same", "other", "longer")}
    found["narrow"] = make_directory(home / "narrow", **{**SIZES, "hidden_size": 32})
    words = [f"w{i}" for i in range(tiny_models.VOCABULARY)]
    for name, changed in (("other", [*words[:5], "elsewhere", *words[6:]]), ("longer", [*words, "more"])):
        library = Library(WordLevel({word: i for i, word in enumerate(changed)}, unk_token="w0"))
        library.save(str(found[name] / "tokenizer.json"))
    return found


def start(models: dict[str, Path], dtype: str = "float32", **changes: object) -> tuple[Engine, object]:
    settings = LiveSettings(**{**SETTINGS, **changes})
    config = EngineConfig(
        model=str(models["target"]), dtype=dtype, device="cpu", threads=1, block_size=8, settings=settings
    )
    built = build(config, no_progress)
    return built.engine, built.ready


@pytest.fixture(scope="module")
def engine(models) -> Engine:
    return start(models)[0]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafters, "TOKENS", 64)


def serve(engine: Engine, prompts: list[list[int]], count: int = 24) -> tuple[list[list[int]], list[tuple]]:
    """Tokens of each, and (drafted, accepted) of each row that drafted."""
    begin = engine._last_seq + 1
    for number, prompt in enumerate(prompts, 10_000):
        engine.submit(number, prompt, Request(number=number, max_tokens=count, ignore_eos=True))
    out: list[list[int]] = [[] for _ in prompts]
    drafted = []
    while engine.has_work:
        record = engine.step()
        engine.check()
        drafted += [(int(r["drafted"]), int(r["accepted"])) for r in unpack(record.rows, ROW) if r["drafted"]]
        for token in unpack(record.emitted, TOKEN):
            out[int(token["seq"]) - begin].append(int(token["token"]))
    return out, drafted


PROMPTS = [[1, 2, 3], [9] * 20, list(range(50))]


@pytest.fixture(scope="module")
def plain(engine) -> list[list[int]]:
    engine.change({"draft_method": "off"})
    return serve(engine, PROMPTS)[0]


@pytest.mark.parametrize("gamma", [1, 4, 8])
@pytest.mark.parametrize("method", ["model", "layers", "bits"])
def test_output_is_the_same_with_each_method(method: str, gamma: int, engine, plain, models) -> None:
    engine.change({"draft_method": method, "draft_length": gamma, "draft_model": str(models["narrow"])})
    out, drafted = serve(engine, PROMPTS)
    assert out == plain
    assert max(count for count, _ in drafted) == gamma
    engine._drafting.proposer.check()


def test_the_targets_weights_in_fewer_bits_are_mostly_right(engine, plain) -> None:
    engine.change({"draft_method": "bits", "draft_length": 4})
    out, drafted = serve(engine, PROMPTS)
    assert out == plain and engine._drafting.proposer.runner.model.dtype == "int8"
    assert sum(accepted for _, accepted in drafted) > 0.7 * sum(count for count, _ in drafted)


def test_a_draft_with_the_targets_weights_is_accepted_whole(engine, models, monkeypatch) -> None:
    """In float32, as the target's: γ + 1 tokens a pass."""
    beside = drafters.build_beside

    def in_float32(config, files, form, *rest):
        return beside(config, files, "float32", *rest)

    monkeypatch.setattr(drafters, "build_beside", in_float32)
    engine.change({"draft_method": "model", "draft_model": str(models["same"]), "draft_length": 3})
    _, drafted = serve(engine, PROMPTS, count=25)  # the prompt's one, and six times four
    assert drafted == [(3, 3)] * 18


def test_methods_switched_at_random_while_requests_run(engine, models) -> None:
    """The Change comes between two steps: who runs goes on, with the same tokens."""
    rng = random.Random(5)
    engine.change({"draft_method": "off", "kv_blocks": 64})
    prompts = [[rng.randrange(90) for _ in range(rng.randint(1, 60))] for _ in range(6)]
    wanted = serve(engine, prompts, 40)[0]
    engine.change({"kv_blocks": 18, "draft_model": str(models["narrow"])})
    begin = engine._last_seq + 1
    for number, prompt in enumerate(prompts):
        engine.submit(number, prompt, Request(number=number, max_tokens=40, ignore_eos=True))
    out: dict[int, list[int]] = {begin + number: [] for number in range(len(prompts))}
    used, steps = set(), 0
    while engine.has_work:
        if steps % 4 == 0:
            method, layers = rng.choice(["off", "ngram", "model", "layers", "bits"]), rng.randint(0, 2)
            engine.change({"draft_method": method, "draft_length": rng.randint(0, 8), "draft_layers": layers})
            used.add(method)
        record = engine.step()
        steps += 1
        for token in unpack(record.emitted, TOKEN):
            out[int(token["seq"])].append(int(token["token"]))
    engine.change({"kv_blocks": 64})
    assert list(out.values()) == wanted
    assert len(used) == 5


# --- what it takes ---


def test_memory_of_a_draft_is_told_and_comes_back(engine, models) -> None:
    engine.change({"draft_method": "off"})
    engine.between()
    engine._memory_at = 0
    before = engine._sample_memory()
    assert before.draft == 0
    engine.change({"draft_method": "layers", "draft_layers": 1})
    told = engine.between().memory
    proposer = engine._drafting.proposer
    kv = proposer.runner.num_blocks * 8 * proposer.runner.model.kv_bytes_per_token
    assert told.draft == kv == 16 * 64 * (2 * 1 * 2 * 16 * 4) and told.weights == before.weights
    engine.change({"draft_method": "model", "draft_model": str(models["narrow"])})
    proposer = engine._drafting.proposer
    told = engine.between().memory
    assert told.draft == proposer.runner.weight_bytes + proposer.runner.memory().kv_pool
    gone = weakref.ref(proposer.runner)
    del proposer
    engine.change({"draft_method": "off"})
    assert engine.between().memory.draft == 0
    gc.collect()
    assert gone() is None


def test_another_way_to_draw_takes_no_other_model(engine, models) -> None:
    engine.change({"draft_method": "model", "draft_model": str(models["narrow"]), "draft_sampling": "probabilistic"})
    runner = engine._drafting.proposer.runner
    engine.change({"draft_sampling": "greedy"})
    assert engine._drafting.proposer.runner is runner
    engine.change({"draft_model": str(models["same"])})
    assert engine._drafting.proposer.runner is not runner


# --- refusals ---


def refusal(engine: Engine, **changes: object) -> SettingRefused:
    """Of a change while a request runs, which goes on with what it had."""
    engine.change({"draft_method": "ngram"})
    engine.submit(77, [1, 2, 3], Request(number=77, max_tokens=20, ignore_eos=True))
    engine.step()
    before, proposer = engine.settings, engine._drafting.proposer
    with pytest.raises(SettingRefused) as caught:
        engine.change(changes)
    assert engine.settings is before and engine._drafting.proposer is proposer
    while engine.has_work:
        engine.step()
        engine.check()
    message = str(caught.value)
    assert "\n" not in message and len(message) < 400
    return caught.value


def test_another_vocabulary_is_refused_with_the_first_token_that_differs(engine, models) -> None:
    found = refusal(engine, draft_method="model", draft_model=str(models["other"]))
    assert found.key == "draft_model"
    assert "token 5 is ' w5' in the target and ' elsewhere' in the draft model" in str(found)
    assert "take a draft model of the target's own family" in str(found)
    found = refusal(engine, draft_method="model", draft_model=str(models["longer"]))
    assert "token 97 is nothing in the target and ' more' in the draft model" in str(found)


def test_a_special_token_of_another_name_is_another_token(engine, models, tmp_path) -> None:
    make_directory(tmp_path / "special", **SIZES)
    path = tmp_path / "special" / "tokenizer.json"
    library = Library.from_file(str(path))
    library.add_special_tokens(["w7"])
    library.save(str(path))
    found = refusal(engine, draft_method="model", draft_model=str(tmp_path / "special"))
    assert "token 7 is ' w7' in the target and 'w7' in the draft model" in str(found)


def test_no_file_no_name_and_a_wrong_format_are_refused(engine, models, tmp_path) -> None:
    assert "set draft_model to a directory" in str(refusal(engine, draft_method="model", draft_model=""))
    found = refusal(engine, draft_method="model", draft_model=str(tmp_path / "nowhere"))
    assert found.key == "draft_model" and "there is no file or directory" in str(found)
    (tmp_path / "text.gguf").write_text("no model")
    found = refusal(engine, draft_method="model", draft_model=str(tmp_path / "text.gguf"))
    assert "is not a GGUF file" in str(found)
    make_directory(tmp_path / "cut", **SIZES)
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    assert refusal(engine, draft_method="model", draft_model=str(tmp_path / "cut")).key == "draft_model"
    make_directory(tmp_path / "strange", **SIZES)
    config = json.loads((tmp_path / "strange" / "config.json").read_text())
    (tmp_path / "strange" / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    found = refusal(engine, draft_method="model", draft_model=str(tmp_path / "strange"))
    assert "'mamba' in config.json is not supported" in str(found)


def test_a_running_loop_answers_and_goes_on(engine, models, tmp_path) -> None:
    sent: list[object] = []
    engine.change({"draft_method": "ngram"})
    loop = Loop(engine, lambda request: request.token_ids, sent.append)
    loop.handle(Submit(id=1, request=Request(number=88, token_ids=[1, 2, 3], max_tokens=12, ignore_eos=True)))
    loop.turn()
    for number, name in enumerate((tmp_path / "nowhere", models["other"], models["narrow"]), 2):
        loop.handle(Change(id=number, changes={"draft_method": "model", "draft_model": str(name)}))
        loop.turn()
    while engine.has_work:
        loop.turn()
    acks = {message.id: message for message in sent if isinstance(message, Ack)}
    assert [(ack.ok, ack.key) for ack in acks.values()] == [
        (True, ""), (False, "draft_model"), (False, "draft_model"), (True, ""),
    ]  # fmt: skip
    assert acks[3].settings.draft_method == "ngram" and acks[4].settings.draft_method == "model"
    steps = [message for message in sent if isinstance(message, StepRecord)]
    assert sum(len(unpack(record.emitted, TOKEN)) for record in steps) == 12
    assert any(record.settings.draft_method == "model" and len(record.drafts) for record in steps)


def test_a_draft_that_memory_has_no_room_for_is_refused(engine, models, monkeypatch) -> None:
    model = str(models["narrow"])
    engine.change({"draft_method": "off"})
    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "max_blocks", lambda: engine.runner.num_blocks + 1)
        found = refusal(engine, draft_method="model", draft_model=model)
        assert found.key == "draft_model" and "narrow in" in str(found) and "lower kv_blocks" in str(found)
    with monkeypatch.context() as patch:
        patch.setattr("engine.runner.cpu.available_bytes", lambda: 1 << 20)
        found = refusal(engine, draft_method="layers")
        assert found.key == "draft_layers" and "its KV pool needs" in str(found)

    def none(*_):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 5 bytes")

    monkeypatch.setattr(drafters, "build_beside", none)
    found = refusal(engine, draft_method="bits")
    assert "memory ran out (can't allocate memory: you tried to allocate 5 bytes)" in str(found)


def test_what_has_no_fewer_bits_says_so(models) -> None:
    engine, ready = start(models, dtype="int8")
    assert ready.absent_drafts["bits"] == (
        "the weights are in int8 already; take another draft_method, or start the engine in float32"
    )
    assert not {"model", "layers"} & ready.absent_drafts.keys()
    assert refusal(engine, draft_method="bits").key == "draft_method"
    engine.change({"draft_method": "layers", "draft_length": 3})
    engine.change({"draft_method": "model", "draft_model": str(models["narrow"])})
    wide = start({"target": models["target"]})[1]
    assert not {"model", "layers", "bits"} & wide.absent_drafts.keys()


def test_a_model_of_one_layer_and_heads_that_no_form_fits(tmp_path) -> None:
    make_directory(tmp_path, **{**SIZES, "num_hidden_layers": 1, "head_dim": 8})
    engine, ready = start({"target": tmp_path})
    assert "one layer" in ready.absent_drafts["layers"]
    assert "no multiple of 16" in ready.absent_drafts["bits"]
    assert refusal(engine, draft_method="layers").key == "draft_method"
    assert refusal(engine, draft_method="bits").key == "draft_method"


# --- at the start ---


def test_a_first_draft_is_there_or_drafting_is_off_and_the_notices_say_why(models) -> None:
    engine, ready = start(models, draft_method="model", draft_model=str(models["narrow"]))
    assert ready.settings.draft_method == "model" and engine._drafting.bytes
    engine, ready = start(models, draft_method="model", draft_model=str(models["other"]), draft_layers=9)
    assert ready.settings.draft_method == engine.settings.draft_method == "off"
    assert ready.settings.draft_layers == 2
    told = [notice for notice in ready.notices if notice.startswith("draft_method is off, not model")]
    assert len(told) == 1 and "another vocabulary" in told[0]
    assert serve(engine, [[1, 2, 3]])[0][0]


# --- the default model ---


@pytest.mark.slow(seconds=20)
@pytest.mark.timeout(600)
def test_the_default_model_in_float32_drafted_for_in_its_files_bits(shared_folder: Path) -> None:
    """Token-equal to transformers, and nearly every draft is right."""
    prompts = oracle.prompts()[:2]
    references = oracle.references(shared_folder)[:2]
    wanted = [replace(each, tokens=each.tokens[:24], gaps=each.gaps[:24]) for each in references]
    settings = LiveSettings(draft_method="bits", draft_length=4, kv_blocks=256)
    built = build(EngineConfig(dtype="float32", device="cpu", threads=1, settings=settings), no_progress)
    assert built.ready.settings.draft_method == "bits" and "bits" not in built.ready.absent_drafts
    out, drafted = serve(built.engine, prompts, 24)
    assert compare(out, wanted).equal
    assert built.engine._drafting.proposer.runner.model.dtype == "Q4_1"
    assert sum(accepted for _, accepted in drafted) > 0.8 * sum(count for count, _ in drafted)


def test_layers_of_packed_weights_are_the_targets_own(models) -> None:
    engine, _ = start(models, dtype="int8", draft_method="off")
    plain = serve(engine, PROMPTS)[0]
    engine.change({"draft_method": "layers", "draft_layers": 2, "draft_length": 4})
    few, whole = engine._drafting.proposer.runner, engine.runner
    assert few._weights.layers[1] is whole._weights.layers[1] and len(few._weights.layers) == 2
    assert few._weights.head is whole._weights.head
    assert serve(engine, PROMPTS)[0] == plain
