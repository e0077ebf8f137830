"""Which kernels are part of the name of a layout."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvferry.integrations.vllm.blocks.layouts import kernel_name


def config(**backends: str | None) -> Any:
    """A vllm_config of a model whose layers have these backends."""

    def module(name: str | None) -> Any:
        backend = SimpleNamespace(get_name=lambda: name)
        return SimpleNamespace(attn_backend=backend if name else None)

    modules = {layer: module(name) for layer, name in backends.items()}
    return SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=modules))


@pytest.mark.parametrize(
    ("backends", "name"),
    [
        ({"a": "FLASH_ATTN", "b": "FLASH_ATTN"}, ""),
        ({"a": "FLASH_ATTN", "b": "TRITON_ATTN"}, ""),
        ({"a": "FLASHMLA"}, ""),
        ({"a": "ROCM_ATTN", "b": "FLASH_ATTN"}, "rocm_attn"),
        ({"a": "ROCM_ATTN", "b": "AMX_MLA"}, "amx_mla+rocm_attn"),
    ],
)
def test_kernels_with_an_order_of_their_own_are_named(
    backends: dict[str, str | None], name: str
) -> None:
    assert kernel_name(config(**backends), None, backends) == name


@pytest.mark.parametrize("layers", [(), ("a", "b"), ("c",)])
def test_what_is_not_known_is_shared_by_one_version_only(layers: tuple[str, ...]) -> None:
    told = kernel_name(config(a="FLASH_ATTN", b=None), None, layers)
    assert told.startswith("vllm-")
