"""Check what Servescope needs on this machine, and say what to do about what is missing.

torch and Qt are tried in processes of their own: neither belongs into this one, and a broken library can end the
process that loads it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from app import display

EXAMPLES = """examples:
  servescope doctor
  servescope doctor --json"""

State = Literal["ok", "missing", "note"]

OLDEST_PYTHON = (3, 11)
TRIAL_LIMIT = 120.0  # seconds; importing torch from a cold disk takes tens of them
PACKAGES = ("pyqtgraph", "qasync", "numpy", "msgspec", "tokenizers", "safetensors", "gguf", "jinja2")

TORCH_TRIAL = """
import json, platform, torch
found = {"version": torch.__version__, "build": torch.version.cuda or "", "threads": torch.get_num_threads(),
         "devices": []}
if torch.cuda.is_available():
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        found["devices"].append([about.name, f"{about.major}.{about.minor}", about.total_memory])
try:
    import triton
    found["triton"] = triton.__version__
except ImportError as error:
    found["triton"] = ""
print(json.dumps(found))
"""

NUMBA_TRIAL = """
import json, numba
from engine.cpu.vector import DOT_256, DOT_512
print(json.dumps({"version": numba.__version__, "bytes": 64 if DOT_512 else 32 if DOT_256 else 0}))
"""

QT_TRIAL = """
import json
from PySide6.QtGui import QGuiApplication
from PySide6 import __version__
application = QGuiApplication(["servescope"])
from PySide6.QtGui import QFontDatabase
from ui import fonts
fonts.load()
screen = application.primaryScreen()
size = screen.size()
print(json.dumps({"version": __version__, "platform": application.platformName(),
                  "screen": [size.width(), size.height(), screen.devicePixelRatio()],
                  "fonts": sorted({fonts.SANS, fonts.MONO} - set(QFontDatabase.families()))}))
"""


@dataclass(frozen=True)
class Check:
    """`remedy` is empty where there is nothing to do. `essential`: without it nothing of Servescope works."""

    name: str
    state: State
    detail: str
    remedy: str = ""
    essential: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    """0 when all that is essential is there, 1 otherwise."""
    checks = examine()
    fine = all(check.state != "missing" for check in checks if check.essential)
    print(as_json(checks, fine) if args.json else as_text(checks, fine))
    return 0 if fine else 1


def as_json(checks: list[Check], fine: bool) -> str:
    return json.dumps({"ok": fine, "checks": [asdict(check) for check in checks]}, indent=1)


def as_text(checks: list[Check], fine: bool) -> str:
    lines = []
    for check in checks:
        lines.append(f"{check.state:<8} {check.name:<12} {check.detail}")
        if check.remedy:
            lines.append(f"{'':<22}→ {check.remedy}")
    lines.append("Servescope can run here." if fine else "Servescope cannot run here yet.")
    return "\n".join(lines)


def examine() -> list[Check]:
    torch, torch_error = trial(TORCH_TRIAL)
    driver = drivers()
    return [
        python(),
        packages(),
        torch_check(torch, torch_error),
        device(torch, has_driver=driver[0].state == "ok"),
        *driver,
        triton(torch),
        *packed(*trial(NUMBA_TRIAL)),
        *window(),
        model_cache(),
    ]


def trial(script: str, environment: dict[str, str] | None = None) -> tuple[dict, str]:
    """What a script printed as JSON, or why it didn't."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True, text=True, timeout=TRIAL_LIMIT, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})}, cwd=Path(__file__).parents[1],
        )
    except subprocess.TimeoutExpired:
        return {}, f"no answer within {TRIAL_LIMIT:.0f} seconds"
    except OSError as error:
        return {}, str(error)
    try:
        return json.loads(done.stdout.strip().splitlines()[-1]), ""
    except (ValueError, IndexError):
        said = [line for line in done.stderr.splitlines() if line.strip()]
        return {}, said[-1].strip() if said else f"it ended with status {done.returncode}"


def python(version: tuple[int, int] = sys.version_info[:2]) -> Check:
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if version < OLDEST_PYTHON:
        return Check("Python", "missing", detail, "use Python 3.11 or newer", essential=True)
    return Check("Python", "ok", detail, essential=True)


def packages(find: Callable[[str], str] = metadata.version) -> Check:
    absent = []
    for name in PACKAGES:
        try:
            find(name)
        except metadata.PackageNotFoundError:
            absent.append(name)
    if absent:
        names = " ".join(absent)
        return Check("packages", "missing", f"not installed: {names}", f"pip install {names}", essential=True)
    return Check("packages", "ok", f"all {len(PACKAGES)} installed", essential=True)


def torch_check(found: dict, error: str) -> Check:
    if not found:
        return Check("torch", "missing", error, "pip install 'torch>=2.11,<2.14'", essential=True)
    build = f"CUDA {found['build']}" if found["build"] else "CPU only"
    detail = f"{found['version']}, built for {build}" if found["build"] else f"{found['version']}, {build}"
    return Check("torch", "ok", detail, essential=True)


def device(found: dict, has_driver: bool) -> Check:
    """What `--device auto` takes."""
    if not found:
        return Check("device", "missing", "not known without torch", "see torch")
    if found["devices"]:
        about = found["devices"]
        names = [f"{name} (compute {capability}, {size / 2**30:.1f} GiB)" for name, capability, size in about]
        return Check("device", "ok", "; ".join(names))
    threads = f"CPU, {found['threads']} thread{'s' if found['threads'] > 1 else ''}"
    if has_driver and not found["build"]:
        return Check("device", "note", f"{threads}: this torch cannot use the NVIDIA GPU",
                     "install a CUDA build of torch (pytorch.org, 'Get started')")
    if has_driver:
        return Check("device", "note", f"{threads}: torch finds no usable GPU",
                     "check CUDA_VISIBLE_DEVICES, and that the driver is new enough for torch's CUDA")
    return Check("device", "ok", threads)


