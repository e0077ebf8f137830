"""How values that cannot be right, and errors of the system, stand in a message."""

from __future__ import annotations

import os

__all__ = ["in_line", "reason_of", "shown"]

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


def in_line(text: str, chars_max: int = 400) -> str:
    """A text from elsewhere, fit for a line of a log: short, without control characters."""
    return "".join(char if char.isprintable() else "?" for char in text[:chars_max])


def reason_of(error: Exception) -> str:
    """Why something outside failed, as the system says it: "Connection refused"."""
    inner = getattr(error, "reason", None)  # of a URLError
    if isinstance(inner, OSError):
        error = inner
    if isinstance(error, OSError):
        # Those of name resolution are below 0, with a text of their own.
        number = error.errno or 0
        text = os.strerror(number) if number > 0 else error.strerror
        if text:
            return str(text)
    return str(inner or error) or type(error).__name__
