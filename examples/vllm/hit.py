"""Does a new vLLM process find what an earlier one computed? Run this twice.

    python hit.py MODEL [redis://HOST:PORT]

The first run computes the prompt and stores its KV, the second one loads it. Needs vLLM and kvferry
in one environment, and a server.
"""

from __future__ import annotations

import os
import sys
import time

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; read by vLLM on CPUs

from vllm import LLM, SamplingParams

PROMPT = "A cache may be slow to remember; it must never be wrong. " * 40


def main() -> None:
    """Ask, and say where the prompt's KV came from."""
    model, url = sys.argv[1], (sys.argv[2:] or ["redis://localhost:6379"])[0]
    llm = LLM(
        model=model,
        max_model_len=2048,
        enforce_eager=True,
        kv_transfer_config={
            "kv_connector": "KvferryConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "kvferry.remote_url": url,
                "kvferry.max_local_cpu_size": 0.25,  # GB
                "kvferry.lookup_timeout_s": 2,  # be patient on a busy machine
                "kvferry.recompute": "never",  # load even what so small a model computes sooner
            },
        },
    )
    began = time.monotonic()
    answer = llm.generate([PROMPT], SamplingParams(temperature=0, max_tokens=16), use_tqdm=False)[0]
    print(
        f"{answer.num_cached_tokens} of {len(answer.prompt_token_ids or ())} prompt tokens "
        f"came from the cache; {time.monotonic() - began:.2f} s; said {answer.outputs[0].text!r}"
    )
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":  # vLLM's processes import this file again
    main()
