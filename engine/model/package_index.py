"""Finding and fetching one wheel from the user's package index, as pip is configured to see it.

Asks the simple index (PEP 503, PEP 691) and downloads with HTTP ranges, so that an interrupted fetch goes on
where it stopped. Where that can't work (client certificates, find-links, keyrings), pip itself fetches. Knows
nothing of models; whoever calls checks the bytes.
"""

from __future__ import annotations

import ast
import base64
import http.client
import importlib.util
import json
import os
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from engine.model.cache import CHUNK, Progress, is_write_error

PYPI = "https://pypi.org/simple"
ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
TIMEOUT = 30.0  # seconds without a byte
TRIES = 4  # fresh connections in a row that may bring nothing
STAGE = "fetching the model"


class FetchFailed(Exception):
    """Why one way of fetching didn't work; never holds a password."""


@dataclass(frozen=True)
class PipConfig:
    indexes: tuple[str, ...]
    certificates: str = ""  # a file of certificate authorities
    proxy: str = ""


def read_pip_config() -> PipConfig:
    """Pip's own answer, environment before files; its defaults where there is no pip."""
    values: dict[str, str] = {}
    if importlib.util.find_spec("pip") is not None:
        with suppress(OSError, subprocess.SubprocessError):  # its defaults then; pip is asked again if they fail
            listing = subprocess.run(
                [sys.executable, "-m", "pip", "config", "list"],
                capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
            ).stdout
            values = parse_pip_config(listing)
    for key in ("index-url", "extra-index-url", "no-index", "cert", "proxy"):
        from_environment = os.environ.get("PIP_" + key.upper().replace("-", "_"))
        if from_environment:
            values[key] = from_environment
    indexes: list[str] = []
    if values.get("no-index", "").lower() not in ("1", "true", "yes", "on"):
        indexes = [values.get("index-url", PYPI), *values.get("extra-index-url", "").split()]
    return PipConfig(tuple(indexes), values.get("cert", ""), values.get("proxy", ""))


def parse_pip_config(listing: str) -> dict[str, str]:
    """`pip config list`: a section's own value goes before the global one."""
    ranked: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        name, _, quoted = line.partition("=")
        section, _, key = name.strip().rpartition(".")
        rank = {"global": 0, "install": 1, "download": 2, ":env:": 3}.get(section, -1)
        if rank < ranked.get(key, (0, ""))[0]:
            continue
        try:
            ranked[key] = (rank, str(ast.literal_eval(quoted.strip())))
        except (ValueError, SyntaxError):
            continue  # not a line of ours
    return {key: value for key, (_, value) in ranked.items()}


