"""Where compiled programs are kept between runs: in the user's cache, one folder for each state of the sources.

numba looks at the file of the outermost function only, and would go on using a program whose parts have changed; so
the folder's name is a hash of everything in this package. Others than the newest are removed.
"""

from __future__ import annotations

import hashlib
import shutil
from contextlib import suppress
from pathlib import Path

import numba
from numba.core.dispatcher import Dispatcher

from engine.model.cache import cache_dir
from engine.model.problem import ModelProblem


def keep_compiled(function: Dispatcher) -> None:
    """Take `function` from the cache if it's there, and put it there once it is compiled. Without a writable cache it
    is compiled each time."""
    with suppress(OSError, ModelProblem, RuntimeError):
        folder = cache_dir() / "kernels" / _sources()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for other in folder.parent.iterdir():
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
        numba.config.CACHE_DIR = str(folder)
        function.enable_caching()


def _sources() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
