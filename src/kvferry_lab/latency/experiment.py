"""The cells of the experiment, what is asked in each, and how often a request waits for its store.

A cell is a distance, a client of the store, a workload, a length of prompts and a number of
requests at a time. For each client and length a server is started anew and asked for its hits
once, without a distance; they are the same in all cells, and there is no memory in front of the
store that could have them. Before a cell its writes of before have to be over; its first request is
not counted, because that one finds estimates of another distance. Behind a TUN link connections are
new at each distance; hits that are not counted have TCP leave its slow start on them.

Waits are counted on the wire, in the link's log of when each command left the client. The first
command that reads or asks, after a request was sent and before its first token, begins a wait. Its
answer cannot be there before a round trip has passed; the next such command after that may depend
on it, and begins another wait. What is sent meanwhile waits for nothing, and what the first token
did not wait for is no wait. Left out are: writes; the connection of a presence view and what looks
for clears, which nobody waits for; and a key that the request has asked for by the same command
before, because a cache looks again what is there before it writes. Requests that overlap cannot be
told apart.
"""

from __future__ import annotations

import json
import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, product
from operator import sub
from pathlib import Path
from typing import NamedTuple

from kvferry.base.errors import UnavailableError, UsageError
from kvferry_lab.cli.options import option
from kvferry_lab.latency.distance import FarStore
from kvferry_lab.openai_client import Answer, OpenAIClient, retrieves
from kvferry_lab.openai_load import SentTask, ask_all, letters_per_token, random_text
from kvferry_lab.servers.lab_server import served

__all__ = [
    "CLIENTS",
    "WORKLOADS",
    "CellRun",
    "LatencyCell",
    "LatencyPlan",
    "SentCommand",
    "read_commands",
    "run_cells",
    "sequential_waits",
]

# Name: the presence view, and how serve-demo asks its store.
CLIENTS = {
    "ours": ("auto", "ours"),
    "ours-without-view": ("off", "ours"),
    "in-turn": ("off", "in-turn"),
}
WORKLOADS = ("miss", "hit", "mixed")
_HITS_OF_THREE = 2  # in a mixed workload
# Each of eight connections is slow in its first two loads or so: hits that are not counted, the
# seconds between them, and after how many seconds there are no more.
_WARM_UP, _WARM_UP_PAUSE_S, _WARM_UP_LIMIT_S = 12, 0.5, 30.0
_CHUNK_TOKENS = 256
_AGAIN_S = 0.5
# Nine prompts of 40,960 tokens take three minutes to be written at 1,000 ms.
_QUIET_BYTES, _QUIET_S, _QUIET_LIMIT_S = 4096, 0.1, 900.0
_READS = frozenset(("EXISTS", "TOUCH", "GET", "MGET", "GETRANGE", "STRLEN", "HGET", "HMGET"))


