"""The element types of KV, by name."""

from __future__ import annotations

from kvferry.base.errors import UsageError

__all__ = ["ELEMENTS", "element_name"]

# What NumPy stores each element type as, and its size in bytes. Types that NumPy does not have are
# bit patterns in unsigned integers: a cache moves them and never calculates with them.
ELEMENTS: dict[str, tuple[str, int]] = {
    "bool": ("bool", 1),
    "int8": ("int8", 1),
    "uint8": ("uint8", 1),
    "int16": ("int16", 2),
    "uint16": ("uint16", 2),
    "int32": ("int32", 4),
    "uint32": ("uint32", 4),
    "int64": ("int64", 8),
    "uint64": ("uint64", 8),
    "float16": ("float16", 2),
    "float32": ("float32", 4),
    "float64": ("float64", 8),
    "bfloat16": ("uint16", 2),
    "fp8": ("uint8", 1),
    "fp8_e4m3": ("uint8", 1),
    "fp8_e5m2": ("uint8", 1),
    "float8_e4m3fn": ("uint8", 1),
    "float8_e5m2": ("uint8", 1),
}


def element_name(dtype: object) -> str:
    """The name of an element type.

    Args:
        dtype: A name, a NumPy dtype or scalar type, or a torch dtype ("torch.bfloat16").

    Raises:
        UsageError: There is no such type.
    """
    text = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype))
    name = text.removeprefix("torch.")
    if name not in ELEMENTS:
        raise UsageError(f"unknown dtype {text!r}; known: {', '.join(ELEMENTS)}")
    return name
