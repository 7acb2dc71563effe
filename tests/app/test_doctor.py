"""Every answer of the doctor, from made-up findings; and the whole of it once on this machine."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from app import doctor
from app.doctor import Check
from engine.model import store

TORCH = {"version": "2.13.0", "build": "", "threads": 2, "devices": [], "triton": "3.6"}
QT = {"version": "6.11.3", "platform": "xcb", "screen": [1920, 1080, 1.0], "fonts": []}


def test_on_this_machine(capsys: pytest.CaptureFixture) -> None:
    code = doctor.run(argparse.Namespace(json=True))
    answer = json.loads(capsys.readouterr().out)
    names = [check["name"] for check in answer["checks"]]
    assert names == [
        "Python", "packages", "torch", "device", "driver", "NVML", "Triton", "numba", "VNNI", "Qt", "fonts",
        "display", "model cache",
    ]
    assert answer["ok"] and code == 0, answer
    for check in answer["checks"]:
        assert check["state"] == "ok" or check["remedy"] or check["name"] in ("Triton", "NVML"), check


def test_neither_torch_nor_qt_is_loaded_here() -> None:
    script = (
        "import sys; from app import doctor; doctor.trial = lambda *a: ({}, 'no'); doctor.examine()\n"
        "print([name for name in ('torch', 'PySide6', 'tokenizers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_exit_code_follows_what_is_essential(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    checks = [Check("a", "ok", "fine", essential=True), Check("b", "missing", "not here", "get it")]
    monkeypatch.setattr(doctor, "examine", lambda: checks)
    assert doctor.run(argparse.Namespace(json=False)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ok       a            fine",
        "missing  b            not here",
        "                      → get it",
        "Servescope can run here.",
    ]
    checks.append(Check("c", "missing", "gone", "fetch", essential=True))
    assert doctor.run(argparse.Namespace(json=False)) == 1
    assert "cannot run here yet" in capsys.readouterr().out


def test_python_and_packages() -> None:
    assert doctor.python((3, 10)).state == "missing" and doctor.python((3, 11)).state == "ok"

    def find(name: str) -> str:
        if name in ("gguf", "qasync"):
            raise metadata.PackageNotFoundError(name)
        return "1"

    assert doctor.packages(find).remedy == "pip install qasync gguf"
    assert doctor.packages(lambda name: "1").state == "ok"


def test_torch() -> None:
    assert doctor.torch_check(TORCH, "").detail == "2.13.0, CPU only"
    assert doctor.torch_check(TORCH | {"build": "12.8"}, "").detail == "2.13.0, built for CUDA 12.8"
    missing = doctor.torch_check({}, "No module named 'torch'")
    assert missing.state == "missing" and missing.essential and "pip install" in missing.remedy


@pytest.mark.parametrize(
    ("found", "has_driver", "state", "said"),
    [
        (TORCH, False, "ok", "CPU, 2 threads"),
        (TORCH, True, "note", "this torch cannot use the NVIDIA GPU"),
        (TORCH | {"build": "12.8"}, True, "note", "finds no usable GPU"),
        (TORCH | {"devices": [["H200", "9.0", 141 << 30]]}, True, "ok", "H200 (compute 9.0, 141.0 GiB)"),
        ({}, True, "missing", "not known without torch"),
    ],
)
def test_device(found: dict, has_driver: bool, state: str, said: str) -> None:
    check = doctor.device(found, has_driver)
    assert check.state == state and said in check.detail


def test_driver_and_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.app.test_nvml import FakeNvml, error

    fake = FakeNvml()
    fake.nvmlSystemGetDriverVersion = lambda: "580.1"
    monkeypatch.setattr(doctor.importlib, "import_module", lambda name: fake)
    driver, nvml = doctor.drivers()
    assert (driver.state, driver.detail) == ("ok", "580.1")
    assert (nvml.state, nvml.detail) == ("ok", "3,000 of 24,564 MiB in use")
    gpu = fake.gpus[0]
    gpu.compute = gpu.graphics = gpu.memory1 = gpu.memory2 = error("NotSupported")
    assert doctor.drivers()[1].detail == "the driver does not tell: memory by process, total, used"
    fake.fail = error("DriverNotLoaded")
    driver, nvml = doctor.drivers()
    assert driver.state == nvml.state == "note" and "not loaded" in driver.detail

    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(doctor.importlib, "import_module", absent)
    assert [check.remedy for check in doctor.drivers()] == ["pip install nvidia-ml-py"] * 2


def test_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.triton(TORCH).detail == "3.6"
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(doctor.platform, "machine", lambda: "x86_64")
    assert doctor.triton({}).state == "missing"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert doctor.triton({}).state == "note"


def test_numba_and_byte_products() -> None:
    numba, products = doctor.packed({"version": "0.68.0", "bytes": 64}, "")
    assert (numba.state, numba.detail, products.state) == ("ok", "0.68.0", "ok") and "64 bytes" in products.detail
    _, products = doctor.packed({"version": "0.68.0", "bytes": 0}, "")
    assert products.state == "note" and "floats" in products.remedy and not products.essential
    numba, products = doctor.packed({}, "No module named 'numba'")
    assert numba.state == "missing" and "pip install 'numba" in numba.remedy and not numba.essential
    assert (products.state, products.remedy) == ("note", "see numba")


def window(monkeypatch: pytest.MonkeyPatch, trouble: str, *answers: tuple[dict, str]) -> list[Check]:
    given = iter(answers)
    monkeypatch.setattr(doctor, "trial", lambda *arguments: next(given))
    monkeypatch.setattr(doctor.display, "problem", lambda: trouble)
    return doctor.window()


def test_window(monkeypatch: pytest.MonkeyPatch) -> None:
    (qt,) = window(monkeypatch, "", ({}, "libEGL.so.1: cannot open"))
    assert qt.essential and qt.state == "missing" and "apt-get" in qt.remedy
    *_, screen = window(monkeypatch, "no display; set DISPLAY", (QT, ""))
    assert (screen.state, screen.remedy, screen.essential) == ("missing", "set DISPLAY", False)
    *_, screen = window(monkeypatch, "", (QT, ""), ({}, "could not load the Qt platform plugin"))
    assert screen.state == "missing" and "apt-get" in screen.remedy
    _, fonts, screen = window(monkeypatch, "", (QT | {"fonts": ["Inter"]}, ""), (QT, ""))
    assert fonts.state == "note" and screen.detail == "Qt platform xcb, 1920×1080 at 1"


def test_model_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = tmp_path / "not" / "yet"
    monkeypatch.setenv("SERVESCOPE_CACHE", str(place))
    absent = doctor.model_cache()
    assert absent.state == "note" and "89 MiB, once" in absent.remedy and not place.exists()
    usage = doctor.shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(doctor.shutil, "disk_usage", lambda path: usage._replace(free=5 << 20))
        assert "5 MiB free" in doctor.model_cache().detail
    with monkeypatch.context() as patch:
        patch.setattr(doctor.os, "access", lambda *arguments: False)
        assert "cannot be written" in doctor.model_cache().detail
    with monkeypatch.context() as patch:
        found = tmp_path / "m.gguf"
        patch.setattr(store, "cached_default", lambda directory: found)
        assert doctor.model_cache() == Check("model cache", "ok", str(found))


def test_a_trial_that_dies_or_hangs_or_babbles(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.trial("print('warning'); print('{\"a\": 1}')") == ({"a": 1}, "")
    assert doctor.trial("import no_such_module")[1] == "ModuleNotFoundError: No module named 'no_such_module'"
    assert "status" in doctor.trial("import os; os.abort()")[1]
    assert doctor.trial("print('hello')")[0] == {}
    monkeypatch.setattr(doctor, "TRIAL_LIMIT", 0.2)
    assert "no answer within" in doctor.trial("import time; time.sleep(30)")[1]
