"""Keys of chunks: ``kvf:<identity>:<hash>``, both parts 128 bits in hex.

The identity says what the bytes are (model, data type, layout, shard, ...); the hash says which
tokens they stand for. The hash chains over all tokens before it, so two equal keys mean equal
prefixes, and the keys of a prompt that is extended begin with the keys of the shorter one:

    >>> identity = identity_digest(describe_identity(model="tiny", dtype="float32"))
    >>> short = chunk_keys(range(8), 4, identity)
    >>> longer = chunk_keys(range(15), 4, identity)      # 15 tokens: three full chunks
    >>> longer[:2] == short, len(longer), short[0]
    (True, 3, 'kvf:d4468d685fdcc8563dd294960a79ab15:85cbf446a4563b00db6128ef21e7b465')

As bytes, with ``cut`` for the first 16 bytes of a SHA-256 digest:

    identity = cut(description, UTF-8)
    hash[-1] = cut("kvferry chunk v1\\0" + salt)
    hash[i]  = cut(hash[i-1] + the tokens of chunk i, each as a little-endian u32)

Nothing depends on the process, the host, or PYTHONHASHSEED. A tenant's salt separates its keys from
those of every other tenant, and without it nobody can test whether a text is cached.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable

from kvferry.base.errors import UsageError

__all__ = ["DIGEST_BYTES", "chunk_hashes", "chunk_keys", "describe_identity", "identity_digest"]

DIGEST_BYTES = 16
_ROOT = b"kvferry chunk v1\0"


def _cut(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:DIGEST_BYTES]


def describe_identity(**fields: str | int) -> str:
    """Write an identity down for people and for the digest: ``name=value`` lines, sorted by name.

    Raises:
        UsageError: A name is no identifier, or a value has a line break: either could imitate
            another field.
    """
    lines = []
    for name, value in sorted(fields.items()):
        text = str(value)
        if not name.isidentifier() or text.splitlines() not in ([], [text]):
            raise UsageError(f"an identity field is a name and one line: {name!r} = {text!r}")
        lines.append(f"{name}={text}\n")
    return "".join(lines)


def identity_digest(description: str) -> bytes:
    """Cut the SHA-256 of an identity's description to 128 bits."""
    return _cut(description.encode())


def chunk_hashes(tokens: Iterable[int], chunk_size: int, salt: bytes = b"") -> list[bytes]:
    """Hash every full chunk of a sequence, chained from its beginning.

    Args:
        tokens: Token ids, 0 to 2**32 - 1.
        chunk_size: Tokens per chunk. Tokens behind the last full chunk have no hash.
        salt: Separates tenants; enters the first parent.

    Raises:
        UsageError: A token is out of range or not an integer, or `chunk_size` is below 1.
    """
    if chunk_size < 1:
        raise UsageError(f"chunk_size must be at least 1, not {chunk_size}")
    try:
        words = array("I", iter(tokens))  # iter: array() would take bytes as ready-made words
    except (OverflowError, TypeError) as error:
        raise UsageError(f"token ids must be integers from 0 to 2**32 - 1: {error}") from None
    if sys.byteorder == "big":
        words.byteswap()
    data = memoryview(words).cast("B")
    step = chunk_size * words.itemsize
    hashes = []
    parent = _cut(_ROOT + salt)
    for start in range(0, len(data) - step + 1, step):
        parent = _cut(parent + data[start : start + step])
        hashes.append(parent)
    return hashes


def chunk_keys(
    tokens: Iterable[int], chunk_size: int, identity: bytes, salt: bytes = b""
) -> list[str]:
    """Name every full chunk of a sequence; see the head of this module.

    Args:
        tokens: Token ids, 0 to 2**32 - 1.
        chunk_size: Tokens per chunk.
        identity: From `identity_digest`.
        salt: Separates tenants.
    """
    if len(identity) != DIGEST_BYTES:
        raise UsageError(f"an identity has {DIGEST_BYTES} bytes, not {len(identity)}")
    prefix = f"kvf:{identity.hex()}:"
    return [prefix + digest.hex() for digest in chunk_hashes(tokens, chunk_size, salt)]
