"""Examples in docstrings of the package: sessions and what has all that it takes run; of the others
every name, call and keyword is looked up in the real objects.
"""

from __future__ import annotations

import asyncio
import builtins
import doctest
import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import kvferry
from kvferry import ClientConfig, Identity, KVLayout, RedisClient, TieredCache
from kvferry.chunks.keys import identity_digest
from kvferry.sharing.node import NodeSettings
from support.docstring_examples import ANY, Example, Of, examples, wrong_names
from support.servers import TestServer

SRC = Path(__file__).resolve().parents[2] / "src"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _modules() -> dict[str, list[Example]]:
    found = {}
    for path in sorted(SRC.glob("**/*.py")):
        if made := list(examples(path.read_text())):
            parts = path.relative_to(SRC).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = made
    return found


MODULES = _modules()
ALL = [(module, example) for module, made in MODULES.items() for example in made]
SESSIONS = [(module, example) for module, example in ALL if example.is_session]
BLOCKS = [(module, example) for module, example in ALL if not example.is_session]

# What examples take for granted, wherever they stand: data, and what they are about.
EVERYWHERE: dict[str, Any] = {
    **vars(builtins),
    "kvferry": kvferry,
    "KVLayout": KVLayout,
    "Identity": Identity,
    "identity": Of(Identity),
    "config": Of(ClientConfig),
    **dict.fromkeys(("buffer", "buffers", "chunks", "hashes", "keys", "pages", "tokens"), ANY),
    **dict.fromkeys(("address", "owner", "size_bytes", "target", "until", "value", "path"), ANY),
}
CACHE = {"cache": Of(TieredCache)}


def _of(module: str, name: str) -> Any:
    return Of(getattr(importlib.import_module(module), name))


def _given(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, ANY)


V = "kvferry.integrations.vllm."
# What the examples of one module begin with.
BEGIN: dict[str, Callable[[], Mapping[str, Any]]] = {
    "kvferry.base.credentials": lambda: _given("fetch_token"),
    "kvferry.base.threads": lambda: _given("self", "tier"),
    "kvferry.chunks.prompt": lambda: CACHE | _given("blocks"),
    "kvferry.client.namespace": lambda: {
        "client": Of(RedisClient),
        "identity_digest": identity_digest,
        **_given("page"),
    },
    "kvferry.config.tuning": lambda: {"ClientConfig": _of("kvferry.config", "ClientConfig")},
    "kvferry.connectors": lambda: _given("digest"),
    "kvferry.connectors.one_sided.leases": lambda: {
        "agent": _of("kvferry.connectors.one_sided.agent", "Agent"),
        **_given("names", "sizes"),
    },
    "kvferry.connectors.one_sided.nixl_agent": lambda: _given("connection", "metadata"),
    "kvferry.connectors.one_sided.agent": lambda: _given("connection", "metadata"),
    "kvferry.http.listener": lambda: _given("app"),
    "kvferry.http.routes": lambda: _given("view", "ERRORS", "lookup", "token", "Prompt", "Found"),
    "kvferry.integrations.lmcache.client": lambda: _given("memoryviews"),
    "kvferry.integrations.sglang.page_store": lambda: {
        "client": Of(RedisClient),
        "host_pages": _of("kvferry.integrations.sglang.host_pool", "HostPages"),
        **_given("fields", "memory", "settings"),
    },
    V + "blocks.copier": lambda: _given("block_size", "kv_caches", "page_a", "page_b"),
    V + "identity": lambda: _given("layout", "vllm_config"),
    V + "tier.store_channel": lambda: _given("connector", "counts", "names", "views"),
    V + "tier.transfers": lambda: {
        "transfers": _of(V + "tier.transfers", "Transfers"),
        "channel": _of(V + "tier.store_channel", "StoreChannel"),
        **_given("job", "rows"),
    },
    "kvferry.cache.tiered_cache": lambda: _given("use"),
    "kvferry.server.client.sync": lambda: _given("use"),
    "kvferry.metrics": lambda: {"prometheus_client": importlib.import_module("prometheus_client")},
    "kvferry.metrics.series": lambda: _given("make"),
    "kvferry.metrics.deltas": lambda: CACHE | _given("sums"),
    "kvferry.server.http.side": lambda: _given("view"),
    "kvferry.sharing.membership.reporter": lambda: {
        "holdings": _of("kvferry.sharing.membership.reporter", "Holdings")
    },
    "kvferry.sharing.peers.instance": lambda: CACHE,
    "kvferry.sharing.peers.peer_tier": lambda: CACHE | _given("peer", "open_peer"),
    "kvferry.testing.clock": lambda: {"clock": importlib.import_module("kvferry.testing.clock")},
    "kvferry_lab.bench.intervals": lambda: _given("measure_ours", "measure_theirs"),
    "kvferry_lab.engines.bench": lambda: _given(*("model", "python", "store")),
    "kvferry_lab.engines.broken": lambda: {"plan": _of("kvferry_lab.engines.bench", "EnginePlan")},
    "kvferry_lab.engines.integrations": lambda: _given("setting"),
    "kvferry_lab.engines.vllm_server": lambda: _given("environment", "vllm_command"),
    "kvferry_lab.latency.distance": lambda: _given("folder"),
    "kvferry_lab.servers.lab_server": lambda: {
        "find_server": importlib.import_module("kvferry.embedded.program").find_server,
        "OpenAIClient": _of("kvferry_lab.openai_client", "OpenAIClient"),
    },
    "kvferry_lab.tune.run": lambda: {
        "save_client_settings": importlib.import_module("kvferry.config").save_client_settings
    },
}


