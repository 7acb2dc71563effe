"""What a race of engines comes to: medians, ratios pair by pair, and the table. Knows nothing of how they ran."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

OURS = "servescope"
BUSY = 0.1  # of the cores: above this a figure is not to be trusted

Sample = dict[str, float]  # one pair's figures of one engine, by the figure's name


def compare(samples: dict[str, list[Sample]], figure: str, unit: str) -> dict:
    """One figure of every engine that has it, and ours over each peer's, pair by pair. Lower is better in ms."""
    values = {name: [sample[figure] for sample in found] for name, found in samples.items() if figure in found[0]}
    medians = {name: round(median(found), 2) for name, found in values.items()}
    ratios = {name: _ratio(values[OURS], found) for name, found in values.items() if name != OURS}
    pick = min if unit == "ms" else max
    best = pick(ratios, key=lambda name: medians[name]) if ratios else None
    served = [name for name in ratios if not name.endswith("offline")]
    best_served = pick(served, key=lambda name: medians[name]) if served else None
    return {
        "unit": unit,
        "values": values,
        "medians": medians,
        "ratios": ratios,
        "best_peer": best,
        "best_ratio": ratios[best] if best else None,
        "best_served_peer": best_served,
        "best_served_ratio": ratios[best_served] if best_served else None,
    }


def _ratio(ours: list[float], theirs: list[float]) -> dict:
    from app.bench.runs import interval, summary

    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return summary(ratios) | {"interval": [round(edge, 3) for edge in interval(ratios)]}


def in_words(result: dict) -> str:
    machine, settings = result["machine"], result["settings"]
    lines = [
        f"{settings['model']}, {settings['threads']} threads, {settings['pairs']} pairs, {result['date']}; "
        f"{machine['cpu']}, {machine['cores']} cores",
        "versions: " + ", ".join(f"{name} {version}" for name, version in result["versions"].items()),
        "peers run over HTTP, those called offline and ours without; ratio: ours ÷ peer's, median, (least to most), "
        "95 % interval",
    ]
    for name, found in {**result["points"], **result["interference"]}.items():
        lines += ["", *_table(name, found)]
    if max(machine["busy_before_pairs"]) > BUSY:
        lines += ["", f"other programs took up to {max(machine['busy_before_pairs']):.0%} of the cores: run it again"]
    return "\n".join(lines)


def _table(name: str, found: dict) -> Iterator[str]:
    yield f"{name}, {found['unit']}"
    for engine, middle in found["medians"].items():
        least, most = min(found["values"][engine]), max(found["values"][engine])
        line = f"  {engine:<24}{middle:>9,.1f}  {f'({least:,.1f} to {most:,.1f})':<24}"
        if ratio := found["ratios"].get(engine):
            low, high = ratio["interval"]
            line += f"  {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f}), {low:.2f} to {high:.2f}"
            line += "  best peer" if engine == found["best_peer"] else ""
        yield line.rstrip()
