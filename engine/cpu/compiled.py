"""Where compiled programs are kept between runs: in the user's cache, one folder for each state of the sources.

numba looks at the file of the outermost function only, and would go on using a program whose parts have changed; so
the folder's name is a hash of everything in this package. Folders that nobody took a program from for a month go.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

import numba
from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher

from engine.model.cache import cache_dir
from engine.model.problem import ModelProblem

KEPT = 30 * 86_400.0  # s; another installation's programs aren't removed while it is in use


def compile_for(function: Dispatcher, *arguments: object) -> None:
    """Have `function` ready for arguments of these types: from the cache if it's there, else compiled, and put there.
    Without a cache that can be written to it is compiled each time."""
    signature = tuple(numba.typeof(argument) for argument in arguments)
    if signature in function.overloads:
        return
    _keep(function)
    try:
        function.compile(signature)
    except Exception:  # a damaged file, a full disk; or it can't be compiled, which is said the second time
        function._cache = NullCache()
        function.compile(signature)


def _keep(function: Dispatcher) -> None:
    before = numba.config.CACHE_DIR
    with suppress(OSError, ModelProblem, RuntimeError):
        folder = cache_dir() / "kernels" / _sources()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.utime(folder)
        _tidy(folder)
        numba.config.CACHE_DIR = str(folder)
        function.enable_caching()
        if folder not in Path(function.stats.cache_path).parents:
            # numba goes elsewhere when it can't write there, and what it finds elsewhere may be of other sources
            function._cache = NullCache()
    numba.config.CACHE_DIR = before


def _tidy(folder: Path) -> None:
    for other in folder.parent.iterdir():
        with suppress(OSError):  # gone already
            if other != folder and time.time() - other.stat().st_mtime > KEPT:
                shutil.rmtree(other, ignore_errors=True)


def _sources() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
