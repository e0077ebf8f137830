"""Bodies of requests: how long they may be, how many at a time, and how they become values.

Engines are answered by another thread of this process, and Python runs one at a time: a long body
that is parsed in one go keeps all of them waiting for a tenth of a second. So a list of tokens is
parsed in pieces, with a pause behind each, and becomes 8 bytes a token.

Threads: the loop of HTTP for `Bodies`; any for the others.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from kvferry.base.errors import UsageError
from kvferry.config.url import nearest
from kvferry.http.answers import CallError

__all__ = ["BODY_BYTES_MAX", "Bodies", "ById", "Tokens", "asked", "converted", "numbers", "parsed"]

T = TypeVar("T", bound=msgspec.Struct)

if TYPE_CHECKING:
    Tokens: TypeAlias = array[int]
else:
    Tokens = Annotated[array, msgspec.Meta(description="Of the prompt, 0 to 2^32 - 1.")]

# Half a million tokens; a longer prompt comes in a token file.
BODY_BYTES_MAX = 4 << 20
# Of bodies longer than _SHORT_BYTES, only _LONG_MAX are read and parsed at a time.
_SHORT_BYTES = 64 << 10
_LONG_MAX = 2
_BODY_S = 30.0  # for a body to come
_PIECE_BYTES = 8 << 10
_PAUSE_S = 0.0005


class ById(msgspec.Struct):
    """What a path names."""

    id: str


Parse = Callable[[bytes], dict[str, Any]]
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_any = msgspec.json.Decoder()
_whole = msgspec.json.Decoder(list[int])


class Bodies:
    """Bodies that are being read; long ones `long_max` at a time."""

    def __init__(self, long_max: int = _LONG_MAX) -> None:
        self._long = 0
        self._long_max = long_max

    async def read(self, request: Request, parse: Parse | None = None) -> dict[str, Any]:
        """The body of a request, parsed; `parse` is for another kind than JSON.

        Raises:
            CallError: It is too long, comes too slowly, or is no JSON object; or too many are read.
        """
        said = request.headers.get("content-length", "")
        size = int(said) if said.isdecimal() else None
        if size is not None and size > BODY_BYTES_MAX:
            raise _too_large()
        if size is not None and size <= _SHORT_BYTES:
            return await self._read(request, parse or parsed)
        if self._long >= self._long_max:
            many = f"{self._long_max} bodies above {_SHORT_BYTES} bytes"
            raise CallError(429, "busy", f"{many} are being read; send it again soon")
        self._long += 1
        try:
            return await self._read(request, parse or parsed)
        finally:
            self._long -= 1

    async def _read(self, request: Request, parse: Parse) -> dict[str, Any]:
        raw = bytearray()
        try:
            async with asyncio.timeout(_BODY_S):
                async for piece in request.stream():
                    raw += piece
                    if len(raw) > BODY_BYTES_MAX:
                        raise _too_large()
        except TimeoutError:
            text = f"the body was not there after {_BODY_S:g} s"
            raise CallError(408, "deadline", text) from None
        except ClientDisconnect:
            raise CallError(400, "json", "the body is not complete") from None
        return await run_in_threadpool(parse, bytes(raw))


def parsed(raw: bytes) -> dict[str, Any]:
    """A body; its `tokens`, if they are a list, as an array.

    Raises:
        CallError: It is no JSON object.
    """
    if not raw.strip():
        return {}
    found: dict[str, Any] = {}
    try:
        for name, value in _fields.decode(raw).items():
            text = bytes(value)
            is_list = name == "tokens" and text.startswith(b"[")
            found[name] = numbers(text) if is_list else _any.decode(text)
    except UsageError as error:
        raise CallError(400, error.code, f"'tokens': {error}") from None
    except msgspec.ValidationError:
        raise CallError(400, "json", "the body is no JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise CallError(400, "json", "the body is no JSON") from None
    return found


def converted(given: Mapping[str, Any], kind: type[T], *, strict: bool = True) -> T:
    """A body of a kind; what is null is not given.

    Args:
        given: As `parsed` or `asked` have it.
        kind: With what may be in it.
        strict: Numbers are no texts.

    Raises:
        UsageError: It cannot be one.
    """
    given = {name: value for name, value in given.items() if value is not None}
    if kind.__struct_config__.forbid_unknown_fields:
        for name in given:
            if name not in kind.__struct_fields__:
                close = nearest(name, kind.__struct_fields__)
                raise UsageError(f"unknown name {name!r} in the body{close}")
    try:
        return msgspec.convert(given, kind, strict=strict, dec_hook=_tokens)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$.")
    what = f"{place.rstrip('`')!r}" if place else "the body"
    raise UsageError(f"{what}: {text[:1].lower()}{text[1:]}")


def asked(query: Mapping[str, str], kind: type[msgspec.Struct]) -> dict[str, Any]:
    """A query as a body: lists have commas between."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    lists = {field.name for field in info.fields if _is_list(field.type)}
    return {name: text.split(",") if name in lists else text for name, text in query.items()}


def _is_list(kind: msgspec.inspect.Type) -> bool:
    if isinstance(kind, msgspec.inspect.Metadata):
        return _is_list(kind.type)
    if isinstance(kind, msgspec.inspect.UnionType):
        return any(map(_is_list, kind.types))
    return isinstance(kind, msgspec.inspect.ListType | msgspec.inspect.CustomType)


def _tokens(kind: type, value: Any) -> Any:
    """What msgspec asks of kinds that it does not know: there are tokens alone."""
    if isinstance(value, array):
        return value
    if isinstance(value, list):  # of a query
        with suppress(ValueError, OverflowError):
            return array("q", map(int, value))
    raise ValueError("no list of whole numbers")


def numbers(raw: bytes) -> array[int]:
    """A JSON list of whole numbers, as int64.

    Raises:
        UsageError: It is something else.
    """
    text = raw.strip()
    found = array("q")
    at, end = 1, len(text) - 1
    try:
        if text[:1] != b"[" or text[-1:] != b"]":
            raise ValueError
        while at < end:
            cut = text.find(b",", min(at + _PIECE_BYTES, end), end)
            cut = end if cut < 0 else cut
            piece = _whole.decode(b"[%b]" % text[at:cut])
            if not piece and (at > 1 or cut < end):  # a comma too many
                raise ValueError
            found.extend(piece)
            at = cut + 1
            if at < end:
                time.sleep(_PAUSE_S)
            elif at == end:
                raise ValueError
    except (ValueError, OverflowError, msgspec.MsgspecError, RecursionError):
        raise UsageError("it is no list of whole numbers") from None
    return found


def _too_large() -> CallError:
    text = f"the body is larger than {BODY_BYTES_MAX} bytes; name a token file for a longer prompt"
    return CallError(413, "size", text)
