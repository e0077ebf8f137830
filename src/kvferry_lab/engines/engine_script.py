"""The inside of an engine's process: runs vLLM as somebody else says. A script, not a module.

    PYTHON -P engine_script.py        PYTHON is that of the engine's environment

Reads one JSON object a line from standard input, {"do": NAME, ...}, and answers each with one line
on standard output: {"ok": ...} or {"error": "TypeName: text"}. All that the engine prints goes to
standard error. What can be done:

    open      settings of `vllm.LLM`: {"engine": {...}}; the version, and how long it took
    generate  {"prompts": [...], "tokens": n}, a prompt is a list of token ids, or {"ids": [...],
              "salt": text, "lora": [name, number, folder]}; all at once, greedy, in the same order:
              {"tokens", "cached", "prompt", "ttft_s", "finish"} of each, and "seconds"
    forget    vLLM's own prefix cache is emptied, so that only a connector can hit; true if done
    metrics   vLLM's Prometheus metrics: {"name{label=value}": number}
    call      {"function": "module:name", "values": {...}}: that function, the LLM first; it has to
              return JSON. For tests that look inside an engine of one process
    close     the engine is shut down; the process ends

Nothing of kvferry is imported here: an engine without it is driven the same way.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

Json = Any


class Driver:
    """One engine."""

    def __init__(self) -> None:
        self._llm: Any = None

    def open(self, engine: dict[str, Any]) -> Json:
        """See above."""
        began = time.monotonic()
        vllm = importlib.import_module("vllm")
        imported = time.monotonic()
        self._llm = vllm.LLM(**engine)
        return {
            "version": vllm.__version__,
            "import_s": imported - began,
            "init_s": time.monotonic() - imported,
        }

    def generate(self, prompts: list[Any], tokens: int) -> Json:
        """See above."""
        vllm = importlib.import_module("vllm")
        asked = [{"ids": prompt} if isinstance(prompt, list) else prompt for prompt in prompts]
        inputs = [self._input(prompt) for prompt in asked]
        sampling = vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        began = time.monotonic()
        outputs = self._llm.generate(
            inputs, sampling, use_tqdm=False, lora_request=self._loras(asked)
        )
        seconds = time.monotonic() - began
        return {"outputs": [self._output(output) for output in outputs], "seconds": seconds}

    def forget(self) -> Json:
        """See above."""
        return self._llm.reset_prefix_cache()

    def metrics(self) -> Json:
        """See above."""
        return dict(self._metrics())

    def call(self, function: str, values: dict[str, Any]) -> Json:
        """See above."""
        module, name = function.split(":")
        return getattr(importlib.import_module(module), name)(self._llm, **values)

    def close(self) -> Json:
        """See above."""
        if self._llm is not None:
            self._llm.llm_engine.engine_core.shutdown()
            self._llm = None
        return True

    def _input(self, prompt: dict[str, Any]) -> dict[str, Any]:
        made = {"prompt_token_ids": prompt["ids"]}
        if "salt" in prompt:
            made["cache_salt"] = prompt["salt"]
        return made

    def _loras(self, prompts: list[dict[str, Any]]) -> list[Any] | None:
        if not any("lora" in prompt for prompt in prompts):
            return None
        request = importlib.import_module("vllm.lora.request").LoRARequest
        return [request(*prompt["lora"]) if "lora" in prompt else None for prompt in prompts]

    def _output(self, output: Any) -> dict[str, Any]:
        completion, stats = output.outputs[0], output.metrics
        return {
            "tokens": list(completion.token_ids),
            "cached": output.num_cached_tokens or 0,
            "prompt": len(output.prompt_token_ids),
            "ttft_s": getattr(stats, "first_token_latency", None),
            "finish": completion.finish_reason,
        }

    def _metrics(self) -> Iterator[tuple[str, float]]:
        for metric in self._llm.get_metrics():
            labels = {k: v for k, v in metric.labels.items() if k not in ("model_name", "engine")}
            said = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
            value = getattr(metric, "value", None)
            value = getattr(metric, "sum", None) if value is None else value
            if value is not None:
                yield metric.name + (f"{{{said}}}" if said else ""), float(value)


def main() -> None:
    """Answer until `close`, or the end of the input."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what engines print is no answer
    driver = Driver()
    for line in sys.stdin:
        asked = json.loads(line)
        name = asked.pop("do")
        try:
            do: Callable[..., Json] = getattr(driver, name)
            answer = {"ok": do(**asked)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if name == "close":
            break


if __name__ == "__main__":  # vLLM's processes import this file again
    main()
