"""`vllm serve` in a process of its own, asked over HTTP as clients do.

    with EngineServer(vllm_command, ["MODEL", "--dtype", "float32", ...], environment) as server:
        said = server.complete([1, 2, 3], tokens=8)      # said.tokens, said.ttft_s, said.seconds
        server.metrics()["vllm:external_prefix_cache_hits_total"]

The time to the first token is that of a streamed answer, seen by this process. Every wait has a
limit. Leaving the ``with`` ends the server and all that it started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence

from kvferry_lab.engines.engine_process import EngineChild, quiet_environment
from kvferry_lab.openai_client import Answer, OpenAIClient, samples
from kvferry_lab.servers.lab_server import free_port

__all__ = ["EngineServer"]

_END_S = 30.0


class EngineServer(EngineChild):
    """One `vllm serve`; ready when the constructor returns.

    Args:
        command: The program `vllm` of the engine's environment.
        arguments: Behind ``serve``: the model and its settings.
        environment: All its variables.
        threads: See `quiet_environment`.
        limit_s: The longest that its start, and any one answer, may take.
    """

    def __init__(
        self,
        command: str | os.PathLike[str],
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        threads: int = 1,
        limit_s: float = 600.0,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._limit_s = limit_s
        self._client = OpenAIClient(f"{self.url}/v1", limit_s=limit_s, direct=True)
        words = ["serve", *arguments, "--host", "127.0.0.1", "--port", str(self.port)]
        super().__init__(
            [command, *words, "--served-model-name", "model"],
            env=quiet_environment(environment, one_process=False, threads=threads),
        )
        try:
            self._await_ready(time.monotonic() + limit_s)
        except BaseException:
            self.kill()
            raise

    @property
    def ended(self) -> bool:
        """Whether the process that was started has ended."""
        return self._process.poll() is not None

    def complete(self, prompt: Sequence[int], tokens: int = 8) -> Answer:
        """Complete a prompt, greedily, by exactly so many tokens; they are `Answer.tokens`.

        Raises:
            EngineError: The request failed.
        """
        answer = self._client.complete(
            "model", prompt, tokens, temperature=0, ignore_eos=True, return_token_ids=True
        )
        if answer.error or len(answer.tokens) != tokens:
            why = answer.error or f"{len(answer.tokens)} tokens in place of {tokens}"
            raise self._failed(f"a request failed: {why}")
        return answer

    def metrics(self) -> dict[str, float]:
        """Prometheus samples by name, summed over their labels."""
        found: dict[str, float] = {}
        for name, value in samples(self.url):
            found[name] = found.get(name, 0.0) + value
        return found

    def close(self) -> None:
        """SIGTERM, so that what is to be stored is; then its end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        self.kill()

    def _await_ready(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise self._failed("the server has ended")
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return
            time.sleep(0.2)
        raise self._failed(f"not ready within {self._limit_s} s")
