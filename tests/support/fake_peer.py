"""A peer that isn't one: speaks as much of the completions API as a bench asks, with tokens at a fixed pace.

As a program it stands for llama-server (`--port N`, `--version`), and for the Python of a vLLM environment, with or
without HTTP. It writes its process id beside itself, so that a test can see that it is gone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer

PACE = 0.004  # s between two chunks of a stream
SCRIPT = """#!{python}
import sys
sys.path.insert(0, {root!r})
from tests.support import fake_peer
fake_peer.main(sys.argv[1:], {folder!r}, {ready!r})
"""


class Handler(BaseHTTPRequestHandler):
    """What a server's `behaviour` may be: usage (vLLM), timings (llama.cpp), pairs (two tokens a chunk), plain (no
    chunked transfer), short (a token too few), broken (status 500), error (an error in the stream)."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200 if self.server.ready else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        how = self.server.behaviour
        self.server.asked.append(asked)
        self.close_connection = True
        if how == "broken":
            self.send_error(500, "out of slots")
            return
        self.send_response(200)
        if how != "plain":
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        step = 2 if how == "pairs" else 1
        for have in range(step, asked["max_tokens"] + 1 - (how == "short"), step):
            time.sleep(PACE)
            self._event(how, have)
        if how == "error":
            self._send(b'data: {"error": {"message": "no memory"}}\n\n')
        self._send(b"data: [DONE]\n\n")
        if how != "plain":
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_words: object) -> None:
        return

    def _event(self, how: str, have: int) -> None:
        about = {"timings": {"predicted_n": have}} if how == "timings" else {"usage": {"completion_tokens": have}}
        line = b"data: " + json.dumps({"choices": [{"text": "x"}], **about}).encode() + b"\n\n"
        self._send(line[:9])  # a line may come in parts
        self._send(line[9:])

    def _send(self, data: bytes) -> None:
        self.wfile.write(data if self.server.behaviour == "plain" else b"%x\r\n%s\r\n" % (len(data), data))


class FakeServer(ThreadingHTTPServer):
    daemon_threads = False  # closing waits for them

    def __init__(self, behaviour: str, port: int = 0, ready: bool = True):
        super().__init__(("127.0.0.1", port), Handler)
        self.behaviour, self.ready = behaviour, ready
        self.asked: list[dict] = []

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's looks the address's name up, which takes seconds without a network
        self.server_name, self.server_port = self.server_address[:2]


def write_program(path: Path, ready: bool = True) -> Path:
    """An executable at `path` that runs `main`."""
    root = str(Path(__file__).resolve().parents[2])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SCRIPT.format(python=sys.executable, root=root, folder=str(path.parent), ready=ready))
    path.chmod(0o755)
    return path


def pids(folder: Path) -> list[int]:
    """Of the programs in `folder` that were started as servers."""
    return [int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*")]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def main(words: list[str], folder: str, ready: bool) -> None:
    if words == ["--version"]:
        print("version: 7 (fake)", file=sys.stderr)
    elif words[0] == "-c":
        print("1.2.3")
    elif "-npl" in words:
        print('{"n_kv": 1, "speed_pp": 500.5, "t_tg": 1.0, "speed_tg": 40.25, "speed": 9.0}')
    elif "--port" in words:
        Path(folder, f"pid-{os.getpid()}").touch()
        FakeServer("timings", int(words[words.index("--port") + 1]), ready).serve_forever()
    else:
        Path(folder, f"pid-{os.getpid()}").touch()
        print(json.dumps({"ready": "1.2.3"}), flush=True)
        for line in sys.stdin:
            new = json.loads(line)["new_tokens"]
            print(json.dumps({"decode": 50.0 if new > 1 else None, "prefill": 700.0}), flush=True)
