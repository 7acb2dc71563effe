"""What a figure was measured on: the processor, how busy others keep it, and the versions of what ran."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path

ASK_LIMIT = 60.0  # s
ASK = "from importlib import metadata as m; print(*(d.version for d in m.distributions() if d.name in {names}))"


def own_versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("servescope", "torch")}


def version_in(python: Path, *names: str) -> str:
    """Of the first package of these names in another Python's environment; 'unknown' where there is none."""
    found = _said([str(python), "-c", ASK.format(names=names)]).split()
    return found[0] if found else "unknown"


def version_of(program: str) -> str:
    """What `program --version` says after the word version; 'unknown' where it doesn't."""
    lines = [line for line in _said([program, "--version"]).splitlines() if line.startswith("version:")]
    return lines[0].removeprefix("version:").strip() if lines else "unknown"


def _said(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + (done.stderr if not done.stdout else "")


def busy_share(seconds: float) -> float:
    """Of the cores that something else uses now, while the peers are held; 0.0 where it can't be known."""
    before = _ticks()
    time.sleep(seconds)
    idle, total = (b - a for a, b in zip(before, _ticks(), strict=True))
    return 1 - idle / total if total else 0.0


def _ticks() -> tuple[int, int]:
    """(idle, all) of all cores since the machine started."""
    try:
        spent = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:  # only Linux has it
        return 0, 0
    return spent[3] + spent[4], sum(spent)


def cpu_name() -> str:
    try:
        about = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        about = []
    names = [line.partition(":")[2].strip() for line in about if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
