"""One engine that is watched in turns: starts the window's process, switches who looks on, and measures the engine.

The measuring process is neither the engine nor its reader. Steps are read from the log that the child keeps
(`engine.step_log`), processor time from /proc.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from app.bench.observed import Job
from app.bench.runs import BenchFailed
from engine import step_log

READY_WITHIN = 180.0  # s, compiling included
AWAKE_WITHIN = 60.0  # s
SETTLE = 0.5  # s after a switch that aren't counted: a keyframe, first paints
AHEAD = 1.5  # requests queued in the child before a segment, as a share of those that it can end in it


@dataclass(frozen=True)
class Segment:
    """What was seen in some seconds of one arm. Rates are a second of real time, lateness ms, CPU shares of a core."""

    arm: str
    seconds: float
    steps_per_s: float
    tokens_per_s: float
    late_p50: float
    late_p99: float
    window_cpu: float
    engine_cpu: float
    engine_ms_per_step: float  # of processor time
    starved: bool  # the queue ran empty


class Watched:
    """A process with a window over one engine. Use as a context; raises BenchFailed when either ends early."""

    def __init__(self, job: Job):
        self._job = job
        self._directory = tempfile.TemporaryDirectory(prefix="servescope-bench-")
        path = Path(self._directory.name) / "steps"
        self.log = step_log.StepLog(path, create=True)
        self._errors = open(Path(self._directory.name) / "errors", "w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "app.bench.observed", msgspec.json.encode(job).decode()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env=os.environ | {step_log.PATH: str(path)},
        )  # fmt: skip
        self.engine = 0  # its process id
        self.period = 0  # ns between two due steps; 0 = they come as fast as they can
        self.said: dict = {}

    def __enter__(self) -> Watched:
        try:
            self.said = self._answer()
            self.engine = self.said["engine"]
            self.order(f"submit {self._streams * 2}")
            self.until_step(50)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):  # it has ended, and an order is still in the buffer
            self._process.stdin.close()  # which it takes for "stop"
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
        self._process.stdout.close()
        self._directory.cleanup()

    @property
    def _streams(self) -> int:
        return self._job.config.settings.max_batch

    def order(self, line: str) -> dict:
        """Have something done; the answer when it is."""
        with contextlib.suppress(OSError):  # it has ended; the answer says why
            print(line, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict:
        line = self._process.stdout.readline()
        said = json.loads(line) if line else {}
        if not said or "died" in said:
            self._errors.seek(0)
            last = (self._errors.read().strip().splitlines() or ["it said nothing"])[-1]
            raise BenchFailed(f"the window's process ended: {said.get('died') or last}")
        return said

    def _still_there(self, within: float = 0.0) -> None:
        """Raises BenchFailed if the window's process ends `within` seconds, as it does after its engine."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(within)
            self._answer()

    def until_step(self, step: int) -> None:
        """Wait until the engine has made so many."""
        end = time.monotonic() + READY_WITHIN
        while self.log.count < step:
            self._still_there()
            if time.monotonic() > end:
                raise BenchFailed(f"the engine made no step {step} within {READY_WITHIN:.0f} s")
            time.sleep(0.02)

    # --- arms ---

    def fill(self, seconds: float) -> None:
        """Queue what the engine can end in that time, and more."""
        rows = self.log.rows[: self.log.count][-200:]
        rate = rows[:, 3].sum() / max(1e-9, (rows[-1, 2] - rows[0, 1]) / 1e9)
        mean = sum(self._job.lengths) / 2
        wanted = self._streams + int(AHEAD * seconds * rate / mean)
        missing = wanted - int(rows[-1, 4])
        if missing > 0:
            self.order(f"submit {missing}")
            self.until_step(self.log.count + 3)

    def segment(self, arm: str, seconds: float) -> Segment:
        """Switch to the arm, let it settle, and measure for so long. Frozen is the open window's process, stopped."""
        self.fill(seconds + 2 * SETTLE)
        self.order("open" if arm == "frozen" else arm)
        time.sleep(SETTLE)
        if arm != "frozen":
            return self.measure(arm, seconds)
        with self.frozen():
            time.sleep(SETTLE)
            return self.measure(arm, seconds)

    @contextlib.contextmanager
    def frozen(self):
        """The window's process is stopped, the engine is not."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def measure(self, arm: str, seconds: float) -> Segment:
        """The next `seconds` with the window as it is now, which `arm` names. Raises BenchFailed."""
        self.log.set_pace(self.period)  # what was late before is no fault of this arm's
        since, cpu = time.monotonic_ns(), self._cpu()
        time.sleep(seconds)
        until, later = time.monotonic_ns(), self._cpu()
        rows, passed = self.log.between(since, until), (until - since) / 1e9
        if len(rows) < 2:
            if arm != "frozen":
                self._still_there(3.0)
            raise BenchFailed(f"the engine made {len(rows)} steps in {seconds:g} s ({arm})")
        # from one step's end to another's: a segment that cuts a step in two counts neither half
        spent = (rows[-1, 2] - rows[0, 2]) / 1e9
        late = (rows[:, 1] - rows[:, 0]) / 1e6
        return Segment(
            arm=arm,
            seconds=passed,
            steps_per_s=(len(rows) - 1) / float(spent),
            tokens_per_s=int(rows[1:, 3].sum()) / float(spent),
            late_p50=float(median(late)),
            late_p99=float(np.percentile(late, 99)),
            window_cpu=(later[0] - cpu[0]) / passed,
            engine_cpu=(later[1] - cpu[1]) / passed,
            engine_ms_per_step=1e3 * (later[1] - cpu[1]) / len(rows),
            starved=bool((rows[:, 4] == 0).any()),
        )

    def frames(self) -> dict[str, float]:
        """What the window's frames cost since it was opened, and how many steps it is behind the engine."""
        said = self.order("frames")
        return said | {"steps_behind": self.log.count - said.pop("step")}

    def awake(self) -> float:
        """After a freeze: seconds until the window shows what the engine did a quarter of a second ago, or later."""
        begun = time.monotonic()
        while (waited := time.monotonic() - begun) < AWAKE_WITHIN:
            rows = self.log.rows[: self.log.count]
            recent = len(rows) - np.searchsorted(rows[:, 2], time.monotonic_ns() - 250_000_000)
            if self.frames()["steps_behind"] <= recent:
                break
            time.sleep(0.05)
        return waited

    def _cpu(self) -> tuple[float, float]:
        return cpu_seconds(self._process.pid), cpu_seconds(self.engine)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, of the threads that it has now. NaN where the system doesn't tell."""
    try:
        return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9
    except (OSError, ValueError):
        return float("nan")
