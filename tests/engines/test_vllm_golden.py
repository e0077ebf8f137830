"""What vLLM keeps in its blocks is what we say it is: compared with KV computed without vLLM.

A chunk is stored as the engine's own bytes, so the name of its layout says what they mean. If a new
version of the engine, or another kernel, orders them otherwise under the same name, chunks of old
and new engines are taken for each other's, and nothing fails but the answers. Here it does.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_lane.install import environment_for

from engines.conftest import PLUGINS, VllmVenv, prompt
from engines.integrations import connector
from kvferry_lab.engines.engine_process import EngineProcess

BLOCK, CHUNK = 32, 64  # tokens
TOKENS = 5 * CHUNK + 7

Array = np.ndarray[Any, Any]


def keys_and_values(name: str, chunks: Array, heads: int, dim: int) -> Array:
    """Chunks, as [layer, k or v, head, token, dim].

    Args:
        name: Of the layout: its axes and the kernel.
        chunks: [chunk, layer, number].
        heads, dim: Of the model.
    """
    axes, _, kernel = name.partition(" ")
    count, layers, _ = chunks.shape
    blocks = CHUNK // BLOCK
    if axes == "LBHNC":  # of each head of a block first the keys, then the values
        parts = chunks.reshape(count, layers, blocks, heads, 2, BLOCK * dim)
        parts = parts.transpose(1, 4, 3, 0, 2, 5)
    else:
        assert axes == "LKBHND", f"what {axes} is has to be written down here"
        parts = chunks.reshape(count, layers, 2, blocks, heads, BLOCK * dim)
        parts = parts.transpose(1, 2, 4, 0, 3, 5)
    keys, values = parts[:, 0], parts[:, 1]
    values = values.reshape(*values.shape[:-1], BLOCK, dim)
    if kernel in ("vec", "vec16"):
        keys = keys.reshape(*keys.shape[:-1], dim, BLOCK).swapaxes(-1, -2)
    else:
        keys = keys.reshape(*keys.shape[:-1], BLOCK, dim)
    both = np.stack([keys, values], 1)  # [layer, k or v, head, chunk, block, token, dim]
    return both.reshape(layers, 2, heads, count * CHUNK, dim)


@pytest.mark.engines
def test_stored_bytes_are_the_keys_and_values_of_the_prompt(
    vllm: VllmVenv,
    model: Callable[..., Path],
    run_engine: Callable[..., EngineProcess],
    tmp_path: Path,
) -> None:
    folder, tokens = model("tiny"), prompt(TOKENS, 11)
    (tmp_path / "tokens.json").write_text(json.dumps(tokens))
    settings = {"kvferry.chunk_size": CHUNK, "kvferry.max_local_cpu_size": 0.0625}
    engine = run_engine(
        vllm,
        folder,
        connector("KvferryConnector", settings),
        environment={"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"},
        block_size=BLOCK,
    )
    engine.generate([tokens], 1)
    assert engine.call("kv_inside:settled", saved=5) == 5
    told = engine.call("kv_inside:stored", tokens=tokens, path=str(tmp_path / "chunks"))
    engine.close()
    if told["name"].partition(" ")[2] not in ("vec", "vec16"):
        pytest.skip(f"how the kernels of {told['name']!r} order a block is not written down here")
    assert (told["tokens"], told["chunk_size"], told["chunk_blocks"]) == (5 * CHUNK, CHUNK, 2)

    subprocess.run(
        [
            *(vllm.python, PLUGINS / "kv_reference.py", folder),
            *(tmp_path / "tokens.json", tmp_path / "reference.npy"),
        ],
        env=environment_for(vllm.python),
        check=True,
        timeout=300,
    )
    expected = np.load(tmp_path / "reference.npy")[:, :, :, : 5 * CHUNK]
    layers, _, heads, _, dim = expected.shape
    chunks = np.fromfile(tmp_path / "chunks", np.float32).reshape(5, layers, -1)
    found = keys_and_values(told["name"], chunks, heads, dim)
    assert np.abs(expected).max() > 1, "there is something to compare"
    assert np.abs(found - expected).max() < 1e-3

    # And the comparison sees it when bytes lie elsewhere.
    axes = told["name"].partition(" ")[0]
    plain = keys_and_values(axes, chunks, heads, dim)
    assert np.abs(plain[:, 0] - expected[:, 0]).max() > 1
    swapped = keys_and_values(told["name"], chunks[[1, 0, 2, 3, 4]], heads, dim)
    assert np.abs(swapped - expected).max() > 1
