"""The command line. Everything else is imported inside `main`: a spawned engine runs this module again, and the
window must be up before anything heavy is read."""

from __future__ import annotations

import sys

COMMANDS = {
    "generate": ("app.generate", "serve prompts together and print what they give"),
    "doctor": ("app.doctor", "check Python, torch, device, driver, Qt and the model cache"),
    "shot": ("app.shot", "take a picture of the live window"),
    "bench": ("app.bench", "measure the engine and the window"),
}


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    from app.options import UsageError

    argv = sys.argv[1:] if argv is None else argv
    try:
        return _run(argv)
    except UsageError as error:
        print(f"servescope: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("servescope: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has left
        sys.stderr.close()
        return 1


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
    return "\n".join(["commands (each has --help):", *(f"  {name:<11}{what}" for name, (_, what) in choices.items())])


if __name__ == "__main__":
    sys.exit(main())