def _label(value: object) -> str:
    return f"{value.line}" if isinstance(value, Example) else str(value)


@pytest.mark.parametrize(("module", "example"), SESSIONS, ids=_label)
def test_session(module: str, example: Example) -> None:
    if not example.is_session or "+SKIP" in example.source:
        return
    names = dict(vars(importlib.import_module(module)))
    for before in MODULES[module]:  # one session of several parts
        if before.is_session:
            test = doctest.DocTestParser().get_doctest(before.source, names, module, module, 0)
            failed, _ = doctest.DocTestRunner(optionflags=FLAGS).run(test, clear_globs=False)
            names = test.globs
            assert failed == 0, f"{module}, line {before.line}"


@pytest.mark.parametrize(("module", "example"), BLOCKS, ids=_label)
def test_names(module: str, example: Example) -> None:
    try:
        own = vars(importlib.import_module(module))
    except ImportError as error:
        if error.name not in ("torch", "vllm", "transformers"):
            raise
        pytest.skip(f"{error.name} is not installed")
    begin = BEGIN.get(module, dict)()
    assert wrong_names(example, {**EVERYWHERE, **own, **begin}) == []


def test_what_is_given_is_needed() -> None:
    assert set(BEGIN) <= {module for module, _ in BLOCKS}


# --- Those that run ---


def _bytes(*, count: int, size: int) -> list[bytearray]:
    return [bytearray([number + 1]) * size for number in range(count)]


@pytest.fixture
def supplies(valkey: TestServer, tmp_path: Path) -> Iterator[dict[str, dict[str, Any]]]:
    with ExitStack() as stack:
        url = f"redis://localhost:{valkey.port}"
        client = stack.enter_context(RedisClient.from_url(url))
        client.set("key", b"12345")
        digest = identity_digest("a model")
        chunks = _bytes(count=2, size=KVLayout(layers=32, kv_heads=8, head_dim=128).chunk_bytes)
        plain = {"buffer": bytearray(b"12345"), "keys": ["a", "b"]}
        yield {
            "kvferry.cache.tiered_cache": {
                "tokens": list(range(600)),
                "chunks": chunks,
                "use": _used(512),
            },
            "kvferry.client.sync": plain,
            "kvferry.client.pure.client": plain,
            "kvferry.client.aio": plain | {"buffers": _bytes(count=2, size=5)},
            "kvferry.client.presence": {},
            "kvferry.config.client": {},
            "kvferry.connectors": {
                "keys": ["a", "b"],
                "pages": _bytes(count=2, size=4 << 20),
                "digest": digest,
            },
            "kvferry.metrics": {"prometheus_client": importlib.import_module("prometheus_client")},
            "kvferry.sharing.node": {"NodeSettings": NodeSettings},
        }


