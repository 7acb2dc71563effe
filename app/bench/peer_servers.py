"""Other engines, started with the same weights and threads, held still while another is measured, and stopped.

A `Served` peer is measured over HTTP; vLLM's and llama.cpp's rates without it come from a process that answers line
by line and from a program that is run for each measurement.
"""

from __future__ import annotations

import json
import os
import random
import re
import select
import socket
import subprocess
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import monotonic, sleep
from typing import IO

from app.bench import load
from app.bench.peer_group import Group, PeerFailed, last_of, last_words

START_LIMIT = 900.0  # s; vLLM compiles for minutes the first time on a machine
MEASURE_LIMIT = 300.0  # s
LOOK = 0.1  # s between looks at a server that starts
CONTEXT = 2048  # tokens that vLLM may hold of one sequence
SLOT = 1280  # tokens of each of llama.cpp's slots: the longest prompt here and its answer
SLOTS = 33  # as many streams as a point has, and one
SEQUENCES = 64
WARM_UP = (16, 8)  # prompt and new tokens of a request that isn't counted


@dataclass(frozen=True)
class Point:
    """One place of the race: so many streams of so many prompt and new tokens, and which phase counts."""

    name: str
    streams: int
    prompt_tokens: int
    new_tokens: int

    @property
    def phase(self) -> str:
        return "decode" if self.new_tokens > 1 else "prefill"


@dataclass(frozen=True)
class Disturbance:
    """While `streams` decode, one prompt of `newcomer_tokens` arrives."""

    streams: int
    prompt_tokens: int
    new_tokens: int
    newcomer_tokens: int


class Served:
    """A peer behind its own HTTP server."""

    offline = False

    def __init__(self, group: Group, port: int, vocabulary: int):
        self.name = group.name
        self._group, self._port, self._vocabulary = group, port, vocabulary

    def start(self) -> None:
        deadline = monotonic() + START_LIMIT
        while not _healthy(self._port):
            self._group.check()
            if monotonic() > deadline:
                raise PeerFailed(f"{self.name} wasn't ready in {START_LIMIT:.0f} s: {last_words(self._group.log)}")
            sleep(LOOK)
        self._group.hold()

    def measure(self, point: Point, rng: random.Random) -> float:
        """Tokens/s of the point's phase."""
        texts = load.prompts(rng, point.streams, point.prompt_tokens, self._vocabulary)
        with self._group.awake():
            self._warm_up(rng)
            if point.phase == "prefill":
                return load.prefill_rate(self._port, texts[0])
            return load.decode_rate(self._port, texts, point.new_tokens)

    def disturb(self, what: Disturbance, rng: random.Random) -> dict[str, float]:
        texts = load.prompts(rng, what.streams, what.prompt_tokens, self._vocabulary)
        (newcomer,) = load.prompts(rng, 1, what.newcomer_tokens, self._vocabulary)
        with self._group.awake():
            self._warm_up(rng)
            return load.interference(self._port, texts, what.new_tokens, newcomer)

    def stop(self) -> None:
        self._group.stop()

    def _warm_up(self, rng: random.Random) -> None:
        prompt, new = WARM_UP
        load.decode_rate(self._port, load.prompts(rng, 1, prompt, self._vocabulary), new)


class VllmOffline:
    """vLLM in one process without HTTP, driven line by line."""

    offline = True

    def __init__(self, group: Group, vocabulary: int):
        self.name = group.name
        self.version = ""
        self._group, self._vocabulary = group, vocabulary

    def start(self) -> None:
        self.version = str(self._read(START_LIMIT)["ready"])
        self._ask(load.prompts(random.Random(0), 1, WARM_UP[0], self._vocabulary), WARM_UP[1])
        self._group.hold()

    def measure(self, point: Point, rng: random.Random) -> float:
        with self._group.awake():
            self._ask(load.prompts(rng, 1, WARM_UP[0], self._vocabulary), WARM_UP[1])
            texts = load.prompts(rng, point.streams, point.prompt_tokens, self._vocabulary)
            return self._ask(texts, point.new_tokens)[point.phase]

    def stop(self) -> None:
        self._group.stop()

    def _ask(self, prompts: list[list[int]], new_tokens: int) -> dict[str, float]:
        line = json.dumps({"prompts": prompts, "new_tokens": new_tokens}) + "\n"
        try:
            self._stdin.write(line.encode())
            self._stdin.flush()
        except BrokenPipeError:
            self._group.process.wait()
        return self._read(MEASURE_LIMIT)

    def _read(self, limit: float) -> dict:
        stdout = self._group.process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], limit)[0]:
            raise PeerFailed(f"{self.name} didn't answer within {limit:.0f} s")
        line = stdout.readline()
        if not line:
            self._group.process.wait()
            self._group.check()
        return json.loads(line)

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._group.process.stdin is not None
        return self._group.process.stdin


