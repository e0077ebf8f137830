"""An engine in a process of its own, seen from outside.

    with EngineProcess(python, {"model": "...", ...}, environment, one_process=True) as engine:
        result = engine.generate([[1, 2, 3]], tokens=8)
        result.outputs[0].tokens, result.outputs[0].cached

engine_script.py is what runs inside. `python` is the interpreter of the engine's environment.
`begin` and `end` are the two halves of a request, for those who break things in between. Every wait
has a limit; whoever exceeds it is killed and EngineError says so, with the last lines of its log.
One thread at a time. Leaving the ``with`` closes the engine, or kills it after an error; processes
that it started end with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from kvferry.base.errors import KVFerryError

__all__ = [
    "EngineChild",
    "EngineError",
    "EngineProcess",
    "Generated",
    "Output",
    "Prompt",
    "quiet_environment",
    "versions_of",
]

Prompt = Sequence[int] | Mapping[str, Any]
_DRIVER = Path(__file__).with_name("engine_script.py")
_READ_BYTES = 1 << 20
_LAST_LINES = 25
_END_S = 20.0
_STATUS_S = 2.0


class EngineError(KVFerryError):
    """An engine did not do what it was asked."""


@dataclass(frozen=True)
class Output:
    """The answer to one request. `ttft_s` is None where the engine keeps no statistics."""

    tokens: list[int]
    cached: int
    prompt: int
    ttft_s: float | None
    finish: str | None


@dataclass(frozen=True)
class Generated:
    """The answers to the requests of one call, in their order."""

    outputs: list[Output]
    seconds: float

    @property
    def tokens(self) -> list[list[int]]:
        """The tokens of each."""
        return [output.tokens for output in self.outputs]

    @property
    def cached(self) -> list[int]:
        """The prompt tokens of each that were not computed."""
        return [output.cached for output in self.outputs]


def quiet_environment(
    base: Mapping[str, str], one_process: bool, threads: int = 1
) -> dict[str, str]:
    """Variables for an engine that asks no hub, tells nobody, and keeps to its share of the host.

    Args:
        base: What else is in it.
        one_process: vLLM's engine core runs in the process itself, with the executor "uni".
        threads: Of OpenMP. More than cores that are free makes them wait for each other, spinning.
    """
    return {
        **base,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_CPU_KVCACHE_SPACE": base.get("VLLM_CPU_KVCACHE_SPACE", "1"),  # GiB
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if one_process else "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",  # so that the last words of one that dies are said
    }


def versions_of(*pythons: Path | None) -> dict[str, str]:
    """The versions of vLLM, torch, LMCache and kvferry in environments; a later one wins."""
    code = (
        "import importlib.metadata as m, json\n"
        "names = ('vllm', 'vllm-cpu', 'torch', 'lmcache', 'kvferry')\n"
        "print(json.dumps({d.name: d.version for d in m.distributions() if d.name in names}))"
    )
    found: dict[str, str] = {}
    for python in pythons:
        if python is not None:
            said = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
            found |= json.loads(said.stdout or "{}")
    return found


class EngineChild(ABC):
    """An engine's process, its output, and how it ends. Leaving a ``with`` closes it."""

    def __init__(
        self, command: Sequence[str | os.PathLike[str]], log: Path | None = None, **how: Any
    ) -> None:
        self._said = ""
        self._ended = False
        self._log: IO[bytes] = log.open("w+b") if log else tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stderr=self._log,
            start_new_session=True,  # so that what it starts can be ended with it
            **{"stdout": self._log, **how},
        )

    @abstractmethod
    def close(self) -> None:
        """End it in peace; then `kill`."""

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        return self._process.pid

    @property
    def log(self) -> str:
        """All that it has printed so far."""
        if not self._log.closed:
            size = os.fstat(self._log.fileno()).st_size  # its position is shared with the writer
            self._said = os.pread(self._log.fileno(), size, 0).decode(errors="replace")
        return self._said

    def kill(self) -> None:
        """SIGKILL to it and all that it started; idempotent."""
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        _ = self.log  # kept
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        self.kill()

    def _failed(self, why: str) -> EngineError:
        last = self.log.splitlines()[-_LAST_LINES:]
        return EngineError("\n  ".join([f"{why}; its last words:", *last]))


