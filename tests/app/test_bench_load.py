"""The load on a server: what is asked of it, and tokens counted whatever way it says them."""

from __future__ import annotations

import random
import threading

import pytest

from app.bench import load
from app.bench.load import LoadFailed
from tests.support.fake_peer import PACE, FakeServer


@pytest.fixture
def serving():
    """`serving(behaviour)`: a fake server that runs until the test ends."""
    running: list[tuple[FakeServer, threading.Thread]] = []

    def start(behaviour: str) -> FakeServer:
        server = FakeServer(behaviour)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        running.append((server, thread))
        return server

    yield start
    for server, thread in running:
        server.shutdown()
        server.server_close()
        thread.join()


TEXTS = [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("behaviour", ["usage", "timings", "pairs", "plain"])
def test_rates_of_servers_that_count_in_their_own_ways(serving, behaviour):
    server = serving(behaviour)
    found = load.decode_rate(server.server_port, TEXTS, 40)
    per_chunk = 2 if behaviour == "pairs" else 1
    assert 0 < found < 1.1 * 2 * per_chunk / PACE  # never faster than the server's pace


def test_what_is_asked(serving):
    server = serving("usage")
    load.decode_rate(server.server_port, TEXTS, 10)
    assert sorted(asked["prompt"] for asked in server.asked) == TEXTS
    for asked in server.asked:
        assert asked["max_tokens"] == 10 and asked["temperature"] == 0 and asked["ignore_eos"] and asked["stream"]


def test_prefill_is_prompt_tokens_over_the_time_to_the_first(serving):
    found = load.prefill_rate(serving("timings").server_port, [7] * 100)
    assert 0 < found < 100 / PACE


def test_interference_of_a_newcomer(serving):
    server = serving("timings")
    found = load.interference(server.server_port, TEXTS, 100, [9] * 50)
    assert found["ttft_ms"] >= 1e3 * PACE and found["worst_gap_ms"] >= 1e3 * PACE
    assert server.asked[-1]["prompt"] == [9] * 50 and server.asked[-1]["max_tokens"] == load.NEWCOMER_TOKENS


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [("short", "39"), ("broken", "out of slots"), ("error", "no memory")],
)
def test_what_a_server_does_wrong_is_said(serving, behaviour, said):
    with pytest.raises(LoadFailed, match=said):
        load.decode_rate(serving(behaviour).server_port, TEXTS, 40)


def test_no_server_is_said():
    server = FakeServer("usage")
    server.server_close()
    with pytest.raises(LoadFailed, match="broke off"):
        load.decode_rate(server.server_port, TEXTS, 4)


def test_streams_that_end_before_the_newcomer_could_arrive(serving):
    with pytest.raises(LoadFailed, match="more new tokens"):
        load.interference(serving("usage").server_port, TEXTS, 9, [9] * 5)


def test_the_rate_counts_from_the_last_first_token():
    early = [(1.0, 1), (2.0, 2), (3.0, 4), (5.0, 6)]
    late = [(3.0, 1), (4.0, 2)]
    assert load.rate([early, late]) == (6 - 4 + 2 - 1) / (5.0 - 3.0)


def test_gaps_from_the_arrival_on():
    others = [[0.0, 9.0, 10.0, 10.5, 12.0], [8.0, 9.5, 10.1, 12.1]]
    assert load.gaps(others, arrival=10.05, first=11.0) == {"ttft_ms": 950.0, "worst_gap_ms": 2000.0}
    with pytest.raises(LoadFailed, match="more new tokens"):
        load.gaps(others, arrival=10.05, first=12.05)


def test_prompts_leave_low_ids_out_where_there_are_many():
    (text,) = load.prompts(random.Random(0), 1, 500, 2000)
    assert min(text) >= load.SPECIAL and max(text) < 2000
    (text,) = load.prompts(random.Random(0), 1, 500, 8)
    assert set(text) == set(range(8))
