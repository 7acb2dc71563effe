"""Frames give way where engine and window share the cores, and only there."""

from __future__ import annotations

import msgspec
import pytest

from engine.config import EngineConfig
from engine.records import Ready, Status
from tests.support.synthetic import SyntheticSource
from ui.cores import CROWDED, FREE, engine_cores, frame_share

WORKS = Status(paused=False, delay=0.0, idle=False)


def ready(runner: str, threads: int = 0) -> Ready:
    return msgspec.structs.replace(
        SyntheticSource(blocks=16, sequences=2).world.ready(), runner=runner, config=EngineConfig(threads=threads)
    )


@pytest.mark.parametrize(
    "runner, threads, cores, busy",
    [("cpu", 0, 2, 2), ("cpu", 1, 2, 1), ("cpu", 0, 8, 8), ("cuda", 0, 2, 1), ("simulated", 0, 2, 1)],
)
def test_cores_that_an_engine_keeps_busy(runner, threads, cores, busy):
    assert engine_cores(ready(runner, threads), cores) == busy


@pytest.mark.parametrize(
    "runner, threads, cores, share",
    [
        ("cpu", 0, 2, CROWDED), ("cpu", 1, 2, FREE), ("cpu", 7, 8, FREE), ("cpu", 8, 8, CROWDED),
        ("simulated", 0, 2, FREE), ("simulated", 0, 1, CROWDED), ("cuda", 0, 4, FREE),
    ],
)  # fmt: skip
def test_frames_have_a_share_where_no_core_is_left_over(runner, threads, cores, share):
    assert frame_share(ready(runner, threads), WORKS, cores) == share


@pytest.mark.parametrize("change", [{"idle": True}, {"paused": True}, {"delay": 0.1}])
def test_beside_an_engine_that_rests_they_take_what_they_need(change):
    assert frame_share(ready("cpu"), msgspec.structs.replace(WORKS, **change), 1) == FREE


def test_before_there_is_an_engine_too():
    assert frame_share(None, WORKS, 1) == FREE
