"""What makes the bytes of a chunk comparable: the model, how its KV lies in memory, and which part.

    >>> from dataclasses import replace
    >>> from kvferry.chunks.layout import KVLayout
    >>> layout = KVLayout(layers=2, kv_heads=4, head_dim=64, dtype="float16", chunk_size=16)
    >>> identity = Identity(model="tiny", revision="9f3b", layout=layout)
    >>> print(identity.description, end="")
    chunk_size=16
    dtype=float16
    format=1
    head_dim=64
    kind=gqa
    kv_heads=0-3 of 4
    layers=0-1 of 2
    model=tiny
    order=layer_first
    revision=9f3b
    >>> identity.digest.hex()
    '144ac811d2e54e32cbb47eec5bb9bc75'

The digest is part of every key and of every frame, so a reader of another identity misses. The
description is what the digest is of; whoever has two descriptions can say why:

    >>> other = replace(identity, layout=replace(layout, dtype="bfloat16"))
    >>> explain_difference(identity.description, other.description)
    'differs in: dtype (float16 instead of bfloat16)'

A field that is empty is not written, so that fields can come later without changing the digests of
identities without them. Nothing depends on the process, the host, or PYTHONHASHSEED. The salt of a
tenant is no part of an identity: it enters the hashes of chunks (`kvferry.chunks.keys`), and nobody
needs to be told about the tenants of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvferry.base.errors import UsageError
from kvferry.chunks.keys import describe_identity, identity_digest
from kvferry.chunks.layout import KVLayout

__all__ = ["FORMAT_VERSION", "Identity", "difference", "explain_difference"]

# Of what lies in a chunk beside its layout. Another version is another identity: old values are
# misses.
FORMAT_VERSION = 1
_SHOWN_CHARS_MAX = 80
_TEXTS = ("model", "revision", "rope", "lora", "quantisation", "engine")


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Everything that would make the same tokens other bytes.

    Attributes:
        model: Its name, or better a fingerprint of its weights.
        revision: Of the weights, e.g. a commit; two that differ share nothing.
        layout: Shape, element type and part of the model; see `KVLayout`.
        rope: How positions are encoded, where that can be set beside the model, e.g.
            "theta=500000,scaling=yarn:4".
        lora: The adapter's name and revision; empty for the model itself.
        quantisation: Of the weights, or of the KV beyond its element type.
        engine: Whatever of the engine changes bytes, e.g. "vllm-0.33 NHD".
        format: See `FORMAT_VERSION`.
        extra: Further fields, by names that are none of the above.

    Raises:
        UsageError: A field is no single line of text, or a name of `extra` is taken.
    """

    model: str
    layout: KVLayout
    revision: str = ""
    rope: str = ""
    lora: str = ""
    quantisation: str = ""
    engine: str = ""
    format: int = FORMAT_VERSION
    extra: Mapping[str, str | int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "extra", dict(self.extra))  # no longer the caller's
        for name in _TEXTS:
            if not isinstance(getattr(self, name), str):
                raise UsageError(f"{name}={getattr(self, name)!r} is no text")
        for name, value in self.extra.items():
            if not isinstance(value, str | int):
                raise UsageError(
                    f"extra[{name!r}] is a {type(value).__name__}; use text or a number"
                )
        if not self.model:
            raise UsageError("an identity needs the name of the model")
        taken = {*_TEXTS, "format", "salt", *self.layout.identity_fields, "latent_dim", "kv_heads"}
        for name in self.extra:
            if name in taken:
                raise UsageError(f"extra[{name!r}] has the name of another field; rename it")
        try:
            self.description.encode()
        except UnicodeEncodeError:
            raise UsageError("an identity holds a lone surrogate; correct it") from None

    def _fields(self) -> dict[str, str | int]:
        texts = {name: getattr(self, name) for name in _TEXTS}
        fields = {**self.layout.identity_fields, "format": self.format, **texts, **self.extra}
        return {name: value for name, value in fields.items() if value != ""}

    @property
    def description(self) -> str:
        """``name=value`` lines, sorted by name; what the digest is of."""
        return describe_identity(**self._fields())

    @property
    def digest(self) -> bytes:
        """16 bytes, for keys and frames."""
        return identity_digest(self.description)


def difference(description_a: str, description_b: str) -> list[tuple[str, str | None, str | None]]:
    """The fields in which two descriptions differ: name, value in a, value in b; sorted by name.

    ``None`` stands for a field that is not there. Descriptions may come from a store, so what has
    no form is taken as it is: a line without "=" is a field without a value.
    """
    a, b = _parsed(description_a), _parsed(description_b)
    return [
        (name, a.get(name), b.get(name)) for name in sorted(a | b) if a.get(name) != b.get(name)
    ]


def explain_difference(description_a: str, description_b: str) -> str:
    """`difference` as one line for people, of bounded length for each value."""
    found = [
        f"{_shown(name)} ({_shown(a)} instead of {_shown(b)})"
        for name, a, b in difference(description_a, description_b)
    ]
    return f"differs in: {', '.join(found)}" if found else "does not differ"


def _parsed(description: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in description.splitlines() if line)
    return {name: value for name, _, value in pairs}


def _shown(text: str | None) -> str:
    if text is None:
        return "none"
    safe = "".join(char if char.isprintable() else "?" for char in text[: _SHOWN_CHARS_MAX + 1])
    return safe if len(safe) <= _SHOWN_CHARS_MAX else f"{safe[:_SHOWN_CHARS_MAX]}..."
