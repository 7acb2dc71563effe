"""Servescope: a desktop window onto a real language-model serving engine."""

from __future__ import annotations

import argparse
import sys

EXAMPLES = """examples:
  servescope
  servescope --model ./my-model.gguf --set max_batch=8 --set kv_blocks=1024
  servescope --simulate h200:llama-3-8b
  servescope --theme light --scale 1.5"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from app.options import add_engine_options, add_simulate

    add_engine_options(parser)
    add_simulate(parser)
    group = parser.add_argument_group("window")
    group.add_argument("--theme", choices=("dark", "light"), help="colours (default: as last time, or dark)")
    group.add_argument("--scale", type=scale, metavar="F", help="size of text, 1 to 2 (default: as last time)")
    group.add_argument("--paused", action="store_true", help="start paused: step with the right arrow key")
    group.add_argument("--quiet", action="store_true", help="start without the built-in workload")


def run(args: argparse.Namespace) -> int:
    import msgspec

    from app import display
    from app.fitting import fit, given
    from app.options import STARTING, engine_config
    from app.workload.arrivals import SIMULATED_LOAD
    from ui.contracts import WorkloadSettings

    config = msgspec.structs.replace(fit(engine_config(args, STARTING), given(args.set)), start_paused=args.paused)
    if trouble := display.problem():
        print(f"servescope: {trouble}", file=sys.stderr)
        return 1
    from app.session import Appearance, Session
    from app.settings import Settings

    settings = Settings()
    try:
        workload = SIMULATED_LOAD if config.simulation is not None else WorkloadSettings()
        session = Session(
            config,
            Appearance(theme=args.theme, scale=args.scale),
            msgspec.structs.replace(workload, running=not args.quiet),
            settings,
        )
        return session.run()
    except ImportError as error:
        print(f"servescope: {display.library_problem(error)}", file=sys.stderr)
        return 1
    finally:
        if settings.trouble:
            print(f"servescope: {settings.trouble}", file=sys.stderr)


def scale(text: str) -> float:
    """An argparse type: 1.0 to 2.0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1.0 <= value <= 2.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 2")
    return value
