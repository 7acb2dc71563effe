"""A worker that tells, as its first notice, which modules a real engine has in its process."""

from __future__ import annotations

import sys
from dataclasses import replace

import msgspec

from engine.config import EngineConfig
from engine.worker import Built, Progress, serve


def main(commands, records, config: bytes) -> None:
    serve(commands, records, config, _build)


def _build(config: EngineConfig, progress: Progress) -> Built:
    from engine.build import build

    built = build(config, progress)
    names = " ".join(sorted(sys.modules))
    return replace(built, ready=msgspec.structs.replace(built.ready, notices=[names]))
