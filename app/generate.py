"""Serve prompts together, as one batch of requests, and print what the model gives."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from app.options import UsageError, add_engine_options, add_simulate, engine_config, is_unicode, typed, within
from engine.config import PENALTIES, WIDEST

EXAMPLES = """examples:
  servescope generate --prompt "Why is the sky blue?" --max-tokens 64
  servescope generate --prompts questions.jsonl --temperature 0.7 --seed 1 --json
  servescope generate --prompt "def add(a, b):" --raw --stop "\\n\\n" --set draft_length=0
  servescope generate --prompt "Name a colour." --n 4 --temperature 0.8 --seed 1
  servescope generate --prompt "Why is the sky blue?" --beams 4 --length-penalty 0.6 --json"""

NAME = "generate"
BYTES_PER_TOKEN = 3  # of ordinary text, a little under the average, to size the pool before any tokenizer is read
TEMPLATE_TOKENS = 48  # what a chat template adds
SPARE_TOKENS = 32  # of a beam: it needs whole blocks, and a pool that is just too small for a search refuses it
MOST_TOKENS = 65_536  # in a pool that nobody sized; more prompts wait for room
EARLY_STOPPING = {"no": False, "yes": True, "never": "never"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("prompts").add_mutually_exclusive_group(required=True)
    what.add_argument("--prompt", metavar="TEXT", help="one prompt")
    what.add_argument("--prompts", metavar="FILE.jsonl", help='a file with a {"prompt": …} on each line; - for stdin')
    group = parser.add_argument_group("answers")
    group.add_argument("--raw", action="store_true", help="send prompts as they are, without the chat template")
    group.add_argument("--max-tokens", type=int, default=128, metavar="N", help="tokens of an answer (default 128)")
    group.add_argument("--temperature", type=float, metavar="T", help="0 takes the likeliest token (default 0)")
    group.add_argument("--top-k", type=int, metavar="K", help="choose among the K likeliest tokens; 0 = all")
    group.add_argument("--top-p", type=float, metavar="P", help="… among those that sum to probability P")
    group.add_argument("--min-p", type=float, metavar="M", help="… among those with M times the best one's probability")
    group.add_argument(
        "--repetition-penalty", type=float, metavar="R", help="make tokens of prompt and answer rarer; 1 = off, try 1.1"
    )
    group.add_argument(
        "--presence-penalty", type=float, metavar="X", help="taken from the logit of each token the answer has; 0 = off"
    )
    group.add_argument("--frequency-penalty", type=float, metavar="X", help="… and for each time that it has it")
    group.add_argument("--seed", type=int, metavar="S", help="the same seed gives the same sampled answer")
    group.add_argument("--n", type=int, default=1, metavar="N", help="sampled answers to each prompt (default 1)")
    group.add_argument("--beams", type=int, metavar="W", help="beam search of that width, 1 to 8; the best is printed")
    group.add_argument(
        "--length-penalty",
        type=float,
        metavar="X",
        help="… that ranks what it found by log-probability ÷ tokens ^ X (default 1)",
    )
    group.add_argument(
        "--early-stopping",
        choices=tuple(EARLY_STOPPING),
        help="… that ends once W are found (yes), when no better one is likely (no), or possible (never); default: no",
    )
    group.add_argument("--stop", action="append", default=[], metavar="STR", help="end the answer before this text")
    group.add_argument("--json", action="store_true", help="one JSON object a line, in the order of the prompts")
    add_engine_options(parser)
    add_simulate(parser)


def run(args: argparse.Namespace) -> int:
    from app.fitting import fit, given, unpaced
    from app.headless import EngineFailed, running, serve, tell

    prompts = [_checked(typed(args.prompt), "--prompt")] if args.prompt is not None else read_prompts(args.prompts)
    requests = _requests(args, prompts)
    asked = engine_config(args)
    _check_temperature(args, asked.settings.temperature)
    config = fit(asked, given(args.set), _pool_tokens(args, prompts))
    simulated = config.simulation.profile if config.simulation is not None else ""
    printer = _Printer(prompts, args.json, args.n, simulated)
    if simulated:
        config = unpaced(config)
        tell(NAME, f"simulated {simulated}: times are computed by a cost model, the text is meaningless")
    try:
        with running(config, NAME) as client:
            answers = serve(client, requests, NAME, lambda _, answers: printer.show(answers.samples))
    except EngineFailed as failure:
        printer.break_line()
        tell(NAME, str(failure))
        return 1
    printer.break_line()
    failed = {answer.number: answer for samples in answers.samples.values() for answer in samples if answer.error}
    for number, answer in failed.items():
        tell(NAME, answer.error if len(prompts) == 1 else f"prompt {number + 1}: {answer.error}")
    return 1 if failed else 0


def read_prompts(name: str) -> list[str]:
    """The prompts in a file of JSON lines. Raises UsageError naming the line."""
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        lines = data.decode("utf-8-sig").split("\n")
    except OSError as error:
        raise UsageError(f"--prompts {name}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"--prompts {name}, line {line}: not UTF-8; save the file as UTF-8") from None
    found = [_line(text, f"--prompts {name}, line {i}") for i, text in enumerate(lines, 1) if text.strip()]
    if not found:
        raise UsageError(f'--prompts {name}: no prompts in it; give one object such as {{"prompt": "Hi"}} a line')
    return found


def _line(text: str, where: str) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise UsageError(f"{where}: not JSON ({reason})") from None
    if not isinstance(value, dict) or not isinstance(value.get("prompt"), str):
        raise UsageError(f'{where}: expected an object with a text, such as {{"prompt": "Hi"}}')
    return _checked(value["prompt"], where)


def _checked(prompt: str, where: str) -> str:
    if not prompt.strip():
        raise UsageError(f"{where}: the prompt is empty; type at least one word")
    if not is_unicode(prompt):
        raise UsageError(f"{where}: the prompt holds invalid Unicode; remove or replace that character")
    return prompt


def _requests(args: argparse.Namespace, prompts: list[str]):
    """One request a prompt, numbered from 0 in order."""
    from engine.records import Request, Sampling

    ranges = (
        ("--max-tokens", args.max_tokens, 1, 1_000_000),
        ("--temperature", args.temperature, 0, 100),
        ("--top-k", args.top_k, 0, 10_000_000),
        ("--top-p", args.top_p, 1e-6, 1),
        ("--min-p", args.min_p, 0, 1),
        *((_option(name), getattr(args, name), WIDEST[name].low, WIDEST[name].high) for name in PENALTIES),
        ("--seed", args.seed, 0, 2**63 - 1),
    )
    for option, value, low, high in ranges:
        within(option, value, low, high)
    _check_several(args)
    stops = [_checked_stop(typed(stop)) for stop in args.stop]
    names = ("temperature", "top_k", "top_p", "min_p", "seed", *PENALTIES)
    sampling = Sampling(**{name: getattr(args, name) for name in names})
    return [
        Request(
            number=number,
            prompt=prompt,
            raw=args.raw,
            max_tokens=args.max_tokens,
            n=args.n,
            beams=args.beams or 0,
            length_penalty=1.0 if args.length_penalty is None else args.length_penalty,
            early_stopping=EARLY_STOPPING[args.early_stopping or "no"],
            stop=stops,
            sampling=sampling,
            label=NAME,
        )
        for number, prompt in enumerate(prompts)
    ]


def _check_several(args: argparse.Namespace) -> None:
    """What --n and --beams can't be had with. Raises UsageError."""
    from engine.config import MAX_BEAMS, MAX_LENGTH_PENALTY, MAX_SAMPLES

    within("--n", args.n, 1, MAX_SAMPLES)
    within("--beams", args.beams, 1, MAX_BEAMS)
    within("--length-penalty", args.length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
    if args.beams is None:
        for option, value in (("--length-penalty", args.length_penalty), ("--early-stopping", args.early_stopping)):
            if value is not None:
                raise UsageError(f"{option} ranks beams; give --beams with it")
        return
    if args.n > 1:
        raise UsageError("--n draws samples and --beams searches for the likeliest answer; give one of them")
    if args.temperature:
        raise UsageError("--beams draws nothing, so --temperature has no use; leave it out, or take samples with --n")
    drawing = {"--top-k": args.top_k, "--top-p": args.top_p, "--min-p": args.min_p, "--seed": args.seed}
    for option, value in drawing.items():
        if value is not None:
            raise UsageError(f"--beams draws nothing, so {option} has no use; leave it out")
    for name, neutral in PENALTIES.items():
        if getattr(args, name) not in (None, neutral):
            raise UsageError(f"--beams ranks what the model itself finds likely; leave {_option(name)} out")
    if args.stop:
        raise UsageError("--beams ends at tokens, not at texts; leave --stop out")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_temperature(args: argparse.Namespace, default: float) -> None:
    """Samples that are all the same are not what was meant. Raises UsageError."""
    if args.n > 1 and not (default if args.temperature is None else args.temperature):
        raise UsageError(f"--n {args.n}: at temperature 0 all of them would be the same; add --temperature 0.8")


def _checked_stop(stop: str) -> str:
    if not stop:
        raise UsageError("--stop: an empty text would end every answer at once; leave it out")
    if not is_unicode(stop):
        raise UsageError("--stop: the text holds invalid Unicode; remove or replace that character")
    return stop


def _pool_tokens(args: argparse.Namespace, prompts: list[str]) -> int:
    """About what all the answers hold at once, so that a pool nobody sized doesn't make them wait. Samples and beams
    share their prompt's blocks, but a search is let in only where each of its beams could have all of its own."""
    from app.fitting import DEFAULT_TOKENS

    prompt_tokens = [len(prompt.encode()) // BYTES_PER_TOKEN + TEMPLATE_TOKENS for prompt in prompts]
    if args.beams:
        needs = [args.beams * (tokens + args.max_tokens + SPARE_TOKENS) for tokens in prompt_tokens]
    else:
        needs = [tokens + args.n * args.max_tokens for tokens in prompt_tokens]
    return max(DEFAULT_TOKENS, min(sum(needs), MOST_TOKENS))


class _Printer:
    """Prints answers in the order of their prompts and samples, each as soon as those before it are done.

    As text, the answer whose turn it is streams, piece by piece; of a beam search the best one comes when it is found.
    """

    def __init__(self, prompts: list[str], as_json: bool, samples: int = 1, simulated: str = ""):
        self._prompts = prompts
        self._json = as_json
        self._samples = samples  # of each prompt
        self._simulated = {"simulated": simulated} if simulated else {}
        self._turn = 0  # the answer being printed, samples counted
        self._shown = 0  # pieces of it already printed
        self._open = False  # a line is begun and not ended

    def show(self, answers) -> None:
        """`answers`: by number of the prompt, its samples so far."""
        while self._turn < len(self._prompts) * self._samples:
            number, index = divmod(self._turn, self._samples)
            samples = answers[number]
            if index >= len(samples):
                if not samples[0].ended:  # a refused request never came to have its others
                    return
                self._turn += 1
                continue
            answer = samples[index]
            if self._json:
                if answer.ended:
                    found = self._simulated | as_object(self._prompts[number], answer, self._samples > 1)
                    print(json.dumps(found, ensure_ascii=_ascii()), flush=True)
            else:
                self._stream(answer)
            if not answer.ended:
                return
            self.break_line()
            self._turn, self._shown = self._turn + 1, 0

    def break_line(self) -> None:
        if self._open:
            print(flush=True)
            self._open = False

    def _stream(self, answer) -> None:
        if len(self._prompts) * self._samples > 1 and not self._open and answer.pieces:
            print(f"\n{self._heading(answer)}" if self._turn else self._heading(answer))
        new = "".join(answer.pieces[self._shown :])
        self._shown = len(answer.pieces)
        self._open = self._open or bool(answer.pieces)
        if new:
            print(new, end="", flush=True)

    def _heading(self, answer) -> str:
        which = f"{answer.number + 1}.{answer.index + 1}" if self._samples > 1 else f"{answer.number + 1}"
        return f"[{which}] {self._prompts[answer.number].strip().splitlines()[0][:100]}"


def _ascii() -> bool:
    """Whether JSON must escape what standard output can't show."""
    return not (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")


def as_object(prompt: str, answer, numbered: bool = False) -> dict:
    """One line of --json. Times in seconds on the engine's clock, null where a request never got there. `numbered`: it
    is one of several samples."""

    def seconds(start: int, end: int) -> float | None:
        return round((end - start) / 1e9, 6) if start and end else None

    count = len(answer.token_ids)
    per_token = seconds(answer.first_token, answer.last_token)
    return {
        "prompt": prompt,
        **({"sample": answer.index} if numbered else {}),
        "token_ids": answer.token_ids,
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        **({"error": answer.error} if answer.error else {}),
        **({"beams": [_beam(found) for found in answer.found]} if answer.found else {}),
        "prompt_tokens": answer.prompt_tokens,
        "cached_tokens": answer.cached_tokens,
        "timings": {
            "queue_s": seconds(answer.arrival, answer.admitted),
            "ttft_s": seconds(answer.arrival, answer.first_token),
            "tpot_s": round(per_token / (count - 1), 6) if per_token is not None and count > 1 else None,
            "total_s": seconds(answer.arrival, answer.last_token),
        },
        "drafts": {
            "passes": answer.passes,
            "drafted": answer.drafted,
            "examined": answer.examined,
            "accepted": answer.accepted,
        },
        "preemptions": answer.preemptions,
    }


def _beam(found) -> dict:
    """One of the sequences that a beam search found."""
    return {
        "token_ids": found.token_ids,
        "text": found.text,
        "finish_reason": found.reason,
        "log_probability": round(found.log_probability, 6),
        "score": round(found.score, 6),
    }
