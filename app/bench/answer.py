"""How a bench answers: with one JSON object, in words, or with why it could not measure."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable


def answered(
    name: str,
    args: argparse.Namespace,
    measure: Callable[[argparse.Namespace], dict],
    in_words: Callable[[dict], str],
    *failures: type[Exception],
) -> dict | None:
    """What `measure` found, printed as JSON with --json, else in words; None: the engine failed, or one of `failures`
    came to pass, and why is told under the bench's name. Raises UsageError."""
    from app.headless import EngineFailed, tell

    try:
        result = measure(args)
    except (EngineFailed, *failures) as failure:
        tell(name, str(failure))
        return None
    print(json.dumps(result) if args.json else in_words(result))
    return result
