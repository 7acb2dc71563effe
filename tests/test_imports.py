"""Who may import whom: the contracts in pyproject.toml, and what a real parent and a real child hold."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.tiny_directory import make_directory

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

PARENT = textwrap.dedent("""
    import sys
    from app.__main__ import main

    if __name__ == "__main__":  # the child runs this file again
        from app.sources.live import LiveEngine
        from engine.config import EngineConfig
        source = LiveEngine(EngineConfig(model=sys.argv[1], device="cpu"), "tests.support.modules_probe:main")
        while source.state == "starting":
            source.wait(0.1)
            source.poll()
        assert source.state == "ready", source.state
        source.close()
        assert source.join(10)
        print("PARENT", *sorted(sys.modules))
        print("CHILD", *source.ready.notices)
""")


def test_import_contracts_hold():
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def modules(tmp_path_factory) -> dict[str, set[str]]:
    """Modules by process, of a parent that starts a real engine and of that engine."""
    directory = tmp_path_factory.mktemp("model")
    script = directory / "parent.py"
    script.write_text(PARENT)
    model = make_directory(directory / "tiny")
    command = [sys.executable, str(script), str(model)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    return {line[0]: {name.partition(".")[0] for name in line[1:]} | set(line[1:]) for line in lines}


def test_no_torch_in_the_parent(modules):
    assert not modules["PARENT"] & {"torch", "triton", "transformers", "tokenizers", "engine.worker", "engine.core"}


def test_no_window_in_the_child(modules):
    assert "torch" in modules["CHILD"] and "engine.core" in modules["CHILD"]
    assert not modules["CHILD"] & {"PySide6", "pyqtgraph", "qasync", "ui", "transformers"}


def test_no_kernel_of_a_card_in_the_cpus_child(modules):
    """They import Triton, which takes its time at every start."""
    of_cards = ("engine.kernels.paged_decode", "engine.kernels.verify", "triton.language")
    assert not [name for name in modules["CHILD"] if name.startswith(of_cards)]
