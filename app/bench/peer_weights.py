"""The very weights of a GGUF file in the forms that peers take: a Hugging Face directory and a GGUF file, in bfloat16.

Each number is the file's, dequantised to float32 and rounded once. Run in a process of its own, since it needs torch:
`python -m app.bench.peer_weights MODEL OUT_DIR` makes OUT_DIR/hf and OUT_DIR/bf16.gguf and prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HUGGING_FACE, BF16 = "hf", "bf16.gguf"
CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def write_hugging_face(gguf: Path, directory: Path) -> None:
    """Weights, config and tokenizer. Raises ModelProblem for a file or a model that can't be had this way."""
    import torch
    from safetensors.torch import save_file

    from engine.model.checkpoint import GgufCheckpoint
    from engine.model.gguf_metadata import read_header
    from engine.model.gguf_tokenizer import build

    checkpoint = GgufCheckpoint(gguf)
    directory.mkdir(parents=True)
    config = json.dumps(_config(checkpoint), indent=1)
    (directory / "config.json").write_text(config, encoding="utf-8")
    tensors = {name: checkpoint.read(name).to(torch.bfloat16).contiguous() for name in checkpoint.shapes}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    tokenizer = build(read_header(gguf).values, str(gguf))
    tokenizer.tokenizer.save(str(directory / "tokenizer.json"))
    words = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tokenizer.eos_token or None}
    (directory / "tokenizer_config.json").write_text(json.dumps(words), encoding="utf-8")


def _config(checkpoint) -> dict[str, object]:
    from engine.model.problem import ModelProblem

    c = checkpoint.config
    if c.rope_scaling is not None or checkpoint.rope_divisors is not None:
        raise ModelProblem("a model with stretched rotary frequencies can't be handed to peers yet; choose another")
    return {
        "architectures": [CLASSES[c.architecture]],
        "model_type": c.architecture,
        "hidden_size": c.hidden,
        "intermediate_size": c.intermediate,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": c.max_positions,
        "rms_norm_eps": c.rms_eps,
        "rope_theta": c.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": c.rope_theta},
        "tie_word_embeddings": c.tied,
        "vocab_size": c.vocabulary,
        "sliding_window": None,
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": None,
    }


def write_bf16(gguf: Path, target: Path) -> None:
    """The same file with its matrices in bfloat16; vectors stay float32, as llama.cpp's own converter leaves them."""
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
    from gguf.quants import quantize

    from engine.model.gguf_file import GgufFile

    reader, numbers = GGUFReader(gguf), GgufFile(gguf)
    writer = GGUFWriter(target, str(numbers.fields["general.architecture"]))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kinds = [*field.types, None]
        writer.add_key_value(name, field.contents(), kinds[0], kinds[1] if kinds[0] == GGUFValueType.ARRAY else None)
    writer.add_file_type(32)  # "mostly BF16"
    for name in numbers.tensors:
        values = numbers.read(name)
        kind = GGMLQuantizationType.BF16 if values.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(model: str, out: Path, kinds: list[str]) -> dict[str, object]:
    """`kinds`: which of the two to make. The answer names the GGUF file itself, its vocabulary and its type."""
    from engine.model.gguf_file import GgufFile
    from engine.model.problem import ModelProblem
    from engine.model.store import resolve

    files = resolve(model)
    if files.kind != "gguf":
        raise ModelProblem(f"{files.path} is no GGUF file, which the peers' weights are made from; give a .gguf file")
    if HUGGING_FACE in kinds:
        write_hugging_face(files.path, out / HUGGING_FACE)
    if BF16 in kinds:
        write_bf16(files.path, out / BF16)
    tensors = GgufFile(files.path).tensors.values()
    types = [tensor.type.name for tensor in tensors if len(tensor.shape) > 1]
    vocabulary = next(tensor.shape[0] for tensor in tensors if tensor.name == "token_embd.weight")
    return {"gguf": str(files.path.absolute()), "vocabulary": vocabulary, "type": max(set(types), key=types.count)}


if __name__ == "__main__":
    from engine.model.problem import ModelProblem

    try:
        print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])))
    except ModelProblem as problem:
        sys.exit(str(problem))