class LlamaOffline:
    """llama.cpp's own bench of batched decoding, which samples nothing and feeds random tokens back."""

    offline = True

    def __init__(self, name: str, program: Path, model: Path, threads: int):
        self.name = name
        self._command = [str(program), "-m", str(model), "-t", str(threads), "-tb", str(threads)]

    def start(self) -> None:
        pass

    def measure(self, point: Point, _rng: random.Random) -> float:
        streams, prompt, new = point.streams, point.prompt_tokens, max(2, point.new_tokens)
        context = str(streams * (prompt + new))
        sizes = ["-c", context, "-npp", str(prompt), "-ntg", str(new), "-npl", str(streams)]
        command = [*self._command, *sizes, "--output-format", "jsonl"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=MEASURE_LIMIT, check=False)
        except subprocess.TimeoutExpired:
            raise PeerFailed(f"{self.name} didn't end within {MEASURE_LIMIT:.0f} s") from None
        except OSError as error:
            raise PeerFailed(f"{self.name} can't be started: {command[0]}: {error.strerror}") from None
        found = re.search(r'"speed_pp": ([\d.]+).*"speed_tg": ([\d.]+)', done.stdout)
        if not found:
            raise PeerFailed(f"{self.name} ended with {done.returncode}: {last_of(done.stderr)}")
        return float(found[1 if point.phase == "prefill" else 2])

    def stop(self) -> None:
        pass


Peer = Served | VllmOffline | LlamaOffline


def vllm_served(python: Path, model: Path, vocabulary: int, threads: int, logs: Path) -> Served:
    """`model` lies in `logs`, where vLLM runs: it keeps what it compiled under the model's path, as it was given."""
    port = free_port()
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", model.name]
    command += ["--served-model-name", load.MODEL, "--host", load.HOST, "--port", str(port), "--dtype", "bfloat16"]
    command += ["--max-model-len", str(CONTEXT), "--max-num-seqs", str(SEQUENCES)]
    group = Group("vLLM", command, logs / "vllm.log", vllm_environment(threads))
    return Served(group, port, vocabulary)


def vllm_offline(python: Path, model: Path, vocabulary: int, threads: int, logs: Path) -> VllmOffline:
    script = Path(__file__).with_name("peer_vllm_offline.py")
    command = [str(python), str(script), model.name]
    group = Group("vLLM offline", command, logs / "vllm-offline.log", vllm_environment(threads), pipes=True)
    return VllmOffline(group, vocabulary)


def vllm_environment(threads: int) -> dict[str, str]:
    """Ours, with what vLLM's CPU build is to use; whatever it would fetch or report stays here."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(threads))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OMP_", "OPENBLAS_"))}
    return (
        kept
        | {
            "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB; 33 sequences of 1,280 tokens need 1
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores[:threads])),
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
        }
    )


def llama_served(name: str, program: Path, model: Path, vocabulary: int, threads: int, logs: Path) -> Served:
    """A slot's cache apart from the others': with one for all, attention walks every slot's cells."""
    port = free_port()
    command = [str(program), "-m", str(model), "--host", load.HOST, "--port", str(port)]
    command += ["-t", str(threads), "-tb", str(threads), "-np", str(SLOTS), "-c", str(SLOTS * SLOT)]
    command += ["--no-kv-unified", "--cache-ram", "0", "--no-webui"]
    log = logs / f"{name.replace(' ', '-')}.log"
    return Served(Group(name, command, log, dict(os.environ)), port, vocabulary)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind((load.HOST, 0))
        return taken.getsockname()[1]


def _healthy(port: int) -> bool:
    connection = HTTPConnection(load.HOST, port, timeout=2)  # urllib would ask a proxy, where one is set
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
