"""The command line. Everything else is imported inside `main`: a spawned engine runs this module again, and the
window must be up before anything heavy is read."""

from __future__ import annotations

import os
import sys

COMMANDS = {
    "generate": ("app.generate", "serve prompts together and print what they give"),
    "doctor": ("app.doctor", "check Python, torch, device, driver, numba, Qt and the model cache"),
    "story": ("app.story", "run a story without the window and print what both of its runs did"),
    "shot": ("app.shot", "take a picture of the live window"),
    "bench": ("app.bench", "measure the engine and the window"),
}


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        _mend_streams()
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()  # here, where a full disk or a reader that left can still be told
    except KeyboardInterrupt:
        print("servescope: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has left
        _drop_output()
        return 1
    except OSError as error:
        _drop_output()
        where = error.filename or "input or output failed"
        print(f"servescope: {where}: {error.strerror or error}", file=sys.stderr)
        return 1
    except Exception as error:
        from app.options import UsageError

        if isinstance(error, UsageError):
            print(f"servescope: {error}", file=sys.stderr)
            return 2
        from app.bench.runs import BenchFailed

        if isinstance(error, BenchFailed):
            print(f"servescope: {error}", file=sys.stderr)
            return 1
        if os.environ.get("SERVESCOPE_DEBUG"):
            raise
        what = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"servescope: {what}; please report this with what SERVESCOPE_DEBUG=1 shows", file=sys.stderr)
        return 1


def _mend_streams() -> None:
    """Standard streams that a caller closed lead nowhere, and characters that one can't show are escaped.

    A closed descriptor would be given to the next pipe, which then is taken for standard output.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: `fd`
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for as long as we run
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """What is still buffered can't be written; without this the interpreter would try again when it ends."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # not a file, as under a test
        return


def _run(argv: list[str]) -> int:
    """The words before the options choose a module that has `add_arguments(parser)` and `run(args)`."""
    from importlib import import_module

    from app.bench import BENCHES, EXAMPLES
    from app.options import Parser

    words: list[str] = []
    choices, module = COMMANDS, "app.window"
    while choices and argv and not argv[0].startswith("-"):
        word, *argv = argv
        module = _choose(choices, word)
        words.append(word)
        choices = BENCHES if words == ["bench"] else {}
    prog = " ".join(["servescope", *words])
    if words == ["bench"]:
        parser = Parser(prog=prog, usage=f"{prog} NAME ...", description=_listing(BENCHES), epilog=EXAMPLES)
        parser.parse_args(argv)
        parser.error(f"name one: {', '.join(BENCHES)}")
    command = import_module(module)
    parser = Parser(
        prog=prog,
        description=command.__doc__ if words else f"{command.__doc__}\n\n{_listing(COMMANDS)}",
        epilog=command.EXAMPLES,
    )
    command.add_arguments(parser)
    return command.run(parser.parse_args(argv))


def _choose(choices: dict[str, tuple[str, str]], word: str) -> str:
    from app.options import UsageError

    if word not in choices:
        raise UsageError(f"there is no '{word}' (there are: {', '.join(choices)})")
    return choices[word][0]


def _listing(choices: dict[str, tuple[str, str]]) -> str:
    return "\n".join(["commands (each has --help):", *(f"  {name:<13}{what}" for name, (_, what) in choices.items())])


if __name__ == "__main__":
    sys.exit(main())
