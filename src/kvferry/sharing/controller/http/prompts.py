"""What a body or a query names: a prompt by tokens or hashes, an identity, an instance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from kvferry import _native
from kvferry.base.errors import UsageError
from kvferry.chunks.generation import salted
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.http.answers import CallError
from kvferry.http.bodies import Tokens
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.members import FoundMember, Member
from kvferry.sharing.membership.messages import HASHES_MAX, HeldIdentity

__all__ = ["AskedPrompt", "PromptBody", "asked", "instance_of", "looked_up"]

_SALT_BYTES_MAX = 1024


class PromptBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A prompt: its tokens, or the hashes of its chunks, or its text."""

    tokens: Tokens | None = None
    hashes: Annotated[
        list[str] | None,
        Meta(description="Of its chunks instead, 32 hexadecimal digits each."),
    ] = None
    text: Annotated[
        str | None, Meta(description="Instead, where the controller has a tokenizer.")
    ] = None
    identity: Annotated[
        str | None,
        Meta(description="Digest in hex, a beginning of it, or the model; default: all of them."),
    ] = None
    salt: Annotated[str, Meta(description="Of the tenant, in hex.")] = ""


@dataclass(frozen=True)
class AskedPrompt:
    """A prompt as instances of one way of hashing know it.

    Attributes:
        hashes: Of its full chunks.
        chunk_size: Tokens of a chunk; 0: unknown, the hashes were given.
        identities: Of whom.
    """

    hashes: bytes
    chunk_size: int
    identities: dict[bytes, HeldIdentity]


def asked(controller: Controller, body: PromptBody) -> list[AskedPrompt]:
    """The prompt of a body, once for each way in which living instances hash it.

    Raises:
        UsageError: It names none, or more than one, or no identity that is known; or a text, and
            this controller has no tokenizer.
    """
    identities = _identities(controller, body.identity)
    if [body.tokens, body.hashes, body.text].count(None) != 2:
        raise UsageError("name either 'tokens' or 'hashes' or a 'text'")
    if body.hashes is not None:
        return [AskedPrompt(_hashes(body.hashes), 0, identities)]
    tokens = body.tokens if body.text is None else _text(controller, body.text)
    salt = _hex(body.salt, "salt")
    if len(salt) > _SALT_BYTES_MAX:
        raise UsageError(f"'salt' is longer than {_SALT_BYTES_MAX} bytes")
    groups: dict[tuple[int, bytes], dict[bytes, HeldIdentity]] = {}
    for digest, one in identities.items():
        groups.setdefault((one.chunk_size, one.generation), {})[digest] = one
    found = []
    for (size, generation), members in groups.items():
        hashes = _native.hash_chunks(tokens, size, salted(salt, generation))
        found.append(AskedPrompt(hashes[: HASHES_MAX * DIGEST_BYTES], size, members))
    return found


def looked_up(
    controller: Controller, prompts: Iterable[AskedPrompt]
) -> list[tuple[FoundMember, int]]:
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


def _text(controller: Controller, text: str) -> Tokens:
    if controller.tokenizer is None:
        raise UsageError(
            "this controller has no tokenizer for a text: give it --tokenizer-file, or name tokens "
            "(whole numbers) or hashes (32 hexadecimal digits each)"
        )
    return controller.tokenizer.tokens(text)


def _hashes(given: Sequence[str]) -> bytes:
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
