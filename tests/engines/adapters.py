"""LoRA adapters for the small models of the lane, with random weights that change every answer.

folder = make_adapter(tmp_path / "a", model("tiny"), seed=1)
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

__all__ = ["make_adapter"]

_RANK = 4
_PARTS = ("q_proj", "k_proj", "v_proj")


def make_adapter(folder: Path, model: Path, seed: int) -> Path:
    """Write an adapter's files, in the place of those that are there. All seeds are as long.

    Args:
        folder: Is made.
        model: Which it is for.
        seed: Another one has other weights.
    """
    config = json.loads((model / "config.json").read_text())
    hidden, dim = config["hidden_size"], config["head_dim"]
    rows = {"q_proj": config["num_attention_heads"] * dim}
    numbers = np.random.default_rng(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for part in _PARTS:
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            out = rows.get(part, config["num_key_value_heads"] * dim)
            for matrix, shape in (("A", (_RANK, hidden)), ("B", (out, _RANK))):
                values = numbers.standard_normal(shape).astype(np.float32)
                tensors[f"{name}.lora_{matrix}.weight"] = values * 0.2
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "adapter_model.safetensors", tensors)
    told = {"peft_type": "LORA", "r": _RANK, "lora_alpha": 2 * _RANK, "bias": "none"}
    told |= {"target_modules": list(_PARTS), "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(told))
    return folder


def _write(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """A safetensors file."""
    header, offset = {}, 0
    for name, values in tensors.items():
        place = [offset, offset + values.nbytes]
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": place}
        offset = place[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    parts = [values.tobytes() for values in tensors.values()]
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))
