"""The KV of a prompt as Transformers computes it: no engine, no cache. A script.

PYTHON kv_reference.py MODEL TOKENS.json OUT.npy       float32, [layer, k or v, head, token, dim]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def main(model: str, tokens: str, out: str) -> None:
    """Compute and write it."""
    torch.set_num_threads(1)
    # Transformers asks whether a CUDA stream is being captured. Stand-ins for CUDA's libraries have
    # none to ask: that ends the process.
    torch.cuda.is_current_stream_capturing = lambda: False
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = torch.tensor([json.loads(Path(tokens).read_text())])
    with torch.no_grad():
        cache = loaded(ids, use_cache=True).past_key_values
    parts = [torch.stack([layer.keys[0], layer.values[0]]) for layer in cache.layers]
    np.save(out, torch.stack(parts).numpy())


if __name__ == "__main__":
    main(*sys.argv[1:])
