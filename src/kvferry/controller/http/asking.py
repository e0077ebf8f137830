"""What a body or a query names: a prompt by tokens or hashes, an identity, an instance."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvferry import _native
from kvferry.chunks.generation import salted
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.controller.controller import Controller
from kvferry.controller.members import Found, Member
from kvferry.errors import UsageError
from kvferry.http.answers import CallError, field
from kvferry.membership.messages import HASHES_MAX, HeldIdentity

__all__ = ["Asked", "asked", "instance_of", "looked_up"]

_SALT_BYTES_MAX = 1024


@dataclass(frozen=True)
class Asked:
    """A prompt as instances of one way of hashing know it.

    Attributes:
        hashes: Of its full chunks.
        chunk_size: Tokens of a chunk; 0: unknown, the hashes were given.
        identities: Of whom.
    """

    hashes: bytes
    chunk_size: int
    identities: dict[bytes, HeldIdentity]


def asked(controller: Controller, body: Mapping[str, Any]) -> list[Asked]:
    """The prompt of a body, once for each way in which living instances hash it.

    Raises:
        UsageError: It names none, or more than one, or no identity that is known; or a text, and
            this controller has no tokenizer.
    """
    identities = _identities(controller, field(body, "identity", str))
    named = [name for name in ("tokens", "hashes", "text") if body.get(name) is not None]
    if len(named) != 1:
        raise UsageError("name either 'tokens' or 'hashes' or a 'text'")
    if named == ["hashes"]:
        return [Asked(_hashes(body["hashes"]), 0, identities)]
    tokens = _text(controller, body) if named == ["text"] else field(body, "tokens", array)
    salt = _hex(field(body, "salt", str, ""), "salt")
    if len(salt) > _SALT_BYTES_MAX:
        raise UsageError(f"'salt' is longer than {_SALT_BYTES_MAX} bytes")
    groups: dict[tuple[int, bytes], dict[bytes, HeldIdentity]] = {}
    for digest, one in identities.items():
        groups.setdefault((one.chunk_size, one.generation), {})[digest] = one
    found = []
    for (size, generation), members in groups.items():
        hashes = _native.hash_chunks(tokens, size, salted(salt, generation))
        found.append(Asked(hashes[: HASHES_MAX * DIGEST_BYTES], size, members))
    return found


def looked_up(controller: Controller, prompts: Iterable[Asked]) -> list[tuple[Found, int]]:
    """Who holds leading chunks, with the tokens of a chunk there."""
    found = []
    for one in prompts:
        holders = [
            each
            for each in controller.members.lookup(one.hashes)
            if each.identity in one.identities
        ]
        for each in holders:
            found.append((each, one.chunk_size or one.identities[each.identity].chunk_size))
        if one.hashes:
            chunks = holders[0].chunks if holders else 0
            root, held = one.hashes[:DIGEST_BYTES], one.hashes[: chunks * DIGEST_BYTES]
            controller.prefixes.asked(root, held, chunks)
    return found


def instance_of(controller: Controller, name: str) -> list[Member]:
    """The living processes of an instance, by rank.

    Raises:
        CallError: There is none.
    """
    found = [one for one in controller.members.living() if one.instance == name]
    if not found:
        raise CallError(404, "instance", f"no instance {name!r} is registered; see /v1/nodes")
    return sorted(found, key=lambda one: one.rank)


def _identities(controller: Controller, wanted: str | None) -> dict[bytes, HeldIdentity]:
    found = {}
    for member in controller.members.living():
        for digest, one in member.identities.items():
            if wanted is None or one.model == wanted or digest.hex().startswith(wanted.lower()):
                found[digest] = one
    if not found and wanted is not None:
        raise CallError(404, "identity", f"no instance has chunks of {wanted!r}; see /v1/nodes")
    return found


def _text(controller: Controller, body: Mapping[str, Any]) -> array[int]:
    if controller.tokenizer is None:
        raise UsageError(
            "this controller has no tokenizer for a text: give it --tokenizer-file, or name tokens "
            "(whole numbers) or hashes (32 hexadecimal digits each)"
        )
    return controller.tokenizer.tokens(field(body, "text", str))


def _hashes(given: Any) -> bytes:
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise UsageError("'hashes' is no list of texts; write 32 hexadecimal digits for each chunk")
    if len(given) > HASHES_MAX:
        raise UsageError(f"'hashes' has more than {HASHES_MAX} of them")
    raw = [_hex(one, "hashes") for one in given]
    if any(len(one) < DIGEST_BYTES for one in raw):
        raise UsageError(f"a hash has at least {DIGEST_BYTES} bytes: 32 hexadecimal digits")
    return b"".join(one[:DIGEST_BYTES] for one in raw)


def _hex(text: str, name: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        pass
    raise UsageError(f"{name!r} is no hexadecimal text")
