"""Measure the engine and the window. Every bench prints one JSON object with --json."""

from __future__ import annotations

BENCHES = {
    "engine": ("app.bench.engine", "throughput, time to first token and step times of the engine"),
    "interference": ("app.bench.interference", "gaps of streams that decode while a long prompt arrives"),
    "peers": ("app.bench.peers", "the engine against vLLM and llama.cpp on the same weights, side by side"),
    "step": ("app.bench.step", "where a decode step's time goes, and the share of the roofline it reaches"),
    "kernels": ("app.bench.kernels", "registers, shared memory and spills of the GPU's kernels, compiled without one"),
    "kv": ("app.bench.kv", "what pool and scheduler cost a step, and what a prefix hit spares"),
    "speculation": ("app.bench.speculation", "whether drafting pays, by method, kind of prompt, γ and batch"),
    "exactness": ("app.bench.exactness", "greedy output against a dense oracle or the form's own, over many settings"),
    "quality": ("app.bench.quality", "perplexity and bytes of each weight form, against float32"),
    "calibrate": ("app.bench.calibrate", "whether the simulation's cost model predicts this machine's engine"),
    "window": ("app.bench.window", "frames of the window over a simulated engine of any scale, what a record costs"),
    "overhead": ("app.bench.overhead", "engine throughput with the window open, against headless"),
    "soak": ("app.bench.soak", "whether anything grows under an hour's steady load: memory, files, threads, objects"),
    "startup": ("app.bench.startup", "time to the window and to the first token"),
}
EXAMPLES = """example:
  servescope bench engine --streams 8 --prompt-tokens 32 --new-tokens 128 --json"""
