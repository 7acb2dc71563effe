"""Kernels run in Triton's interpreter, on CPU tensors. tests/conftest.py turns it on for every test's process, because
whoever imports triton first settles it; what compiles kernels does so in a process without TRITON_INTERPRET.
"""

from __future__ import annotations

import pytest
import triton


@pytest.fixture(scope="session", autouse=True)
def interpreted() -> None:
    if not triton.knobs.runtime.interpret:
        pytest.fail("triton was imported before tests/conftest.py set TRITON_INTERPRET=1")