def drivers() -> list[Check]:
    """The driver, and what NVML tells of memory."""
    from app import nvml as probe
    from app import nvml_device, nvml_faults

    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return [
            Check("driver", "missing", "cannot be asked without the module pynvml", "pip install nvidia-ml-py"),
            Check("NVML", "missing", "the module pynvml is not installed", "pip install nvidia-ml-py"),
        ]
    try:
        nvml.nvmlInit()
        try:
            handle = nvml_device.first_visible(nvml, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
            version = nvml.nvmlSystemGetDriverVersion()
            total, used, _ = probe.memory_of(nvml, handle)
            listed = probe.processes_of(nvml, handle) is not None
        finally:
            nvml.nvmlShutdown()
    except Exception as error:
        why = nvml_faults.absent(error)
        remedy = "for a GPU, install NVIDIA's driver; without one Servescope runs on the CPU"
        return [
            Check("driver", "note", why, remedy),
            Check("NVML", "note", f"no figures of a GPU's memory: {why}", "the memory view shows the process instead"),
        ]
    text = version.decode() if isinstance(version, bytes) else str(version)
    gaps = [] if listed else ["memory by process"]
    gaps += [name for name, value in (("total", total), ("used", used)) if value is None]
    if gaps:
        return [Check("driver", "ok", text), Check("NVML", "note", f"the driver does not tell: {', '.join(gaps)}")]
    return [Check("driver", "ok", text), Check("NVML", "ok", f"{used / 2**20:,.0f} of {total / 2**20:,.0f} MiB in use")]


def triton(found: dict) -> Check:
    if found.get("triton"):
        return Check("Triton", "ok", found["triton"])
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return Check("Triton", "note", "not available for this system; the CPU needs none")
    remedy = "pip install triton, for CUDA's kernels; the CPU needs none"
    return Check("Triton", "missing", "not installed", remedy)


def packed(found: dict, error: str) -> list[Check]:
    """What the CPU needs for weights in 4 or 8 bits: numba, and an instruction that multiplies bytes."""
    if not found:
        return [
            Check("numba", "missing", error, "pip install 'numba>=0.68,<0.69'; without it weights are held as floats"),
            Check("VNNI", "note", "not known without numba", "see numba"),
        ]
    checks = [Check("numba", "ok", found["version"])]
    if found["bytes"]:
        return [*checks, Check("VNNI", "ok", f"this CPU multiplies {found['bytes']} bytes in an instruction")]
    remedy = "nothing to install; weights are held as floats, and --dtype file or int8 are slow here"
    return [*checks, Check("VNNI", "note", "this CPU has no instruction for products of bytes", remedy)]


def window() -> list[Check]:
    """Qt's libraries without a screen, which all pictures need; then the screen."""
    qt, error = trial(QT_TRIAL, {"QT_QPA_PLATFORM": "offscreen"})
    if not qt:
        remedy = f"pip install 'PySide6-Essentials>=6.10,<6.12'; on Debian or Ubuntu also: {display.LIBRARIES}"
        return [Check("Qt", "missing", error, remedy, essential=True)]
    checks = [Check("Qt", "ok", qt["version"], essential=True), fonts(qt)]
    trouble = display.problem()
    if trouble:
        return [*checks, Check("display", "missing", "no display", trouble.partition("; ")[2])]
    shown, error = trial(QT_TRIAL)
    if not shown:
        return [*checks, Check("display", "missing", error, f"on Debian or Ubuntu: {display.LIBRARIES}")]
    width, height, ratio = shown["screen"]
    return [*checks, Check("display", "ok", f"Qt platform {shown['platform']}, {width}×{height} at {ratio:g}")]


def fonts(qt: dict) -> Check:
    if qt["fonts"]:
        return Check("fonts", "note", f"{' and '.join(qt['fonts'])} could not be loaded", "reinstall servescope")
    return Check("fonts", "ok", "the shipped ones")


def model_cache() -> Check:
    from engine.model.cache import cache_dir
    from engine.model.problem import ModelProblem
    from engine.model.store import DEFAULT, cached_default

    try:
        directory = cache_dir()
        found = cached_default(directory)
        there = next(path for path in (directory, *directory.parents) if path.exists())
    except ModelProblem as problem:
        return Check("model cache", "missing", "no place for it", str(problem))
    except OSError as error:
        return Check("model cache", "missing", f"{error.filename}: {error.strerror}",
                     "make it readable, or set SERVESCOPE_CACHE to another directory")
    if found is not None:
        return Check("model cache", "ok", str(found))
    needed = DEFAULT.size + DEFAULT.member_size
    if not os.access(there, os.W_OK) or not there.is_dir():
        return Check("model cache", "missing", f"{directory} cannot be written",
                     "make it writable, or set SERVESCOPE_CACHE to another directory")
    free = shutil.disk_usage(there).free
    if free < needed:
        return Check("model cache", "missing", f"{directory}: {free / 2**20:,.0f} MiB free",
                     f"the default model needs {needed / 2**20:,.0f} MiB: free some, or set SERVESCOPE_CACHE")
    return Check("model cache", "note", f"the default model is not in {directory} yet",
                 f"it comes at the first start: {DEFAULT.size / 2**20:,.0f} MiB, once")
