"""Where fetched models live, and how files get there whole: one process at a time, checked, or not at all.

Knows nothing of models or networks. A file in the cache is right (its SHA-256 was checked, and neither size nor
time of change have moved since) or it is treated as absent.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from engine.model.problem import ModelProblem

Progress = Callable[[str, int, int], None]  # stage, bytes done, bytes in all (0 = not known)

CHUNK = 1 << 20  # bytes at a time: large enough to cost nothing, small enough for a smooth bar
LOCK_POLL = 0.2  # seconds between tries for a lock another process holds
FULL = (errno.ENOSPC, errno.EDQUOT) if hasattr(errno, "EDQUOT") else (errno.ENOSPC,)
REFUSED = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EFBIG, errno.ELOOP,
    errno.ENAMETOOLONG,
)  # fmt: skip


def no_progress(stage: str, done: int, total: int) -> None:
    """For callers that show none."""


def cache_dir() -> Path:
    """SERVESCOPE_CACHE, or the platform's place for what can be fetched again. Raises ModelProblem."""
    try:
        return _cache_dir()
    except RuntimeError:  # pathlib's, for a user without a home
        raise ModelProblem(
            "this user has no home directory to keep the model in; set SERVESCOPE_CACHE to a directory"
        ) from None


def _cache_dir() -> Path:
    chosen = os.environ.get("SERVESCOPE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "servescope"
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
        return (Path(base) if base else Path.home() / "AppData" / "Local") / "servescope" / "Cache"
    base = os.environ.get("XDG_CACHE_HOME", "")
    # the XDG specification: a relative path there is to be ignored
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "servescope"


@contextmanager
def explained(directory: Path, needed: int) -> Iterator[None]:
    """Turn the operating system's refusals to write into a ModelProblem that names the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise ModelProblem(full_disk(directory, needed)) from error
        if error.errno in REFUSED:
            raise ModelProblem(
                f"cannot write to the model cache {directory} ({error.strerror}); make it writable or set "
                "SERVESCOPE_CACHE to another directory"
            ) from error
        raise ModelProblem(
            f"the model cache {directory} can't be used ({error.strerror or error}); set SERVESCOPE_CACHE to another "
            "directory"
        ) from error


def is_write_error(error: BaseException) -> bool:
    """Whether the disk, not the network, refused."""
    return isinstance(error, OSError) and error.errno in (*FULL, *REFUSED)


def full_disk(directory: Path, needed: int) -> str:
    return (
        f"the disk of the model cache {directory} is full: {needed:,} more bytes are needed; free some space or set "
        "SERVESCOPE_CACHE to a directory on another disk"
    )


def require_room(directory: Path, needed: int) -> None:
    """Refuse before the first byte is written rather than after the last that fits."""
    if needed > 0 and shutil.disk_usage(directory).free < needed:
        raise ModelProblem(full_disk(directory, needed))


@contextmanager
def locked(path: Path, progress: Progress) -> Iterator[None]:
    """Hold a lock between processes. The operating system drops it when its holder dies, however it dies."""
    with open(path, "a+b") as handle:
        while not _try_lock(handle):
            progress("waiting for another Servescope to fetch the model", 0, 0)
            time.sleep(LOCK_POLL)
        try:
            yield
        finally:
            _unlock(handle)


def _try_lock(handle: BinaryIO) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            handle.seek(0)
            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
            return False
        if error.errno in (errno.ENOLCK, errno.ENOTSUP):
            return True  # a file system without locks: two fetches at once then cost time, files are still checked
        raise
    return True


def _unlock(handle: BinaryIO) -> None:
    if sys.platform == "win32":
        import msvcrt

        handle.seek(0)
        msvcrt.locking(handle.fileno(), msvcrt.LK_UNLCK, 1)
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_UN)


def sha256(path: Path, progress: Progress = no_progress, stage: str = "checking the model") -> str:
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            progress(stage, done, total)
    return digest.hexdigest()


def is_whole(path: Path, digest: str, progress: Progress = no_progress) -> bool:
    """Whether `path` holds those bytes. Hashes only when the file isn't as it was when last checked."""
    try:
        seen = path.stat()
    except OSError:
        return False
    stamp = {"sha256": digest, "size": seen.st_size, "mtime_ns": seen.st_mtime_ns}
    note = path.with_name(path.name + ".checked")
    try:
        if json.loads(note.read_text()) == stamp:
            return True
    except (OSError, ValueError):
        pass  # never checked, or a damaged note: check
    if sha256(path, progress) != digest:
        return False
    with suppress(OSError):  # a read-only cache only costs a check at each start
        note.write_text(json.dumps(stamp))
    return True
