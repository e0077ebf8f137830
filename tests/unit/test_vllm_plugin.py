"""The entry point for vLLM's plugins: names are known without module paths, and nothing is loaded.

A package of vLLM's shape is imported by interpreters of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_lane.wheel import make_metadata

FACTORY = "vllm.distributed.kv_transfer.kv_connector.factory"
TIERS = "vllm.v1.kv_offload.tiering.factory"
REGISTRY = """
class {name}:
    _registry = {{"somebody": None}}

    @classmethod
    def {call}(cls, name, module, class_name):
        if name in cls._registry:
            raise ValueError(name)
        cls._registry[name] = (module, class_name)
"""
LOAD = """
import json, sys
from importlib.metadata import entry_points
for point in entry_points(group="vllm.general_plugins"):
    point.load()()
"""
OURS = {
    "KvferryConnector": ["kvferry.integrations.vllm.connector", "KvferryConnector"],
    "KvferryMPConnector": ["kvferry.integrations.vllm.mp", "KvferryMPConnector"],
    "KvferryTierConnector": ["kvferry.integrations.vllm.tier", "KvferryTierConnector"],
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A path with a vLLM of the two registries, and the metadata of an installed kvferry."""
    for name, text in {
        FACTORY: REGISTRY.format(name="KVConnectorFactory", call="register_connector"),
        TIERS: REGISTRY.format(name="SecondaryTierFactory", call="register_tier"),
    }.items():
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    make_metadata(tmp_path)
    return tmp_path


def run(place: Path, code: str) -> Any:
    """What the code prints, behind the loading of all plugins."""
    environment = {**os.environ, "PYTHONPATH": str(place)}
    done = subprocess.run(
        [sys.executable, "-c", LOAD + code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_plugin_loads_nothing_by_itself(place: Path) -> None:
    heavy = ("vllm", "torch", "numpy", "kvferry._native", "kvferry.client.sync")
    assert run(place, f"print(json.dumps([m for m in {heavy!r} if m in sys.modules]))") == []


def test_names_are_known_as_soon_as_vllm_has_its_registries(place: Path) -> None:
    code = f"""
import {FACTORY} as f, {TIERS} as t
print(json.dumps([f.KVConnectorFactory._registry, t.SecondaryTierFactory._registry]))
"""
    connectors, tiers = run(place, code)
    assert connectors == {"somebody": None, **OURS}
    assert tiers == {
        "somebody": None,
        "KvferryTier": ["kvferry.integrations.vllm.tier", "KvferryTier"],
    }


def test_registries_that_are_there_already_and_a_second_call(place: Path) -> None:
    code = f"""
import {FACTORY} as f
from kvferry.integrations.vllm.plugin import register
f.KVConnectorFactory._registry.clear()
register(), register()
import importlib; importlib.reload(f)
import {TIERS} as t
print(json.dumps([f.KVConnectorFactory._registry, list(t.SecondaryTierFactory._registry)]))
"""
    connectors, tiers = run(place, code)
    assert connectors == {"somebody": None, **OURS}
    assert tiers == ["somebody", "KvferryTier"]


def test_a_vllm_with_another_registry_is_imported_all_the_same(place: Path) -> None:
    place.joinpath(*FACTORY.split(".")).with_suffix(".py").write_text("other = 1\n")
    assert run(place, f"import {FACTORY} as f; print(f.other)") == 1


def test_what_vllm_fails_to_import_is_its_own_error(place: Path) -> None:
    place.joinpath(*FACTORY.split(".")).with_suffix(".py").write_text("raise ImportError('x')\n")
    code = f"""
try:
    import {FACTORY}
except ImportError as error:
    print(json.dumps(str(error)))
"""
    assert run(place, code) == "x"
