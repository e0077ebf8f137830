"""Loads and removes adapters of a running engine, as a server is told to. Imported by the engine.

engine.call("adapter_calls:add", lora=[name, number, folder])
"""

from __future__ import annotations

from typing import Any

from vllm.lora.request import LoRARequest


def add(llm: Any, lora: list[Any], in_place: bool = False) -> bool:
    """Load one; `in_place`: in the place of the one with its number."""
    return bool(llm.llm_engine.add_lora(LoRARequest(*lora, load_inplace=in_place)))


def remove(llm: Any, number: int) -> bool:
    """Forget one."""
    return bool(llm.llm_engine.remove_lora(number))
