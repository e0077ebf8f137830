"""The secrets that the suite uses, so that everything it said can be searched for them.

    PASSWORD = secret("alice")      # of this run alone, and known to the search
    register("token-7431")          # one that somebody else thought of

A search for the secrets of secret() cannot be fooled by a word that happens to be in a text: they
begin with a random mark. Registered ones count if they are long and have a digit in them; others,
such as "secret", are words that may stand anywhere. overheard.py does the searching.
"""

from __future__ import annotations

import base64
import secrets
from urllib.parse import quote

LENGTH_MIN = 8
# So much of the mark is a leak as well: texts are cut.
MARK_BYTES = 16
CUT = 10

_mark = secrets.token_hex(MARK_BYTES // 2)
_spellings: dict[str, str] = {}  # as it may be said: the name of the secret


def secret(name: str) -> str:
    """A password or a token; `name` is what a finding calls it. Twice the same gives the same."""
    return f"{_mark}-{name}"


def register(text: str | None, name: str = "") -> None:
    """Take note of a secret, unless it is one that nobody can be blamed for saying."""
    if text is None or text.startswith(_mark) or text in _spellings:
        return
    if len(text) < LENGTH_MIN or not any(character.isdigit() for character in text):
        return
    for spelling in _spelled(text):
        _spellings[spelling] = name or f"{text[:2]}..., {len(text)} characters"


def find(text: str) -> str | None:
    """What of the secrets is in a text: its name, and what stands before it."""
    for spelling, name in _spellings.items():
        at = text.find(spelling)
        if at >= 0:
            return f"the secret {name}, behind {text[max(0, at - 60) : at]!r}"
    return None


def _spelled(text: str) -> set[str]:
    """How it may be written: plain, in a URL, as bytes, encoded."""
    raw = text.encode(errors="surrogatepass")
    return {text, quote(text, safe=""), repr(text)[1:-1], repr(raw)[2:-1], raw.hex()} | {
        base64.b64encode(raw)[: len(raw) * 4 // 3].decode()
    }


for _spelling in _spelled(_mark[:CUT]):
    _spellings[_spelling] = "of secret()"
