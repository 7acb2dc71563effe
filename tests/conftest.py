"""What every test runs under: no screen, few threads, fast tests first, and a Qt warning is a failure."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
# The smallest machine has two cores. Beside a second process of tests a second thread mostly waits for a core, at
# barriers, and takes a quarter more processor time: what needs two threads asks for them.
os.environ.setdefault("OMP_NUM_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else "2")
os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # turns at a barrier; `engine.worker` says why
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the oracle reads local files only
os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is first imported, by whomever (tests/kernels)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started with & by a shell; programs under test would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import HealthCheck, settings

# a busy machine can hold up any single example; pytest-timeout bounds a test
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow ones last, so that a broken tree fails within seconds. Of those the longest first, as far as they say, and
    then the engine's and the kernels', so that processes of tests end at about the same time."""

    def order(item: pytest.Item) -> tuple[bool, float, bool]:
        slow = item.get_closest_marker("slow")
        if slow is None:
            return False, 0, False
        return True, -slow.kwargs.get("seconds", 0), not {"engine", "kernels"} & set(item.path.parts)

    items.sort(key=order)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What was imported stays as long as the process: half a million objects, which take a third of a second each time
    that a test has everything collected."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # or extensions take what they find at the very end for leaks, and say so


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by all processes of this run of the tests."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(autouse=True)
def closed_windows_are_gone():
    """What a test closed, pytest-qt's `addWidget` included, is only marked for deletion, which waits for an event loop
    that tests never enter. Left alive, each window costs 20 MB and its share of every change of font or palette."""
    yield
    if "PySide6.QtWidgets" in sys.modules:
        from PySide6.QtCore import QCoreApplication, QEvent

        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)


@pytest.fixture(autouse=True)
def no_leaked_threads():
    """A thread that a test started and left running is a fault; pools that keep workers are named here."""
    before = set(threading.enumerate())
    yield
    for tries in range(200):
        left = [t for t in threading.enumerate() if t not in before and t.is_alive() and not _kept(t)]
        if not left:
            return
        if tries == 1:
            gc.collect()  # whoever ends them when it is collected may be part of a cycle
        time.sleep(0.01)
    pytest.fail(f"threads left running: {', '.join(t.name for t in left)}")


def _kept(thread: threading.Thread) -> bool:
    """torch, tqdm and executors keep workers for the next use; pytest-timeout's own timer ends with the test."""
    return thread.name.startswith(("ThreadPoolExecutor", "asyncio", "Dummy", "pytest_timeout", "tqdm", "QThread"))
