"""CONTRIBUTING.md says which files one touches for what is added most; here that is true.

Where a name stands in the code of the product, somebody has to write the next one, too. Names in
docstrings and comments are for people and do not count.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import msgspec
import prose
import pytest

from kvferry import _native
from kvferry.chunks.prompt import Prompt
from kvferry.client.native import _native_fields
from kvferry.config.client import ClientConfig
from kvferry.config.setting import specs
from kvferry.config.tuning import ClientTuning
from kvferry.connectors.base import job_limit_s
from kvferry.metrics import CacheMetrics, cache
from kvferry.metrics.series import Family

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
ONLY_TESTED = ("sim", "fuzz", "bench")


@functools.cache
def product() -> dict[str, str]:
    """The code of the product by path, without comments and docstrings."""
    found = {}
    for path in [*ROOT.glob("src/**/*.py"), *ROOT.glob("*/**/*.[ch]pp")]:
        name, parts = path.name, path.relative_to(ROOT).parts
        ours = parts[0] in ("src", "native", "bindings") and parts[1] not in ONLY_TESTED
        if ours and not re.search(r"(^|_)test(_|\.)", name):
            found["/".join(parts)] = prose.code(path.suffix, path.read_text())
    return found


def files_with(pattern: str) -> set[str]:
    """The files of the product in whose code that stands."""
    return {path for path, code in product().items() if re.search(pattern, code)}


def said(what: str) -> list[str]:
    """The files that the page names for it."""
    (line,) = re.findall(rf"^\| {what} \| (.*) \|$", PAGE, re.MULTILINE)
    return re.findall(r"`([\w/<>.]+)`", line)


def makers() -> list[str]:
    """What makes each policy, in the order of their names."""
    makers = re.findall(
        r"NamedPolicy\{\"[\w-]+\", &(\w+)\}", product()[said("an eviction policy")[0]]
    )
    assert len(makers) == len(_native.policies())
    return makers


@pytest.mark.parametrize(("name", "maker"), [*zip(_native.policies(), makers(), strict=True)])
def test_policy_stands_in_two_files(name: str, maker: str) -> None:
    listed, own = said("an eviction policy")
    pattern = rf"\b{maker}\b"
    if name != "LRU":  # what settings begin with
        pattern += rf"|\"{name}\""
    touched = files_with(pattern)
    assert listed in touched
    assert len(touched) == 2, touched
    assert all(re.fullmatch(own.replace("<name>", r"\w+"), path) for path in touched - {listed})


def test_codec_stands_in_three_files() -> None:
    listed, *own = said("a codec")
    touched = files_with(r"zstd_(en|de)code\b|\"zstd\"|kZstd\b")
    assert listed in touched
    assert len(own) == 2
    assert len(touched) == 3, touched


def test_metric_of_the_cache_stands_in_two_files(monkeypatch: pytest.MonkeyPatch) -> None:
    (declared,) = said("a metric of the cache")
    assert {declared} < files_with("single_flight_waits")
    assert len(files_with("single_flight_waits")) == 2

    known = cache.cache_families

    def with_another(stores: tuple[str, ...]) -> dict[str, Family]:
        made = known(stores)
        made["new"] = Family("kvferry_new", "counter", "Of this test.", "tier")
        made["new"].declare(("l1", *stores))
        return made

    monkeypatch.setattr(cache, "cache_families", with_another)
    metrics = CacheMetrics(stores=["redis"])
    metrics.count("new", 2, "redis")
    assert metrics.snapshot()["kvferry_new_total"] == {"l1": 0, "redis": 2}
    assert 'kvferry_new_total{tier="redis"} 2.0' in metrics.text()


def test_default_limit_stands_in_one_file() -> None:
    settings, tuning, _ = said("a default time limit")
    limit = r"(?m)^    {}: .*= [\d.]+$"
    assert specs(ClientConfig)["connect_timeout_s"].unit == "seconds"
    assert files_with(limit.format("connect_timeout_s")) == {settings}
    for name in ("reconnect_min_s", "reconnect_max_s", "topology_refresh_s"):
        assert files_with(limit.format(name)) == {tuning}
    assert {"timeout_s", "connect_timeout_s"} <= set(_native_fields())


def test_what_is_no_setting_is_in_native_code_what_it_is_in_python() -> None:
    stated = {
        name: value
        for line in product()[said("a default time limit")[2]].splitlines()
        if (declared := re.match(r"  [\w:<> ]+ (\w+) = ([^;]+);", line))
        for name, value in [declared.groups()]
    }
    seconds = {"kSecond": "1", "kMilli": "1e-3", "kMiB": "(1 << 20)", "'": ""}
    for item, value in msgspec.structs.asdict(ClientTuning()).items():
        name = re.sub(r"_s$", "", item).replace("value_size_bytes", "value_bytes")
        told = stated.get(name, stated.get(f"{name}_per_s", ""))
        for unit, factor in seconds.items():
            told = told.replace(unit, factor)
        if item != "ktls":
            assert eval(told) == (value or 0), item


def test_jobs_of_stores_have_the_limit_of_clients() -> None:
    assert job_limit_s(100 << 20) == ClientConfig().deadline_s(100 << 20)


def test_fact_of_a_prompt_stands_in_two_files() -> None:
    """Where it is declared, and where an engine's request says it; messages carry whole prompts."""
    declared, said_by = said("a fact of a prompt")
    for fact in ("start_tokens", "computed_tokens", "queued", "source"):
        assert fact in Prompt.__struct_fields__
        written = files_with(rf"\b{fact}=(known|first)\b")
        assert written == {said_by}, (fact, written)
        assert declared in files_with(rf"(?m)^    {fact}: ")
    named = files_with(r"\bcomputed_tokens\b.*\bqueued\b|\bqueued\b.*\bcomputed_tokens\b")
    ranks = {"src/kvferry/integrations/vllm/connector/ranks.py"}
    assert named <= ranks, "an encoding fact by fact"
