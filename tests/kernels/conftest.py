"""Kernels run in Triton's interpreter, on CPU tensors. tests/conftest.py turns it on for every test's process, because
whoever imports triton first settles it; what compiles kernels does so in a process without TRITON_INTERPRET.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import triton

from tests.support.quick_interpreter import quick_interpreter


@pytest.fixture(scope="session", autouse=True)
def interpreted() -> Iterator[None]:
    if not triton.knobs.runtime.interpret:
        pytest.fail("triton was imported before tests/conftest.py set TRITON_INTERPRET=1")
    with quick_interpreter():
        yield