def _time_ms(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 60_000:
        raise ValueError(text)
    return value


def _count(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


@dataclass(frozen=True, kw_only=True)
class LatencyPlan:
    """What to run.

    Attributes:
        cell_s: After that time a cell begins no request; it has one at least.
    """

    rtt_ms: tuple[float, ...] = option(
        (0, 10, 20, 30, 40, 50, 1000),
        "Round-trip times to try.",
        metavar="MS,...",
        kind=_time_ms,
        like="0,10,50",
    )
    clients: tuple[str, ...] = option(
        ("ours", "in-turn"), "How the store is asked; see above.", metavar="NAME,..."
    )
    workloads: tuple[str, ...] = option(WORKLOADS, "Which; see above.", metavar="NAME,...")
    prompt_tokens: tuple[int, ...] = option(
        (128, 4096, 40_960), "Lengths.", metavar="N,...", kind=_count
    )
    concurrency: tuple[int, ...] = option(
        (1, 8), "Requests at a time.", metavar="N,...", kind=_count
    )
    requests: int = option(10, "Requests of a cell that count.", least=1)
    output_tokens: int = option(64, "Tokens of an answer.", least=1)
    prefill_tokens_per_s: float = option(10_000.0, "The pace of prompts.", least=1)
    decode_tokens_per_s: float = option(250.0, "The pace of answers.", least=1)
    bytes_per_token: int = option(2048, "Size of KV.", least=1)
    base_url: str | None = option(None, "Ask this server instead, e.g. http://localhost:8000/v1.")
    wait_s: float = option(
        0.0,
        "Give that server so many seconds to start: some look for their store then.",
        least=0,
    )
    cell_s: float = 60.0
    key: str = ""

    def __post_init__(self) -> None:
        for name, known in (("clients", CLIENTS), ("workloads", WORKLOADS)):
            for one in getattr(self, name):
                if one not in known:
                    raise UsageError(f"--{name}: {one} is none of {', '.join(known)}")


@dataclass(frozen=True, order=True)
class LatencyCell:
    """A cell of the experiment."""

    client: str
    workload: str
    prompt_tokens: int
    concurrency: int
    rtt_ms: float


@dataclass(frozen=True, kw_only=True)
class CellRun:
    """What came of it.

    Attributes:
        waits: One after the other, of each request; None: they cannot be told apart.
        seconds: All requests together.
        cache_wait_s: For the cache, by the server's own clock, the mean; None: it does not say.
        up_bytes, down_bytes: Over the link meanwhile, to the store and from it; None: no link.
    """

    cell: LatencyCell
    answers: list[Answer]
    waits: list[int | None]
    seconds: float
    cache_wait_s: float | None
    up_bytes: int | None
    down_bytes: int | None


def run_cells(
    plan: LatencyPlan, far: FarStore | None, folder: Path, say: Callable[[str], None]
) -> Iterator[CellRun]:
    """Ask.

    Raises:
        UnavailableError: A server did not start, or does not answer.
    """
    clients = plan.clients if plan.base_url is None else ("server",)
    for client, tokens in product(clients, plan.prompt_tokens):
        if far is not None:
            far.set_rtt(0)
        with _server(plan, client, tokens, far, folder) as url:
            asker = _Asker(plan, url, tokens, far)
            if asker.has_hits:
                say(f"{client}: {plan.requests} prompts of {tokens} tokens are stored")
                asker.fill()
            for rtt_ms, workload, many in product(plan.rtt_ms, plan.workloads, plan.concurrency):
                cell = LatencyCell(client, workload, tokens, many, rtt_ms)
                say(f"{client}: {workload}, {tokens} tokens, {many} at a time, RTT {rtt_ms:g} ms")
                yield asker.run(cell)


@contextmanager
def _server(
    plan: LatencyPlan, client: str, tokens: int, far: FarStore | None, folder: Path
) -> Iterator[str]:
    """The base URL of the server to ask."""
    if plan.base_url is not None:
        _await(OpenAIClient(plan.base_url, plan.key), plan.wait_s)
        yield plan.base_url
        return
    assert far is not None
    presence, how = CLIENTS[client]
    chunk = min(_CHUNK_TOKENS, max(1, tokens // 2))  # a short prompt has chunks too
    settings = {
        "chunk_size": chunk,
        "local_cpu": False,
        "max_local_cpu_size": 2 * max(plan.concurrency) * tokens * plan.bytes_per_token / 2**30
        + 0.1,
        "remote_url": f"{far.url}&presence={presence}",
    }
    file = folder / "kvferry.yaml"
    file.write_text(json.dumps({"cache": settings}))
    numbers = {
        "--bytes-per-token": plan.bytes_per_token,
        "--prefill-tokens-per-s": plan.prefill_tokens_per_s,
        "--decode-tokens-per-s": plan.decode_tokens_per_s,
    }
    words = [word for name, value in numbers.items() for word in (name, str(value))]
    with served("--config", str(file), "--client", how, *words) as url:
        yield f"{url}/v1"


def _await(client: OpenAIClient, limit_s: float) -> None:
    """Return when it serves; the link is there meanwhile."""
    until = time.monotonic() + limit_s
    while True:
        try:
            client.model()
            return
        except UnavailableError:
            if time.monotonic() >= until:
                raise
        time.sleep(_AGAIN_S)


class _Asker:
    """Asks one server for prompts of one length; `has_hits`: some of them are to be stored."""

    def __init__(self, plan: LatencyPlan, url: str, tokens: int, far: FarStore | None) -> None:
        self._plan = plan
        self._client = OpenAIClient(url, plan.key)
        self._far = far
        self._model = self._client.model()
        self._rtt_ms = 0.0
        self._new = count(plan.requests)
        self.has_hits = plan.workloads != ("miss",)
        self._name = secrets.token_hex(4)  # what others have asked for is no hit here
        letters = letters_per_token(self._client, lambda text: self._complete(text, 1))
        self._letters = round(tokens * letters)

    def fill(self) -> None:
        """Have all hits stored."""
        for number in range(self._plan.requests):
            self._ask(number, 1)
        self._settle()

    def run(self, cell: LatencyCell) -> CellRun:
        """One cell."""
        plan, far = self._plan, self._far
        if far is not None and cell.rtt_ms != self._rtt_ms:
            self._move(far, cell.rtt_ms)
        numbers = [self._number(cell.workload, at) for at in range(plan.requests)]
        self._ask(self._number(cell.workload, 0), 1)
        self._settle()
        waited = retrieves(self._client.base_url)
        before = (0, 0) if far is None else far.bytes_passed()
        began = time.monotonic()

        asked = ask_all(
            numbers,
            lambda number: self._ask(number, plan.output_tokens),
            cell.concurrency,
            plan.cell_s,
        )
        seconds = time.monotonic() - began
        after = None if far is None else far.bytes_passed()
        wait_s, loads = map(sub, retrieves(self._client.base_url), waited)
        return CellRun(
            cell=cell,
            answers=[one.answer for one in asked],
            waits=self._waits(cell, asked),
            seconds=seconds,
            cache_wait_s=wait_s / loads if loads else None,
            up_bytes=None if after is None else after[0] - before[0],
            down_bytes=None if after is None else after[1] - before[1],
        )

    def _move(self, far: FarStore, rtt_ms: float) -> None:
        """Have the store at another distance."""
        self._settle()
        far.set_rtt(rtt_ms)
        self._rtt_ms = rtt_ms
        if far.kind != "tun":
            return
        far.reconnect()
        until = time.monotonic() + _WARM_UP_LIMIT_S
        for at in range(_WARM_UP if self.has_hits else 0):
            if time.monotonic() > until:
                return
            self._ask(at % self._plan.requests, 1)
            time.sleep(_WARM_UP_PAUSE_S)

    def _waits(self, cell: LatencyCell, asked: Sequence[SentTask[int]]) -> list[int | None]:
        if self._far is None or cell.concurrency > 1:
            return [None] * len(asked)
        commands, rtt_s = read_commands(self._far.log), self._rtt_ms / 1e3
        return [
            sequential_waits(
                commands,
                one.sent_s,
                one.sent_s + (one.answer.ttft_s or one.answer.seconds),
                rtt_s,
            )
            for one in asked
        ]

    def _number(self, workload: str, at: int) -> int:
        """Of a prompt: below `requests` it is one that is stored."""
        if workload == "hit" or (workload == "mixed" and at % 3 < _HITS_OF_THREE):
            return at
        return next(self._new)

    def _ask(self, number: int, new_tokens: int) -> Answer:
        text = random_text(random.Random(number), self._letters)
        return self._complete(f"{self._name}{number} {text}"[: self._letters], new_tokens)

    def _complete(self, prompt: str, new_tokens: int) -> Answer:
        return self._client.complete(self._model, prompt, new_tokens, temperature=0.0)

    def _settle(self) -> None:
        """Wait until what was computed is written: the link carries next to nothing."""
        if self._far is None:
            return
        until, before = time.monotonic() + _QUIET_LIMIT_S, -_QUIET_BYTES
        while (now := self._far.bytes_passed()[0]) - before >= _QUIET_BYTES:
            if time.monotonic() > until:
                raise UnavailableError(f"writes go on for more than {_QUIET_LIMIT_S:g} s")
            before = now
            time.sleep(max(_QUIET_S, 2 * self._rtt_ms / 1e3))


class SentCommand(NamedTuple):
    """A command that left the client; the moment is of `time.monotonic`."""

    at_s: float
    name: str
    key: str


def read_commands(log: Path) -> list[SentCommand]:
    """The commands of a link's log that a request may wait for, in the order of time."""
    text = log.read_text(errors="replace")  # the last line may be on its way
    lines = [line.split(" ") for line in text.split("\n")[:-1]]
    views = {words[1] for words in lines if words[2:4] == ["CLIENT", "TRACKING"]}
    return sorted(_read(lines, views))


def _read(lines: Iterable[Sequence[str]], views: set[str]) -> Iterator[SentCommand]:
    for at_ns, connection, name, key in lines:
        if name.upper() in _READS and connection not in views and not key.endswith(":generation"):
            yield SentCommand(int(at_ns) / 1e9, name.upper(), key)


def sequential_waits(
    commands: Iterable[SentCommand], sent_s: float, first_token_s: float, rtt_s: float
) -> int | None:
    """Of one request, among commands in the order of time; None without a distance."""
    if rtt_s <= 0:
        return None
    seen: set[tuple[str, str]] = set()
    waits, answered_s = 0, sent_s
    for command in commands:
        if not sent_s <= command.at_s <= first_token_s or command[1:] in seen:
            continue
        seen.add((command.name, command.key))
        if command.at_s >= answered_s and command.at_s + rtt_s <= first_token_s:
            waits, answered_s = waits + 1, command.at_s + rtt_s
    return waits
