"""vLLM without HTTP, run by the Python of vLLM's own environment: `python peer_vllm_offline.py HF_DIR`.

Reads one JSON object a line, {"prompts": [[ids], …], "new_tokens": N}, and answers each with {"decode": tokens/s or
null, "prefill": tokens/s}, counted as `servescope bench engine` counts: the decode phase runs from the step that gave
the last sequence its first token to the end. The steps are those that `LLM.generate` takes. Imports nothing of ours.
"""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter


def main(directory: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM logs to standard output
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine in this process: no hop between a step and us
    from vllm import LLM, SamplingParams, __version__

    engine = LLM(model=directory, dtype="bfloat16", max_model_len=2048, max_num_seqs=64).llm_engine
    print(json.dumps({"ready": __version__}), file=answers, flush=True)
    number = 0
    for line in sys.stdin:
        wanted = json.loads(line)
        sampling = SamplingParams(temperature=0.0, max_tokens=wanted["new_tokens"], ignore_eos=True)
        start = perf_counter()
        for ids in wanted["prompts"]:
            number += 1
            engine.add_request(str(number), {"prompt_token_ids": ids}, sampling)
        print(json.dumps(measure(engine, wanted["prompts"], start)), file=answers, flush=True)


def measure(engine, prompts: list[list[int]], start: float) -> dict[str, float | None]:
    have: dict[str, int] = {}  # tokens so far, by request
    begin = end = 0.0
    before = 0  # tokens when the decode phase began
    while engine.has_unfinished_requests():
        outputs = engine.step()
        end = perf_counter()
        have.update((output.request_id, len(output.outputs[0].token_ids)) for output in outputs)
        if not begin and len(have) == len(prompts) and all(have.values()):
            begin, before = end, sum(have.values())
    decoded = sum(have.values()) - before
    return {
        "decode": decoded / (end - begin) if decoded else None,
        "prefill": sum(map(len, prompts)) / (begin - start),
    }


if __name__ == "__main__":
    main(sys.argv[1])
