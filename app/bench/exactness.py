"""Show that no setting changes greedy output: float32 tokens of the real child against transformers' own, or a weight
form's against what the form itself gives to one sequence after the other.

20 prompts of 5 to 600 tokens, 64 new tokens each, under a pairwise cover of batch 1/16, block size 16/32, token
budget 32/512, γ 0/4, with and without forced preemption, prefix cache off/on; --full runs every combination of the
first five; --policies takes other ways of holding the K/V: swap, reserved, static, whole prompts, the pool resized and
its blocks changed under load, several samples of a prompt; --drag serves the prompts again and again for so many
seconds while the draft length is dragged from 0 to 8 and back at random, and with it who drafts and by what policy.
Outputs must be token-equal: see `equality`; of a form other than float32 within twice its own noise, what a logit moves
by between one pass and many. Packed forms have none, so their tokens must be equal.
"""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec

from app.options import UsageError, add_engine_options, engine_config

EXAMPLES = """examples:
  servescope bench exactness
  servescope bench exactness --full --json
  servescope bench exactness --policies
  servescope bench exactness --drag 60
  servescope bench exactness --dtype file"""

NAME = "bench exactness"
ORACLE_WITHIN = 3600.0  # s; a large model on a small machine takes long


def add_arguments(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--full", action="store_true", help="all 32 combinations instead of the pairwise cover")
    which.add_argument("--policies", action="store_true", help="the KV pool's policies, and changes of it under load")
    which.add_argument("--drag", type=float, metavar="SECONDS", help="drafting dragged about at random for that long")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    from app.headless import EngineFailed, tell

    if args.set:
        raise UsageError(f"--set {args.set[0]}: the bench chooses the settings itself")
    if form_of(args) == "float32" and find_spec("transformers") is None:
        tell(NAME, "it compares with transformers, which is not installed: pip install 'servescope[test]'")
        return 1
    try:
        result = measure(args)
    except EngineFailed as failure:
        tell(NAME, str(failure))
        return 1
    if args.json:
        print(json.dumps(result))
    return 0 if result["equal"] else 1


def measure(args: argparse.Namespace) -> dict:
    """Ask the oracle once, then run every combination. Raises EngineFailed."""
    from app.bench.combinations import FULL, PAIRWISE
    from app.bench.policies import POLICIES

    references, allowance = _from_transformers(args) if form_of(args) == "float32" else _from_itself(args)
    if args.drag is not None:
        return _drag(args, references, allowance)
    runs = []
    combinations = POLICIES if args.policies else FULL if args.full else PAIRWISE
    for block_size in (16, 32):
        chosen = [c for c in combinations if c.block_size == block_size]
        if chosen:
            runs += _runs_of(args, block_size, chosen, references, allowance)
    return {
        "equal": all(run["equal"] for run in runs),
        "form": form_of(args),
        "prompts": len(references),
        "prompt_tokens": [len(reference.prompt) for reference in references],
        "new_tokens": len(references[0].tokens),
        "allowed_gap": allowance,
        "smallest_reference_gap": min(gap for reference in references for gap in reference.gaps),
        "runs": runs,
    }


def _drag(args: argparse.Namespace, references: list, allowance: float) -> dict:
    import msgspec

    from app.bench import dragged

    config = msgspec.structs.replace(engine_config(args), dtype=form_of(args))
    found = {"form": form_of(args), **dragged.measure(config, references, allowance, args.drag, NAME)}
    if not args.json:
        verdict = "token-equal" if found["equal"] else "NOT EQUAL"
        print(
            f"{found['outputs']} outputs in {found['rounds']} rounds, {found['changes']:,} changes "
            f"({', '.join(found['methods'])}; lengths {found['draft_lengths']}), {found['drafts_accepted']:,} drafts "
            f"accepted: {verdict}; {found['outputs_as_without_drafts']} as without drafts",
            *found["differences"],
            sep="\n",
        )
    return found


def form_of(args: argparse.Namespace) -> str:
    """Exactness without more said is a statement about float32."""
    return "float32" if args.dtype == "auto" else args.dtype


def _from_transformers(args: argparse.Namespace) -> tuple[list, float]:
    """References, and the gap allowed at a difference. Raises EngineFailed."""
    from app.bench.equality import ALLOWED_GAP
    from app.headless import tell

    tell(NAME, "transformers generates the reference")
    return _references("app.bench.oracle", args.model, str(args.threads))[0], ALLOWED_GAP


def _from_itself(args: argparse.Namespace) -> tuple[list, float]:
    import msgspec

    from app.bench.oracle import NEW_TOKENS, cuts, texts
    from app.headless import tell

    tell(NAME, f"{args.dtype} generates its own reference")
    config = msgspec.to_builtins(engine_config(args))
    job = {"config": config, "texts": texts(), "cuts": cuts(), "new_tokens": NEW_TOKENS}
    references, answer = _references("engine.own_greedy", json.dumps(job))
    tell(NAME, f"a logit moves by {answer['noise']:.2e} between one pass and many")
    return references, 2 * answer["noise"]


def _references(module: str, *arguments: str) -> tuple[list, dict]:
    """What a process of its own generated, and all that it told. Raises EngineFailed."""
    import msgspec

    from app.bench.equality import Reference
    from app.bench.runs import fresh_process
    from app.headless import EngineFailed

    try:
        answer = fresh_process(module, *arguments, timeout=ORACLE_WITHIN)
    except RuntimeError as error:
        raise EngineFailed(f"the reference could not be made: {error}") from None
    if "problem" in answer:
        raise EngineFailed(answer["problem"])
    return msgspec.convert(answer["references"], list[Reference]), answer


def _runs_of(args: argparse.Namespace, block_size: int, combinations, references, allowance: float) -> list[dict]:
    """The combinations of one block size: one child, whose live settings change from run to run."""
    import msgspec

    from app.headless import change, running

    roomiest = max((c.settings() for c in combinations), key=lambda settings: settings.kv_blocks)
    start = msgspec.structs.replace(
        engine_config(args), block_size=block_size, dtype=form_of(args), settings=roomiest
    )
    found = []
    with running(start, NAME) as client:
        for combination in combinations:
            change(client, {"prefix_cache": False})  # forgets what the run before left in the pool
            change(client, msgspec.to_builtins(combination.settings()))
            found.append(_run(args, client, combination, references, allowance))
    return found


def _run(args: argparse.Namespace, client, combination, references, allowance: float) -> dict:
    """Serve all prompts under one combination, preempting as it says, and compare."""
    from app.bench.equality import compare
    from app.bench.greedy import serve_greedily
    from app.headless import EngineFailed
    from engine import records as r

    first, samples = 0, combination.samples

    def squeeze(message, answers) -> None:
        nonlocal first
        if isinstance(message, r.StepRecord) and answers.left:
            first = first or message.step
            changes = combination.change_at(message.step - first)
            if changes:
                client.send(r.Change(id=client.next_id(), changes=changes))

    answers = serve_greedily(client, references, NAME, squeeze, samples)
    of_each = [reference for reference in references for _ in range(samples)]
    report = compare([answer.token_ids for answer in answers], of_each, allowance)
    preemptions = sum(answer.preemptions for answer in answers)
    accepted = sum(answer.accepted for answer in answers)
    if combination.preempt and not preemptions:
        raise EngineFailed(f"nothing was preempted under {combination}; the run shows nothing")
    if not args.json:
        verdict = "token-equal" if report.equal else "NOT EQUAL"
        print(f"{combination}: {verdict}; {preemptions} preemptions, {accepted} drafts accepted; {report}", flush=True)
    return {
        **combination.fields(),
        "equal": report.equal,
        "agreeing": report.prompts - len(report.differences),
        "differences": [
            {"prompt": d.prompt, "at": d.at, "ours": d.ours, "reference": d.wanted, "gap": d.gap, "allowed": d.allowed}
            for d in report.differences
        ],
        "preemptions": preemptions,
        "drafts_accepted": accepted,
    }
