"""The native programs that benchmarks stand on, as child processes.

    with FloorProcess(config, op="get", size_bytes=4 << 20, connections=4, ops=64) as floor:
        floor.round()["gbps"]
    with DelayProcess(config, rtt_ms=5) as proxy:
        proxy.port

``KVFERRY_BIN_DIR`` names the directory that holds them; else the installed package, a build
directory of the source tree, and PATH are searched. All but one end when their stdin does, so they
cannot outlive us; kvferry-load ends when its load is done.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import kvferry
from kvferry.base.errors import KVFerryError
from kvferry.config import ClientConfig

__all__ = [
    "DelayProcess",
    "FloorProcess",
    "LineProcess",
    "LinkProcess",
    "ProgramError",
    "TunProcess",
    "figures_of_module",
    "find_program",
    "python_process",
    "run_load",
]

_SLOW_BUILDS = ("dev", "asan", "ubsan", "tsan", "fuzz")
_PACKAGE = Path(kvferry.__file__).resolve().parent


class ProgramError(KVFerryError):
    """A native benchmark program is missing or failed; the text holds its last words."""

    code = "program"


def find_program(name: str) -> str:
    """The path of ``kvferry-<name>``; the newest build wins."""
    file = f"kvferry-{name}"
    if directory := os.environ.get("KVFERRY_BIN_DIR"):
        places = [Path(directory, file)]
    else:
        native = find_spec("kvferry._native")  # an editable install keeps it beside the extension
        home = Path(native.origin).parent if native and native.origin else _PACKAGE
        builds = _PACKAGE.parents[1].glob(f"build/*/{file}")
        places = [home / "bin" / file, *(b for b in builds if b.parent.name not in _SLOW_BUILDS)]
    runnable = [place for place in places if os.access(place, os.X_OK)]
    if runnable:
        return str(max(runnable, key=lambda place: place.stat().st_mtime))
    if found := shutil.which(file):
        return found
    raise ProgramError(f"{file} is not built; run `make native`, or name its KVFERRY_BIN_DIR")


class LineProcess:
    """A child that speaks lines on stdout and ends with its stdin.

    Args:
        command: Its words.
        environ: Variables beside ours.
        name: What to call it in errors.
        stop_s: How long it may take to end; then it is killed.
        signal: That ends it, where the end of its stdin does not; 0: it does.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str] | None = None,
        *,
        name: str = "",
        stop_s: float = 5.0,
        signal: int = 0,
    ) -> None:
        self._name, self._stop_s, self._signal = name or command[0], stop_s, signal
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environ or {})},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def line(self) -> str:
        """Its next line.

        Raises:
            ProgramError: It has ended; the text holds its last words.
        """
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return line.strip()
        _, words = self._process.communicate()
        raise ProgramError(f"{self._name} failed: {words.strip()[-500:] or 'no output'}")

    def first_line(self) -> str:
        """The same; without one the program is closed."""
        try:
            return self.line()
        except BaseException:
            self.close()
            raise

    def tell(self, words: str) -> None:
        """Write it a line."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: `line` tells why
            self._process.stdin.write(f"{words}\n")
            self._process.stdin.flush()

    def ask(self, words: str = "") -> str:
        """Write it a line; the line that it answers."""
        self.tell(words)
        return self.line()

    def close(self) -> None:
        """End the child and wait for it; idempotent."""
        process = self._process
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        if self._signal and process.poll() is None:
            process.send_signal(self._signal)
        try:
            process.wait(self._stop_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Program(LineProcess):
    """One of ours."""

    def __init__(
        self, name: str, words: Sequence[str], environ: Mapping[str, str] | None = None
    ) -> None:
        super().__init__([find_program(name), *words], environ, name=f"kvferry-{name}")


def python_process(module: str, *words: object, stop_s: float = 15.0) -> LineProcess:
    """A module of ours as a program, `python -m`."""
    command = [sys.executable, "-m", module, *map(str, words)]
    return LineProcess(command, name=module, stop_s=stop_s)


def figures_of_module(module: str, *words: object, said: str = "", limit_s: float = 300.0) -> Any:
    """Run a module of ours as a program to its end; the JSON that it printed.

    Args:
        said: Its standard input, for what is no word of a command line.

    Raises:
        ProgramError: It failed, or took longer than `limit_s`.
    """
    command = [sys.executable, "-m", module, *map(str, words)]
    try:
        done = subprocess.run(
            command, input=said, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise ProgramError(f"{module} took longer than {limit_s:g} s") from None
    if done.returncode:
        raise ProgramError(f"{module} failed: {done.stderr.strip()[-300:] or 'no output'}")
    return json.loads(done.stdout)


class FloorProcess(_Program):
    """kvferry-floor, connected and warm, which measures one round per call.

    Args:
        config: The server, TCP, TLS or Unix socket; or a cluster, all shards of which it uses.
        op: "get" or "set". GET writes its keys first, unless they are `existing`.
        connections: All together; a cluster has one at least for each shard.
        ops: Commands per round, each on its own key.
        waitall: Receive with MSG_WAITALL; without TLS.
        read_ahead: OpenSSL's buffer for more than a record; with TLS.
        buffers: Distinct buffers; by default one per command, the footprint of a real client.
        rewarm: Commands before each round: a connection that idled begins anew with a small
            window, and its thread on any core.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        op: str,
        size_bytes: int,
        connections: int,
        ops: int,
        waitall: bool = False,
        read_ahead: bool = False,
        existing: bool = False,
        buffers: int | None = None,
        rewarm: int = 0,
        prefix: str = "floor:",
    ) -> None:
        numbers = {
            "--size-bytes": size_bytes,
            "--connections": connections,
            "--ops": ops,
            "--buffers": buffers or ops,
            "--rewarm": rewarm,
        }
        choices = {
            "--interactive": True,
            "--waitall": waitall,
            "--tls-read-ahead": read_ahead,
            "--existing": existing,
            "--cluster": config.topology == "cluster",
        }
        flags = [flag for flag, chosen in choices.items() if chosen]
        super().__init__(
            "floor",
            [*_address(config), "--op", op, "--prefix", prefix, *flags]
            + [word for name, n in numbers.items() for word in (name, str(n))],
            _secrets(config),
        )
        self.connections = connections
        self.variant = "waitall" if waitall else "read ahead" if read_ahead else "plain"
        self.keys = [f"{prefix}{index:010d}" for index in range(ops)]

    def round(self) -> dict[str, Any]:
        """Run one round; see kvferry-floor for the fields."""
        row: dict[str, Any] = json.loads(self.ask())
        return row


