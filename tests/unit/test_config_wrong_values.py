"""Wrong values in every place where settings may stand: always one sentence that names the setting.

A thousand in each place, the same ones in every run. A value here can be of no setting of its kind;
what may or may not be right is only asked to raise nothing but `ConfigError`.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from kvferry.base.errors import ConfigError
from kvferry.cli.main import main
from kvferry.config import CacheConfig, ClientConfig, StoreConfig, load_client_config
from kvferry.config.cache import CACHE
from kvferry.config.integrations import VllmConnectorSettings, VllmTierSettings
from kvferry.config.server import ServerConfig, ServerSettings
from kvferry.config.setting import specs
from kvferry.config.spec import Spec
from kvferry.integrations.vllm.connector.settings import read_settings
from kvferry.integrations.vllm.tier.tier_options import read_options
from support.config import SECRET

TIMES = 1000
SENTENCE_MAX = 600
LONG = 70_000


def texts(spec: Spec, pick: random.Random) -> str:
    """A text that no reader of this setting can understand."""
    noise = "".join(pick.choices(string.printable + "äß漢\u0660☃", k=pick.randint(1, 40)))
    if spec.kind is bool:
        return pick.choice(("2", "maybe", "truee", "-1", "[]", "null", "ja", noise + "?"))
    if spec.kind in (int, float):
        low = spec.limits.get("ge", spec.limits.get("gt", 0))
        below = [str(low - 1)] if low > -1e9 else []
        above = [str(spec.limits["le"] * 10)] if "le" in spec.limits else []
        words = ("x", "1,5", "0x10", "nan", "-inf", "1e999", "9" * 500, "[]", "{}", "--", "1 2")
        return pick.choice(
            (*words, *below, *above, "1_0" if spec.kind is int else "e", noise + "x")
        )
    if spec.words:
        return pick.choice(("", "x", "0.5", "*", noise + "?")) or "?"
    if spec.kind in (tuple, dict):
        number = "-3" if is_ports(spec) else "3"
        return pick.choice(
            ("{", "[1", number, '"a"', '{"a": 1, "a": 2}', "[" * LONG, "nul?", "\u2028")
        )
    return pick.choice(("a\0b", "\udcff", "\0"))


def is_ports(spec: Spec) -> bool:
    return spec.use.startswith("a port")


def values(spec: Spec, pick: random.Random) -> Any:
    """A value of YAML or JSON that this setting cannot have."""
    wrong: list[Any] = [[], [1], {"a": 1}, {}, [[["x"]]]]
    if spec.kind is not bool and not {"on", "off"} & set(spec.words):
        wrong += [True, False]
    if spec.kind is str:
        wrong += [3, 2.5, -1, "a\0b"]
    elif spec.kind is tuple:
        numbers = (-1, [70_000]) if is_ports(spec) else (3, [3])
        wrong = ["x", *numbers, {"a": 1}, True, 2.5, "a,b"]
    elif spec.kind is dict:
        wrong = ["x", 3, [1], True, 2.5]
    else:
        wrong.append(texts(spec, pick))
    if spec.kind in (int, float):
        wrong += [float("nan"), float("-inf"), -(10**400), 10**400, -1e300]
    if spec.kind is int:
        wrong += [1.5]
    if spec.kind is bool:
        wrong += [0, 1, 2, 0.5]
    return pick.choice(wrong)


def judged(call: Callable[[], object], value: object, *names: str) -> None:
    """Whether the call raises one sentence that has one of the names."""
    try:
        made = call()
    except ConfigError as error:
        said = str(error)
    else:
        pytest.fail(f"{names[0]}={value!r:.80} made {made!r:.200}")
    assert any(name in said for name in names), (names, said)
    assert "\n" not in said
    assert len(said) < SENTENCE_MAX, said[:SENTENCE_MAX]
    assert SECRET not in said


def picked(known: Mapping[str, Spec], pick: random.Random) -> Spec:
    return pick.choice([spec for spec in known.values() if not (spec.program or spec.private)])


# What LMCache has so, and means that there is none.
RIGHT: tuple[tuple[str, object], ...] = (
    ("extra_config", {}),
    ("local_disk", False),
    ("remote_url", False),
)
# Of stores those that every kind has; the others depend on it.
OF_STORES = {name: specs(StoreConfig)[name] for name in ("name", "max_capacity_gb")}
SERVER = {name: spec for name, spec in specs(ServerSettings).items() if not spec.private}


def test_in_yaml(tmp_path: Path) -> None:
    pick, path = random.Random(1), tmp_path / "config.yaml"
    readers: list[tuple[str, Mapping[str, Spec], Callable[..., object]]] = [
        ("client", specs(ClientConfig), load_client_config),
        ("cache", CACHE.known, CacheConfig.load),
        ("server", SERVER, ServerConfig.load),
    ]
    for _ in range(TIMES):
        section, known, read = pick.choice(readers)
        spec = picked(known, pick)
        value = values(spec, pick)
        if (spec.name, value) in RIGHT:
            continue
        text = yaml.safe_dump({section: {spec.name: value}})
        path.write_text(text, encoding="utf-8", errors="replace")
        judged(partial(read, path, environ={}), value, spec.name)


def test_anything_else_in_yaml_is_a_config_error_or_right(tmp_path: Path) -> None:
    pick, path = random.Random(2), tmp_path / "config.yaml"
    letters = string.printable + "äß漢"
    for _ in range(TIMES):
        name = pick.choice([*CACHE.known, *specs(ClientConfig)])
        noise = "".join(pick.choices(letters, k=pick.randint(0, 30)))
        section = pick.choice(("client", "cache", "server", "stores", ""))
        head = f"{section}:\n  " if section else ""
        path.write_text(f"{head}{name}: {noise}", encoding="utf-8")
        for read in (load_client_config, CacheConfig.load, ServerConfig.load):
            with suppress(ConfigError):
                read(path, environ={})


def test_in_json() -> None:
    pick = random.Random(3)
    client = specs(ClientConfig)
    for _ in range(TIMES):
        place = pick.choice(("adapter", "text", "connector", "tier"))
        if place == "connector":
            spec = picked(pick.choice((CACHE.known, specs(VllmConnectorSettings))), pick)
            value = values(spec, pick)
            if (spec.name, value) in RIGHT:
                continue
            given = {f"kvferry.{spec.name}": value}
            judged(partial(read_settings, given, 16, environ={}), value, spec.name)
            continue
        if place == "tier":
            spec = picked(pick.choice((client, specs(VllmTierSettings))), pick)
            given = {spec.name: values(spec, pick)}
            judged(partial(read_options, given, 1 << 20), given, spec.name)
            continue
        spec = picked(pick.choice((client, OF_STORES)), pick)
        adapter: Any = {"type": "redis", "password": SECRET, spec.name: values(spec, pick)}
        if place == "text":
            variable = {"KVFERRY_SERVER_L2_ADAPTER": json.dumps(adapter)}
            call = partial(ServerConfig.load, environ=variable)
        else:
            call = partial(ServerConfig.load, environ={}, l2_adapter=adapter)
        judged(call, adapter, spec.name, "L2_ADAPTER is no JSON")


def test_in_urls() -> None:
    pick = random.Random(4)
    known = {
        name: spec
        for name, spec in specs(ClientConfig).items()
        if name not in ("host", "port", "unix_path")
    }
    for _ in range(TIMES):
        spec = picked(known, pick)
        if spec.kind is tuple:
            text = pick.choice(("[::1", "a,,b", ",", "a:x", "a:0", "a b", "@"))
        else:
            text = texts(spec, pick)
        url = f"redis+sentinel://:{SECRET}@h/m?{spec.name}={quote(text, errors='surrogateescape')}"
        call = partial(ClientConfig.from_url, url, environ={})
        judged(call, text, spec.name, "query", "malformed")


def test_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    pick = random.Random(5)
    resp = {name: specs(ClientConfig)[name] for name in ("port",)}
    readers: list[tuple[str, Mapping[str, Spec], Callable[..., object]]] = [
        ("KVFERRY_", CACHE.known, CacheConfig.load),
        ("LMCACHE_", CACHE.known, CacheConfig.load),
        ("KVFERRY_SERVER_", SERVER, ServerConfig.load),
        ("KVFERRY_RESP_", resp, ClientConfig.from_env),
        ("LMCACHE_RESP_", resp, ClientConfig.from_env),
    ]
    for _ in range(TIMES):
        prefix, known, read = pick.choice(readers)
        spec = picked(known, pick)
        environ = {prefix + spec.name.upper(): texts(spec, pick)}
        if spec.name == "port" and "://" in environ[prefix + "PORT"]:
            continue  # what a cluster tells its pods
        judged(partial(read, environ=environ), environ, spec.name, spec.name.upper())


def test_in_flags(capsys: pytest.CaptureFixture[str]) -> None:
    pick = random.Random(6)
    known = {
        name: spec
        for name, spec in SERVER.items()
        if spec.kind is not bool and name not in ("token", "http_token", "endpoints")
    }
    known["l2_adapter"] = CACHE.known["stores"]
    for _ in range(TIMES):
        name = pick.choice(sorted(known))
        flag = {"state_file": "--state"}.get(name, f"--{name.replace('_', '-')}")
        text = texts(known[name], pick)
        assert main(["server", "--check", f"{flag}={text}"]) == 2
        said = capsys.readouterr().err
        assert flag in said or name in said, (flag, text, said)
        assert said.count("\n") == 1
        assert len(said) < SENTENCE_MAX
