"""The hashes of a request's chunks: all that changes its KV, and nothing of the process.

A chunk of a plain request has exactly the hash that `kvferry.chunks.keys` gives its tokens, so
whoever knows the tokens can name the chunk: `cache.keys(tokens)`, `cache.explain(tokens)`. What
else changes KV is folded in:

- The salt of the request (``cache_salt``) and its LoRA adapter (name, and a fingerprint of its
  files) make another root of the chain, and thereby other hashes from the first chunk on.
- Multimodal input changes the chunks that it lies in, and by the chain all behind them; text before
  an image stays shared. Its identifier, modality, place and length enter the hash of each chunk
  that it overlaps, behind the tokens:

      hash[i] = cut(hash[i-1] + the tokens of chunk i, each as a little-endian u32 + inputs)

vLLM's own block hashes are not used: 0.22.1 seeds them at random.

Some requests have no hashes: those with prompt embeddings, whose tokens say nothing; those whose
input is still growing, because vLLM takes tokens back from them; multimodal ones without
identifiers; and those with an adapter of which nobody knows what the engine has loaded, see
`lora_adapters`. They are computed as if there were no cache.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Any

from kvferry import _native
from kvferry.base.errors import UsageError
from kvferry.chunks.generation import FIRST, salted
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.integrations.vllm.lora_adapters import Adapters, LoadedAdapter
from kvferry.integrations.weights import is_known

__all__ = ["RequestHashes", "fit", "holds", "request_hashes", "request_salt"]

# (offset of its first token, how many tokens, what it is)
Input = tuple[int, int, bytes]


class RequestHashes:
    """The hashes of one request, made once for each chunk, as its tokens become known.

    Args:
        chunk_size: Tokens per chunk.
        salt: The root of the chain; see `request_salt`.
        inputs: Multimodal inputs: offset, length, and what they are.
        adapter: What the request is computed with, beside the model.
    """

    __slots__ = ("_hashes", "_inputs", "_salt", "adapter", "chunk_size")

    def __init__(
        self,
        chunk_size: int,
        salt: bytes = b"",
        inputs: Sequence[Input] = (),
        adapter: LoadedAdapter | None = None,
    ) -> None:
        self.chunk_size = chunk_size
        self.adapter = adapter
        self._salt = salt
        self._inputs = sorted(inputs)
        self._hashes = b""

    def of(self, tokens: Sequence[int], count: int | None = None) -> bytes:
        """The hashes of all full chunks of the first `count` tokens, 16 bytes each.

        Args:
            tokens: All tokens that are known; those that were passed before have not changed.
            count: How many of them count; default: all.

        Raises:
            UsageError: A token is no number from 0 to 2**32 - 1.
        """
        size = self.chunk_size
        wanted = (len(tokens) if count is None else min(count, len(tokens))) // size
        known = len(self._hashes) // DIGEST_BYTES
        if known < wanted:
            if not known:
                plain = min(wanted, self._first_input_chunk())
                if plain:
                    fresh = list(tokens[: plain * size])
                    self._hashes = _native.hash_chunks(fresh, size, self._salt)
                    known = plain
            for chunk in range(known, wanted):
                part = tokens[chunk * size : (chunk + 1) * size]
                self._hashes += self._next(part, chunk * size)
        return self._hashes[: wanted * DIGEST_BYTES]

    def _first_input_chunk(self) -> int:
        return self._inputs[0][0] // self.chunk_size if self._inputs else sys.maxsize

    def _next(self, tokens: Sequence[int], start: int) -> bytes:
        parent = self._hashes[-DIGEST_BYTES:] or _root(self._salt)
        end = start + self.chunk_size
        extra = b"".join(
            struct.pack("<qqI", offset - start, length, len(what)) + what
            for offset, length, what in self._inputs
            if offset < end and offset + length > start
        )
        return _cut(parent + _words(tokens) + extra)


def request_hashes(
    request: Any,
    chunk_size: int,
    generation: bytes = FIRST,
    adapters: Adapters | None = None,
) -> RequestHashes | None:
    """The hashes of a vLLM request; None if it cannot be cached.

    Args:
        request: A ``vllm.v1.request.Request``, or what looks like one.
        chunk_size: Tokens per chunk.
        generation: Of the hashes; see `kvferry.chunks.generation`.
        adapters: Of the engine; without them nothing with an adapter is cached.
    """
    if getattr(request, "prompt_embeds", None) is not None or not request.prompt_token_ids:
        return None
    if getattr(request, "resumable", False):
        return None
    load, digest, lora = None, "", getattr(request, "lora_request", None)
    if lora is not None:
        load = adapters.of(lora) if adapters is not None else None
        if load is None or not is_known(digest := load.digest):
            return None
    inputs: list[Input] = []
    for feature in getattr(request, "mm_features", None) or ():
        identifier, place = getattr(feature, "identifier", None), feature.mm_position
        if not identifier:
            return None
        what = f"{getattr(feature, 'modality', '')}\0{identifier}".encode(errors="surrogatepass")
        inputs.append((int(place.offset), int(place.length), what))
    salt = salted(request_salt(request, digest), generation)
    return RequestHashes(chunk_size, salt, inputs, load)


def fit(hashes: RequestHashes | None, local_tokens: int) -> RequestHashes | None:
    """These, if a request of which the engine has so many tokens itself may be cached."""
    if hashes is not None and hashes.adapter is not None:
        return hashes if hashes.adapter.is_fit(local_tokens) else None
    return hashes


def holds(hashes: RequestHashes | None) -> bool:
    """Whether what is computed now still has these hashes."""
    return hashes is None or hashes.adapter is None or hashes.adapter.holds()


def request_salt(request: Any, digest: str = "") -> bytes:
    """The salt of a request's chain; empty for one without ``cache_salt`` and LoRA adapter.

    Args:
        request: As of `request_hashes`.
        digest: Of what its adapter holds.
    """
    fields: list[tuple[str, str]] = []
    salt = getattr(request, "cache_salt", None)
    if salt:
        fields.append(("cache_salt", str(salt)))
    lora = getattr(request, "lora_request", None)
    if lora is not None:
        fields += [("lora", str(lora.lora_name)), ("lora_files", digest)]
    packed = b""
    for name, value in fields:
        data = value.encode(errors="surrogatepass")
        packed += struct.pack("<I", len(name)) + name.encode() + struct.pack("<I", len(data)) + data
    return packed


def _words(tokens: Sequence[int]) -> bytes:
    try:
        words = array("I", tokens)
    except (OverflowError, TypeError) as error:
        raise UsageError(f"token ids must be integers from 0 to 2**32 - 1: {error}") from None
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def _root(salt: bytes) -> bytes:
    return _cut(b"kvferry chunk v1\0" + salt)


def _cut(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:DIGEST_BYTES]
