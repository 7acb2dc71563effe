"""Run a story without the window: the same requests under both of its settings, and what each run did."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time

from app.options import UsageError, add_engine_options, engine_config

EXAMPLES = """examples:
  servescope story
  servescope story reserve-or-page
  servescope story does-drafting-pay --json"""

NAME = "story"
PAUSE = 0.05  # s between looks at a silent engine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="the story; without it, a list of all")
    parser.add_argument("--json", action="store_true", help="one JSON object: each run's figures, and the verdict")
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    from app.fitting import fit, given
    from app.headless import EngineFailed, running, tell
    from app.stories import script

    stories, problems = script.load()
    for problem in problems:
        tell(NAME, problem)
    if args.name is None:
        for story in stories:
            print(f"{story.key:<24}{story.line}")
        return 0
    story = next((one for one in stories if one.key == args.name), None)
    if story is None:
        raise UsageError(f"there is no story '{args.name}' (there are: {', '.join(one.key for one in stories)})")
    config = fit(engine_config(args), given(args.set))
    try:
        with running(config, NAME) as client:
            player = play(client, story, None if args.json else _print)
    except EngineFailed as failure:
        tell(NAME, str(failure))
        return 1
    if player.stage != "over":
        tell(NAME, player.caption)
        return 1
    if args.json:
        print(json.dumps(as_object(player), ensure_ascii=(sys.stdout.encoding or "").lower() != "utf-8"))
    else:
        show_table(player)
    return 0


def play(client, story, say=None):
    """The player after the story's end, told to an engine that is ready. `say` is called with its captions. Raises
    EngineFailed."""
    from app.headless import check
    from app.stories.asks import Draw
    from app.stories.play import Player
    from app.workload.prompts import PromptSet

    numbers = itertools.count(1)
    player = Player(client, Draw(PromptSet.load()), lambda: next(numbers), _Nothing(), reading=0.0)
    player.take([client.ready])
    player.start(story)
    told = ""
    while player.going:
        client.wait(PAUSE)
        messages = client.poll()
        for message in messages:
            check(message)
        for turn in (lambda m=messages: player.take(m), lambda: player.tick(time.monotonic())):
            turn()
            # captions while requests run are filled anew with every step; on paper the others are enough
            if say is not None and player.stage != "running" and player.caption != told:
                told = player.caption
                say(told)
    return player


def as_object(player) -> dict:
    """What --json prints. Times in seconds on the engine's clock; null where a figure has no meaning."""
    from app.stories import figures

    story = player.story
    return {
        "story": story.key,
        "title": story.title,
        "phases": [
            {"name": phase.name, "settings": story.settings | phase.settings, **figures.all_of(measured)}
            for phase, measured in zip(story.phase, player.results.phases, strict=True)
        ],
        "verdict": player.verdict,
        **({"note": player.note} if player.note else {}),
    }


class _Nothing:
    """There are no other arrivals to hold."""

    def hold(self) -> None:
        return None

    def release(self) -> None:
        return None


def _print(caption: str) -> None:
    if caption:
        print(caption, flush=True)


def show_table(player) -> None:
    """Both runs side by side, the figures that mean something."""
    from app.stories import figures

    a, b = player.results.phases
    names = [phase.name for phase in player.story.phase]
    print(f"\n{'':<20}{names[0]:>16}{names[1]:>16}")
    for name, figure in figures.FIGURES.items():
        values = [figures.of(phase, "", name) for phase in (a, b)]
        if any(value == value and value for value in values):
            print(f"{name.replace('_', ' '):<20}{figure.write(values[0]):>16}{figure.write(values[1]):>16}")
