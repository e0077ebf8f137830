"""The description of the HTTP side of a cache server."""

from __future__ import annotations

from kvferry.http.openapi import (
    FLAG,
    TEXT,
    WHOLE,
    Api,
    Operation,
    Schema,
    object_of,
    said,
)

__all__ = ["API"]

_IDENTITY = said(TEXT, "Digest in hex, a beginning of it, or the model; default: the only one.")
_SALT = said(TEXT, "Of the tenant, in hex.")
_TOKENS = said({"type": "array", "items": WHOLE}, "Of the prompt, 0 to 2^32 - 1.")
_VERSION = said(TEXT, "Of engines that were given this name of their weights.")
_OF_ENGINES = {"identity": _IDENTITY, "salt": _SALT, "weights_version": _VERSION}
_PROMPT = object_of(("tokens",), tokens=_TOKENS, **_OF_ENGINES)
_WHOSE = {"identity": TEXT, "model": TEXT}
_TIERS: Schema = {"type": "object", "additionalProperties": WHOLE}
_LOOKUP = object_of(
    **_WHOSE,
    prompt_tokens=WHOLE,
    tokens=said(WHOLE, "Of the prefix that some tier has."),
    tiers=said(_TIERS, 'Tokens that each tier gives; "l1" is memory.'),
    arriving_tokens=said(WHOLE, "Right behind those in memory, on their way."),
)
_EXPLAIN = object_of(
    **_WHOSE,
    tokens=WHOLE,
    usable_tokens=WHOLE,
    places={"type": "array", "items": object_of(chunk=WHOLE, memory=TEXT, why=TEXT)},
    decision=object_of(),
    stores=object_of(),
    identities={"type": "array", "items": TEXT},
    text=said(TEXT, "The same, for people."),
)
_NAMES: Schema = {"type": "array", "items": TEXT}
_READY = object_of(ready=FLAG, degraded=said(_NAMES, "Stores that cannot be asked, if any."))
_PIN = object_of(
    **_WHOSE,
    id=said(TEXT, "null: nothing of the prompt could be had."),
    prompt_tokens=WHOLE,
    tokens=WHOLE,
    since=said({"type": "number"}, "Seconds since 1970."),
)
_FILE = object_of(file=TEXT, prompt_tokens=WHOLE, tokens=WHOLE, error=TEXT)
_JOB = object_of(
    **_WHOSE,
    id=TEXT,
    state=said(TEXT, '"waiting", "running", "done" or "stopped".'),
    files=WHOLE,
    finished=WHOLE,
    tokens=WHOLE,
    results={"type": "array", "items": _FILE},
)
_PREFETCH = object_of(
    ("files",),
    files=said(
        {"type": "array", "items": TEXT},
        "Absolute paths on the host of the server: JSON lists, or .npy of int32, uint32, int64.",
    ),
    identity=_IDENTITY,
    salt=_SALT,
    wait=said(FLAG, "Answer when all are done, or after timeout_s."),
    timeout_s=said({"type": "number"}, "Up to 600; default 60."),
)
_UNPIN = object_of(id=TEXT, tokens=_TOKENS, **_OF_ENGINES)
_CLEAR = object_of(
    identity=_IDENTITY,
    stores=said(FLAG, "For all engines on its stores; default false: in memory alone."),
)

_OPERATIONS = (
    Operation(
        "/healthz",
        "get",
        "Whether the server turns; 503 if not. Needs no token.",
        None,
        object_of(),
    ),
    Operation(
        "/readyz",
        "get",
        "Whether it may be asked; 503 and why if not. Needs no token.",
        None,
        _READY,
    ),
    Operation("/metrics", "get", "Metrics, as Prometheus reads them.", None, TEXT, "text/plain"),
    Operation(
        "/v1/status", "get", "Pool, identities, sessions, requests, stores.", None, object_of()
    ),
    Operation(
        "/v1/config", "get", "The settings as they take effect, without secrets.", None, object_of()
    ),
    Operation("/v1/lookup", "post", "How much of a prompt each tier has.", _PROMPT, _LOOKUP),
    Operation("/v1/explain", "post", "Where each chunk is, or why it is not.", _PROMPT, _EXPLAIN),
    Operation(
        "/v1/pins", "get", "Pins that were set here.", None, object_of(pins={"type": "array"})
    ),
    Operation("/v1/pins", "post", "Load a prompt's prefix and keep it in memory.", _PROMPT, _PIN),
    Operation(
        "/v1/pins", "delete", "Undo a pin, by id or tokens.", _UNPIN, object_of(tokens=WHOLE)
    ),
    Operation("/v1/pins/{id}", "delete", "Undo a pin.", None, object_of(tokens=WHOLE)),
    Operation(
        "/v1/clear", "post", "Forget all chunks of an identity.", _CLEAR, object_of(chunks=WHOLE)
    ),
    Operation(
        "/v1/prefetch", "get", "The last prefetches.", None, object_of(jobs={"type": "array"})
    ),
    Operation("/v1/prefetch", "post", "Load prompts of token files into memory.", _PREFETCH, _JOB),
    Operation("/v1/prefetch/{id}", "get", "How far a prefetch is.", None, _JOB),
    Operation("/openapi.json", "get", "This description.", None, object_of()),
    Operation("/docs", "get", "This description, as a page.", None, TEXT, "text/html"),
)
_ERRORS = {
    "400": "The request cannot be right.",
    "401": "The token is missing, or another one.",
    "403": "A web page of another host asked.",
    "404": "No such path, identity, pin or prefetch.",
    "408": "The body did not come in time.",
    "413": "The body is larger than 4 MiB.",
    "429": "Other long bodies are being read; it may be sent again in a second.",
    "503": "The server starts, ends, or is busy; or a store is away.",
    "504": "A store did not answer in time.",
}


API = Api(
    "kvferry server",
    "Health, metrics and control of a cache server.",
    _OPERATIONS,
    _ERRORS,
    ("/healthz", "/readyz"),
)
