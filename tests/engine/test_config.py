"""Settings change whole or not at all, and a refusal names its limit."""

import msgspec
import pytest

from engine.config import AUTO, BLOCK_SIZES, LiveSettings, Model, SettingRefused, change, limits, validate

MODEL = Model(
    name="m", architecture="llama", layers=30, heads=9, kv_heads=3, head_dim=64, hidden=576, vocabulary=49_152,
    max_positions=8192, parameters=135_000_000, weight_bytes=540_000_000, dtype="float32", kv_bytes_per_token=46_080,
)  # fmt: skip
BOUNDS = limits(MODEL, 16, 1000)


def check(**changes):
    validate(change(LiveSettings(), changes), BOUNDS, 16)


def test_defaults_are_within_their_limits():
    validate(LiveSettings(), BOUNDS, 16)


def test_every_numeric_setting_has_a_limit():
    numeric = {f.name for f in msgspec.structs.fields(LiveSettings) if f.type in (int, float)}
    assert numeric == set(BOUNDS)
    assert all(limit.low < limit.high for limit in BOUNDS.values())


def test_change_leaves_the_old_alone():
    old = LiveSettings()
    new = change(old, {"max_batch": 4, "draft_method": "off", "prefix_cache": False})
    assert (new.max_batch, new.draft_method, new.prefix_cache) == (4, "off", False)
    assert old == LiveSettings()


def test_change_reads_text_as_the_command_line_gives_it():
    assert change(LiveSettings(), {"max_batch": "4", "top_p": "0.9", "prefix_cache": "false"}) == LiveSettings(
        max_batch=4, top_p=0.9, prefix_cache=False
    )


@pytest.mark.parametrize(
    ("key", "value"), [("max_batch", "many"), ("max_batch", 1.5), ("draft_method", "magic"), ("top_p", None)]
)
def test_change_refuses_wrong_types(key, value):
    with pytest.raises(SettingRefused, match=f"{key} cannot be") as refused:
        change(LiveSettings(), {key: value})
    assert refused.value.key == key


def test_change_refuses_unknown_names_and_lists_the_known():
    with pytest.raises(SettingRefused, match="no setting 'max_batches'; settings are max_batch"):
        change(LiveSettings(), {"max_batches": 4})


@pytest.mark.parametrize("key", sorted(BOUNDS))
def test_values_outside_are_refused_by_name(key):
    limit = BOUNDS[key]
    step = 1 if isinstance(getattr(LiveSettings(), key), int) else 0.1
    for value in (type(step)(limit.low) - step, type(step)(limit.high) + step):
        with pytest.raises(SettingRefused, match=f"{key} .* is outside") as refused:
            check(**{key: value})
        assert refused.value.key == key


def test_a_limit_says_why_it_stands():
    with pytest.raises(SettingRefused, match="trained for 8,192 tokens"):
        check(max_context=9000)
    with pytest.raises(SettingRefused, match="1,000 blocks fit beside the weights"):
        check(kv_blocks=1001)


def test_budget_covers_the_batch():
    check(max_batch=256, token_budget=256)
    with pytest.raises(SettingRefused, match="every running sequence needs one token") as refused:
        check(max_batch=257, token_budget=256)
    assert refused.value.key == "token_budget"


def test_auto_budget():
    assert change(LiveSettings(token_budget=64), {"token_budget": "auto"}) == LiveSettings()
    check(token_budget=AUTO, max_batch=512)
    check(chunked_prefill=False, token_budget=AUTO)
    with pytest.raises(SettingRefused, match="takes at most 16,384 tokens; it may have 20,000"):
        validate(LiveSettings(chunked_prefill=False, kv_blocks=1000), BOUNDS, 32, largest_need=20_000)
    with pytest.raises(SettingRefused, match="outside 8 to"):
        check(token_budget=7)


def test_context_fits_the_pool():
    check(max_context=2048, kv_blocks=128)
    with pytest.raises(SettingRefused, match="max_context 2,048 needs 128 blocks, the pool has 127"):
        check(kv_blocks=127)


def test_pool_holds_the_longest_live_sequence():
    settings = LiveSettings(max_context=64, kv_blocks=10)
    validate(settings, BOUNDS, 16, largest_need=160)
    with pytest.raises(SettingRefused, match=r"sequence 7 may need 161; 11 blocks are the least now") as refused:
        validate(settings, BOUNDS, 16, largest_need=161, needed_by="sequence 7")
    assert refused.value.key == "kv_blocks"


def test_whole_prompts_need_a_budget_for_the_longest():
    check(chunked_prefill=False, token_budget=2048)
    with pytest.raises(SettingRefused, match="token_budget must be at least 2,048, it is 2,047"):
        check(chunked_prefill=False, token_budget=2047)
    with pytest.raises(SettingRefused, match="at least 3,000"):
        validate(LiveSettings(chunked_prefill=False, token_budget=2048), BOUNDS, 16, largest_need=3000)


def test_block_sizes_are_powers_of_two():
    assert all(size & (size - 1) == 0 for size in BLOCK_SIZES)


@pytest.mark.parametrize(("key", "value", "words"), [
    ("batching", "dynamic", "it is one of continuous, static"), ("kv_blocks", "1.5", "it is a whole number"),
    ("temperature", "hot", "it is a number"), ("prefix_cache", "perhaps", "it is true or false"),
])  # fmt: skip
def test_a_value_of_another_kind_is_told_what_is_wanted(key: str, value: str, words: str) -> None:
    with pytest.raises(SettingRefused, match=f"{key} cannot be '{value}': {words}"):
        change(LiveSettings(), {key: value})