class _Links(HTMLParser):
    """All links of a PEP 503 page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]


def shown(url: str) -> str:
    """The address without user name, password and query."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class Index:
    """Requests with pip's certificates and proxy, and credentials only for the host they were given for."""

    def __init__(self, config: PipConfig):
        self.config = config
        try:
            context = ssl.create_default_context(cafile=config.certificates or None)
        except OSError as error:
            raise FetchFailed(f"cannot read the certificates {config.certificates}: {error}") from error
        handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context)]
        if config.proxy:
            handlers.append(urllib.request.ProxyHandler({"http": config.proxy, "https": config.proxy}))
        self._opener = urllib.request.build_opener(*handlers)

    def find(self, project: str, filename: str) -> str:
        """The address of that file, from the first index that has it."""
        why = ["pip's settings name no index"] if not self.config.indexes else []
        for index in self.config.indexes:
            page = f"{index.rstrip('/')}/{project}/"
            try:
                with self._open(page, {"Accept": ACCEPT}) as answer:
                    body, kind = answer.read(), answer.headers.get("Content-Type", "")
                    found = pick_link(body, kind, answer.geturl() or page, filename)
            except (OSError, http.client.HTTPException, ValueError, AttributeError, RecursionError) as error:
                why.append(f"{shown(page)}: {_reason(error)}")
                continue
            if found:
                return self._with_credentials_of(index, found)
            why.append(f"{shown(page)} does not list {filename}")
        raise FetchFailed("; ".join(why))

    def download(self, url: str, part: Path, size: int, progress: Progress) -> None:
        """Fill `part` to `size` bytes, going on from what it holds. Reconnects as long as that brings something."""
        misses = 0
        while True:
            before = part.stat().st_size if part.exists() else 0
            try:
                if self._read_on(url, part, before, size, progress):
                    return
                why = "the connection ended early"
            except urllib.error.HTTPError as error:
                if error.code < 500:
                    raise FetchFailed(f"{shown(url)}: {_reason(error)}") from error
                why = _reason(error)
            except (OSError, http.client.HTTPException) as error:
                if is_write_error(error):
                    raise
                why = _reason(error)
            misses = misses + 1 if not part.exists() or part.stat().st_size <= before else 0
            if misses >= TRIES:
                raise FetchFailed(f"{shown(url)}: {why}")

    def _read_on(self, url: str, part: Path, start: int, size: int, progress: Progress) -> bool:
        """One connection; True when there is nothing more to come. Whoever calls checks the bytes."""
        try:
            answer = self._open(url, {"Range": f"bytes={start}-"} if start else {})
        except urllib.error.HTTPError as error:
            if error.code == 416 and start:  # nothing after `start`: complete, or not a part of this file
                return True
            raise
        with answer:
            if start and answer.status != 206:
                start = 0  # a server without ranges sends the whole file
            done = start
            with open(part, "ab" if start else "wb") as file:
                # a server that never stops must not fill the disk
                while done <= size and (chunk := answer.read(CHUNK)):
                    file.write(chunk)
                    done += len(chunk)
                    progress(STAGE, min(done, size), size)
        return done >= size

    def _open(self, url: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        parts = urllib.parse.urlsplit(url)
        user, _, host = parts.netloc.rpartition("@")
        request = urllib.request.Request(
            urllib.parse.urlunsplit((parts.scheme, host, *parts[2:])),
            headers={"User-Agent": "servescope", "Accept-Encoding": "identity", **headers},
        )
        if user:  # not sent on to another host after a redirect
            token = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {token}")
        return self._opener.open(request, timeout=TIMEOUT)

    @staticmethod
    def _with_credentials_of(index: str, url: str) -> str:
        user, at, host = urllib.parse.urlsplit(index).netloc.rpartition("@")
        parts = urllib.parse.urlsplit(url)
        if not at or parts.netloc != host:
            return url
        return urllib.parse.urlunsplit((parts.scheme, f"{user}@{host}", *parts[2:]))


def pick_link(body: bytes, kind: str, base: str, filename: str) -> str | None:
    """The link to `filename` on a simple-index page, JSON or HTML, without its fragment."""
    if "json" in kind:
        links = [str(entry.get("url", "")) for entry in json.loads(body).get("files", [])]
    else:
        parser = _Links()
        parser.feed(body.decode("utf-8", "replace"))
        links = parser.links
    for link in links:
        url = urllib.parse.urldefrag(urllib.parse.urljoin(base, link)).url
        if urllib.parse.unquote(urllib.parse.urlsplit(url).path).rsplit("/", 1)[-1] == filename:
            return url
    return None


def pip_download(project: str, version: str, target: Path, progress: Progress) -> None:
    """Let pip fetch the wheel to `target`, without its dependencies. Its progress is not known."""
    if importlib.util.find_spec("pip") is None:
        raise FetchFailed("this Python has no pip")
    progress(f"{STAGE} with pip", 0, 0)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="pip-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet",
                   "--no-input", "--dest", folder, f"{project}=={version}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False,
                                  stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as error:
            raise FetchFailed(f"pip did not run: {error}") from error
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise FetchFailed(f"pip download: {(errors or [f'exit status {done.returncode}'])[-1]}")
        os.replace(wheels[0], target)


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