def _used(tokens: int) -> Callable[..., None]:
    def use(found: int, arrays: object) -> None:
        assert found == tokens
        assert arrays is not None

    return use


RUN = (
    *("kvferry.cache.tiered_cache", "kvferry.client.sync", "kvferry.client.pure.client"),
    *("kvferry.client.aio", "kvferry.client.presence", "kvferry.config.client"),
    *("kvferry.connectors", "kvferry.metrics", "kvferry.sharing.node"),
)


@pytest.mark.parametrize("module", RUN)
def test_example_runs(
    module: str,
    supplies: dict[str, dict[str, Any]],
    valkey: TestServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVFERRY_MAX_LOCAL_CPU_SIZE", "0.25")
    (tmp_path / "kvferry.yaml").write_text("client: {host: cache-1}\n")
    names = {**vars(importlib.import_module(module)), "kvferry": kvferry, **supplies[module]}
    for name in ("KVLayout", "Identity"):
        names.setdefault(name, EVERYWHERE[name])
    for example in MODULES[module]:
        if example.is_session:
            continue
        source = example.source.replace("6379", str(valkey.port)).replace("size_gb=4", "size_gb=1")
        source = source.replace('"localhost")', f'"localhost", port={valkey.port})')
        source = source.replace("RedisClient(presence", f"RedisClient(port={valkey.port}, presence")
        if "await " in source:
            source = "async def example():\n" + textwrap.indent(source, "    ")
            exec(compile(source, f"<{module}>", "exec"), names)
            asyncio.run(names["example"]())
        else:
            exec(compile(source, f"<{module}>", "exec"), names)
    for value in names.values():
        if isinstance(value, RedisClient):
            value.close()


# --- The check ---

WRONG = {
    "a name": ("wire.poll()\n", "wire"),
    "a name of another line": ("with open('a') as b:\n    c.read()\n", "c"),
    "a method": ("client = RedisClient()\nclient.fetch('a')\n", "client.fetch"),
    "a keyword": ("client = RedisClient(hosts='a')\nclient.fetch('a')\n", "client.fetch"),
    "an argument too few": ("client = RedisClient()\nclient.get('a')\n", "client.get()"),
    "what a method returns": (
        "client = RedisClient()\nspace = client.namespace('a', identity=b'', value_size_bytes=1)\n"
        "space.fetch()\n",
        "space.fetch",
    ),
    "what with gives": ("with RedisClient() as client:\n    client.fetch()\n", "client.fetch"),
    "a function of a module": ("kvferry.connect()\n", "kvferry.connect"),
    "a method of a base": (
        "class A(RedisClient):\n    def fetch(self): ...\n",
        "RedisClient.fetch",
    ),
}


@pytest.mark.parametrize(("source", "name"), WRONG.values(), ids=WRONG)
def test_wrong_name_is_found(source: str, name: str) -> None:
    found = wrong_names(Example(1, source), EVERYWHERE | {"RedisClient": RedisClient})
    assert [one.split("(): ")[0].removesuffix("()") for one in found] == [name.removesuffix("()")]


def test_examples_are_found() -> None:
    text = '"""A.\n\n    a = f()\n    b\n\n    c\n\nText:\n\n    a table   of words\n"""\n'
    assert [(one.line, one.source) for one in examples(text)] == [(3, "a = f()\nb\n\nc\n")]
    assert "kvferry.cache.tiered_cache" in MODULES
    assert sys.modules["kvferry"] is kvferry
