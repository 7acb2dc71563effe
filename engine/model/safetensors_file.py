"""The numbers in a directory of safetensors: one file, or shards with an index. Knows nothing of models.

Never unpickles: a directory that has only .bin or .pt files is refused.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from engine.model.problem import ModelProblem

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_FLOATS = ("F32", "F16", "BF16")


class SafetensorsFiles:
    """`tensors`: name → shape; `types`: name → F32, F16 or BF16.

    Raises ModelProblem for a damaged, missing or unsupported file.
    """

    def __init__(self, directory: Path):
        self._files = {}
        self._home: dict[str, Path] = {}
        self.tensors: dict[str, tuple[int, ...]] = {}
        self.types: dict[str, str] = {}
        for path in _weight_files(directory):
            self._open(path)

    def read(self, name: str) -> torch.Tensor:
        """One tensor as it is stored: float32, float16 or bfloat16."""
        path = self._home[name]
        try:
            return self._files[path].get_tensor(name)
        except SafetensorError as error:
            raise _damaged(path, str(error)) from None

    def _open(self, path: Path) -> None:
        try:
            file = safe_open(path, framework="pt")
            for name in file.keys():  # noqa: SIM118  (not a dict, it has no iterator)
                part = file.get_slice(name)
                if part.get_dtype() not in _FLOATS:
                    raise ModelProblem(
                        f"tensor {name} in {path} has the type {part.get_dtype()}, which is not supported; "
                        f"take a checkpoint in {', '.join(_FLOATS)}"
                    )
                self.tensors[name] = tuple(part.get_shape())
                self.types[name] = part.get_dtype()
                self._home[name] = path
        except (SafetensorError, OSError) as error:
            raise _damaged(path, str(error)) from None
        self._files[path] = file


def _weight_files(directory: Path) -> list[Path]:
    if (directory / INDEX).is_file():
        return _shards(directory)
    if (directory / SINGLE).is_file():
        return [directory / SINGLE]
    pickled = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in directory.glob(pattern))
    if pickled:
        raise ModelProblem(
            f"{directory} has only pickled weights ({pickled[0]}), which can run code and are never opened; "
            "take the model's safetensors"
        )
    raise ModelProblem(f"{directory} has no {SINGLE} and no {INDEX}; fetch the model again")


def _shards(directory: Path) -> list[Path]:
    index = directory / INDEX
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(index, f"{type(error).__name__}: {error}") from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:  # an index may not lead out of its directory
            raise ModelProblem(f"{index} names the file {name!r} outside its own directory; fetch the model again")
        if not (directory / name).is_file():
            raise ModelProblem(f"{directory} lacks {name}, one of its {len(names)} weight files; fetch it again")
    return [directory / name for name in names]


def _damaged(path: Path, why: str) -> ModelProblem:
    return ModelProblem(f"{path} is truncated or corrupt ({why}); fetch it again")
