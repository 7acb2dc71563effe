"""How fast a device can be at most, and what the loaded model makes a step read and multiply: what a roofline (Williams
et al. 2009) is drawn from. Part of the contract, and light: the window reads it.

A step's arithmetic intensity (FLOP a byte) and rate (FLOP/s) follow from `counts` and the record's rows and times.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.cost_model import BANDWIDTH_SHARE, FLOPS_SHARE, Counts
from engine.formulas import ridge_point
from engine.profiles import Device, devices

# Cards as their driver calls them, and as assets/calculator does. Relatives with other clocks or memory (PCIe, NVL,
# laptop, a MIG instance) have data sheets of their own, so nothing is guessed from a name that is merely alike.
DRIVER_NAMES = {
    "NVIDIA A10": "A10",
    "NVIDIA A100-SXM4-40GB": "A100 40 GB",
    "NVIDIA A100-PCIE-40GB": "A100 40 GB",
    "NVIDIA A100-SXM4-80GB": "A100 80 GB",
    "NVIDIA GeForce RTX 4090": "RTX 4090",
    "NVIDIA GeForce RTX 5090": "RTX 5090",
    "NVIDIA H100 80GB HBM3": "H100",
    "NVIDIA H200": "H200",
    "NVIDIA L40S": "L40S",
}


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """`bandwidth` in bytes/s and `flops` in FLOP/s, of the form that products are made in; both 0 where the source is
    "unavailable", and `note` says why. Else `note` says what was measured, or whose data sheet it is.

    `bandwidth_share`, `flops_share`: what good programs reach of them, where that is assumed; else 1.
    """

    device: str
    bandwidth: float
    flops: float
    source: Literal["measured", "data sheet", "simulated", "unavailable"]
    counts: Counts
    note: str = ""
    bandwidth_share: float = 1.0
    flops_share: float = 1.0

    @property
    def known(self) -> bool:
        return self.bandwidth > 0 and self.flops > 0

    @property
    def ridge(self) -> float:
        """FLOP a byte above which arithmetic is the limit."""
        return ridge_point(self.flops, self.bandwidth)

    def allows(self, intensity: float) -> float:
        """FLOP/s that nothing of such an intensity exceeds."""
        return min(self.flops, intensity * self.bandwidth)


def simulated(device: Device, counts: Counts) -> Roof:
    """Of a device that isn't here: its data sheet, and the shares of it that the cost model takes for reached."""
    return Roof(
        device=device.name,
        bandwidth=device.bandwidth,
        flops=device.flops,
        source="simulated",
        counts=counts,
        note=f"data sheet of one {device.name}, bfloat16",
        bandwidth_share=BANDWIDTH_SHARE,
        flops_share=FLOPS_SHARE,
    )


def of_card(driver_name: str, form: str, counts: Counts) -> Roof:
    """Of a card by the name that its driver gives. `form`: of the weights and products."""
    known = DRIVER_NAMES.get(driver_name)
    if known is None:
        return unavailable(driver_name, counts, f"no data sheet of {driver_name} is known here")
    if form != "bfloat16":
        return unavailable(driver_name, counts, f"{known}'s data sheet is known here for bfloat16 only, not for {form}")
    sheet = next(device for device in devices() if device.name == known)
    return Roof(
        device=known,
        bandwidth=sheet.bandwidth,
        flops=sheet.flops,
        source="data sheet",
        counts=counts,
        note=f"data sheet of {known}, dense bfloat16",
    )


def unavailable(device: str, counts: Counts, why: str) -> Roof:
    return Roof(device=device, bandwidth=0.0, flops=0.0, source="unavailable", counts=counts, note=why)
