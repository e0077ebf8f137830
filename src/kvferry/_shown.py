"""How a value that cannot be right stands in a message: as it was written, and cut when long."""

from __future__ import annotations

__all__ = ["shown"]

_CHARS_MAX = 80
_BITS_MAX = 256  # Python refuses to write out a number of thousands of digits


def shown(value: object) -> str:
    """Its `repr`, 80 characters at most."""
    if isinstance(value, int) and value.bit_length() > _BITS_MAX:
        return f"a number of {value.bit_length()} bits"
    try:
        text = repr(value[: _CHARS_MAX + 1] if isinstance(value, str | bytes) else value)
    except ValueError:  # e.g. of a list of such numbers
        return f"a {type(value).__name__}"
    return text if len(text) <= _CHARS_MAX else f"{text[: _CHARS_MAX - 3]}..."
