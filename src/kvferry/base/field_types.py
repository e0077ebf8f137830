"""Types of message fields: numbers and texts from a peer, within their limits.

A field of a message is one of these, so that whoever decodes it has no number that is none, and no
text that is two lines of a log or paints a terminal. Texts that older versions may have written
freely are of any form, and `kvferry.base.shown.in_line` makes a line of them before anybody sees
them.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

__all__ = [
    "Address",
    "Amount",
    "Count",
    "FreeText",
    "Host",
    "Interval",
    "Line",
    "Moment",
    "Name",
    "Number",
    "Port",
    "Rank",
    "Seconds",
    "Short",
]

# Neither control characters, nor ends of lines, nor what turns the direction of a text.
_CHARACTER = r"[^\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"

Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=rf"^{_CHARACTER}+\Z")]
Line = Annotated[str, Meta(max_length=1024, pattern=rf"^{_CHARACTER}*\Z")]
# HOST:PORT or [IPV6]:PORT, or nothing; who connects there reads it.
Address = Annotated[str, Meta(max_length=300, pattern=rf"^{_CHARACTER}*\Z")]
Host = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,255}\Z")]
Port = Annotated[int, Meta(ge=1, le=65_535)]
FreeText = Annotated[str, Meta(max_length=1024)]
Short = Annotated[bytes, Meta(max_length=64)]
Count = Annotated[int, Meta(ge=0, le=1 << 62)]
Rank = Annotated[int, Meta(ge=0, le=65_535)]
# Infinite ones and NaN are none; those since 1970 end in the year 5138.
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Interval = Annotated[float, Meta(ge=0.001, le=1e9)]
Moment = Annotated[float, Meta(ge=0, le=1e11)]
Amount = Annotated[float, Meta(ge=0, le=1e30)]
Number = Annotated[float, Meta(ge=-1e30, le=1e30)]