class EngineProcess(EngineChild):
    """One vLLM; opened by the constructor.

    Args:
        python: The interpreter of its environment.
        engine: Settings of `vllm.LLM`.
        environment: All its variables.
        one_process: See `quiet_environment`; else engine core and worker have their own.
        limit_s: The longest that opening it, and any one answer, may take.
        log: Where its output goes; a file of our own by default.
    """

    def __init__(
        self,
        python: str | os.PathLike[str],
        engine: Mapping[str, Any],
        environment: Mapping[str, str],
        *,
        one_process: bool = False,
        threads: int = 1,
        limit_s: float = 600.0,
        log: Path | None = None,
    ) -> None:
        self._limit_s = limit_s
        self._buffer = b""
        settings = dict(engine)
        if one_process:
            settings["distributed_executor_backend"] = "uni"
        super().__init__(
            [python, "-P", _DRIVER],
            log,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=quiet_environment(environment, one_process, threads),
        )
        try:
            self.opened: dict[str, Any] = self.ask("open", engine=settings)
        except BaseException:
            self.kill()
            raise

    @property
    def version(self) -> str:
        """The engine's own facts."""
        return str(self.opened["version"])

    def generate(
        self, prompts: Sequence[Prompt], tokens: int = 8, limit_s: float | None = None
    ) -> Generated:
        """Complete prompts, all at once, greedily, by exactly so many tokens each."""
        self.begin(prompts, tokens)
        return self.end(limit_s)

    def begin(self, prompts: Sequence[Prompt], tokens: int = 8) -> None:
        """Ask for it, and do not wait."""
        self._send({"do": "generate", "prompts": list(prompts), "tokens": tokens})

    def end(self, limit_s: float | None = None) -> Generated:
        """Wait for what was begun."""
        answer = self._receive(limit_s)
        return Generated([Output(**output) for output in answer["outputs"]], answer["seconds"])

    def forget(self) -> None:
        """Empty the engine's own prefix cache."""
        if self.ask("forget") is not True:
            raise EngineError("the engine's prefix cache is in use")

    def metrics(self) -> dict[str, float]:
        """vLLM's metrics by name and labels; of a histogram the sum."""
        found: dict[str, float] = self.ask("metrics")
        return found

    def call(self, function: str, **values: Any) -> Any:
        """Run ``module:function`` inside, with the LLM before these values."""
        return self.ask("call", function=function, values=values)

    def ask(self, do: str, limit_s: float | None = None, **values: Any) -> Any:
        """One question and its answer.

        Raises:
            EngineError: The engine failed, ended, or took too long.
        """
        self._send({"do": do, **values})
        return self._receive(limit_s)

    def close(self) -> None:
        """Shut the engine down and wait for its end."""
        if self._process.poll() is None:
            with contextlib.suppress(EngineError):
                self.ask("close", limit_s=_END_S * 3)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        self.kill()

    def _send(self, what: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(what).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._ended_itself() from error

    def _receive(self, limit_s: float | None) -> Any:
        limit_s = self._limit_s if limit_s is None else limit_s
        deadline = time.monotonic() + limit_s
        assert self._process.stdout is not None
        out = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([out], [], [], left_s)[0]:
                self.kill()
                raise self._failed(f"no answer within {limit_s} s")
            read = os.read(out, _READ_BYTES)
            if not read:
                raise self._ended_itself()
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise self._failed(answer["error"])
        return answer["ok"]

    def _ended_itself(self) -> EngineError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STATUS_S)  # it has closed its output
        return self._failed(f"the engine's process has ended, status {self._process.returncode}")