def run_load(
    config: ClientConfig, numbers: Mapping[str, int], pattern: str, prefix: str
) -> dict[str, Any]:
    """Run kvferry-load to its end; see there for the options and for what comes back."""
    words = [*_address(config), "--key-pattern", pattern, "--prefix", prefix]
    words += [word for name, n in numbers.items() for word in (f"--{name}", str(n))]
    done = subprocess.run(
        [find_program("load"), *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, **_secrets(config)},
    )
    if done.returncode:
        raise ProgramError(f"kvferry-load failed: {done.stderr.strip() or 'no output'}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _secrets(config: ClientConfig) -> dict[str, str]:
    """The environment in which a program of ours finds them."""
    secrets = {"RESP_PASSWORD": config.password, "RESP_USERNAME": config.username}
    return {f"KVFERRY_{name}": secret for name, secret in secrets.items() if secret}


def _address(config: ClientConfig) -> list[str]:
    """The options that say where, and how with TLS."""
    if config.unix_path is not None:
        return ["--unix", config.unix_path]
    words = ["--host", config.host, "--port", str(config.port)]
    if not config.tls:
        return words
    options = {
        "--tls-ca": config.tls_ca_file,
        "--tls-cert": config.tls_cert_file,
        "--tls-key": config.tls_key_file,
    }
    return [*words, "--tls", *(word for o, v in options.items() if v for word in (o, v))]


class LinkProcess(_Program):
    """A program between a client and a server that adds a round-trip time.

    With `log` it writes a line there for each command that passes; see native/bench/wire_log.hpp.
    """

    def set_rtt(self, rtt_ms: float) -> None:
        """From now on; what is under way stays in order."""
        self.ask(f"rtt {rtt_ms!r}")

    def bytes_passed(self) -> tuple[int, int]:
        """To the server and from it, so far; the log is complete up to now."""
        up, down = self.ask("count").split()
        return int(up), int(down)


class DelayProcess(LinkProcess):
    """kvferry-delay in front of a TCP server; ``port`` is where it listens on 127.0.0.1."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        rtt_ms: float,
        split: bool = False,
        log: str = "",
        port: int = 0,
    ) -> None:
        words = ["--upstream-host", config.host, "--upstream-port", str(config.port)]
        words += ["--port", str(port), "--rtt-ms", str(rtt_ms), "--log", log]
        super().__init__("delay", [*words, *(["--split"] if split else [])])
        self.port = int(self.first_line())


class TunProcess(LinkProcess):
    """kvferry-link: a network of our own behind a distance. Needs root.

    `host` is the address there, and `enter` is what the command line of a server begins with.
    """

    def __init__(self, *, rtt_ms: float, network: int, log: str = "") -> None:
        words = ["--rtt-ms", str(rtt_ms), "--network", str(network), "--log", log]
        super().__init__("link", words)
        self.host = self.first_line()
        self.enter = ("nsenter", f"--target={self.pid}", "--net", "--")
