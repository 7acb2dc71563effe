"""What NVML's error codes mean here: a figure that this device doesn't tell, or a driver that doesn't answer.

A code is known by its class's name, so that any binding, and a fake one, serves. Everything that isn't about the driver
or the device as a whole costs the one figure that was asked for.
"""

from __future__ import annotations

# codes after which no other figure can be trusted: sampling ends, the reason is shown, and the driver is asked again
LOST = {
    "Uninitialized": "it was shut down",
    "DriverNotLoaded": "it is not loaded any more; after an update restart the machine",
    "LibraryNotFound": "its library is gone; after an update restart the machine",
    "LibRmVersionMismatch": "driver and library differ in version; restart the machine after the update",
    "GpuIsLost": "the GPU fell off the bus or is being reset; if it stays away, restart the machine",
    "GpuNotFound": "the GPU is gone",
    "ResetRequired": "the GPU needs a reset: end what runs there, then nvidia-smi --gpu-reset, or restart the machine",
    "CorruptedInforom": "the GPU's own memory of itself is corrupted; it needs service",
    "IrqIssue": "the GPU's interrupts don't arrive; restart the machine",
    "Timeout": "the driver took too long",
    "OperatingSystem": "the system refused the driver's call",
    "NotReady": "the driver is not ready yet",
    "InUse": "another program has the GPU for itself at the moment",
    "InvalidState": "the GPU is being set up anew",
    "Memory": "the driver has no memory left for the answer",
    "Unknown": "the driver names no cause",
}


class NoSuchGpu(Exception):
    """The GPU that was chosen isn't here; the message names those that are."""


def absent(error: Exception) -> str:
    """Why there are no figures at all, for the user."""
    kind = kind_of(error)
    if kind == "LibraryNotFound":
        return "no NVIDIA driver on this machine"
    if kind == "DriverNotLoaded":
        return "the NVIDIA driver is installed but not loaded; load it, or restart the machine after an update"
    if kind == "LibRmVersionMismatch":
        return "the NVIDIA driver and its library differ in version; restart the machine after the update"
    if kind == "NoPermission":
        return "no permission to ask the NVIDIA driver; is this user in the group that may use the GPU?"
    return f"the NVIDIA driver does not answer ({words(error)})"


def lost(error: Exception) -> str:
    """Why there are no figures any more."""
    if isinstance(error, NoSuchGpu):
        return str(error)
    if kind_of(error) == "NoPermission":
        return absent(error)
    means = LOST.get(kind_of(error))
    return f"the NVIDIA driver stopped answering ({words(error)}){'; ' + means if means else ''}; asking again"


def costs_one_figure(error: Exception) -> bool:
    """The device doesn't tell this, as opposed to not answering at all."""
    return kind_of(error) not in LOST


def kind_of(error: Exception) -> str:
    return type(error).__name__.removeprefix("NVMLError_")


def words(error: Exception) -> str:
    return str(error) or type(error).__name__
