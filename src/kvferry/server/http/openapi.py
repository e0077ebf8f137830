"""The description of the HTTP side: an OpenAPI document, and a page of it without outside parts."""

from __future__ import annotations

import html
from functools import cache
from typing import Any

from kvferry import __version__

__all__ = ["document", "page"]

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_FLAG: Schema = {"type": "boolean"}


def _object(needed: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    found: Schema = {"type": "object", "properties": properties}
    return {**found, "required": list(needed)} if needed else found


def _said(schema: Schema, text: str) -> Schema:
    return {**schema, "description": text}


_IDENTITY = _said(_TEXT, "Digest in hex, a beginning of it, or the model; default: the only one.")
_SALT = _said(_TEXT, "Of the tenant, in hex.")
_TOKENS = _said({"type": "array", "items": _WHOLE}, "Of the prompt, 0 to 2^32 - 1.")
_VERSION = _said(_TEXT, "Of engines that were given this name of their weights.")
_OF_ENGINES = {"identity": _IDENTITY, "salt": _SALT, "weights_version": _VERSION}
_PROMPT = _object(("tokens",), tokens=_TOKENS, **_OF_ENGINES)
_WHOSE = {"identity": _TEXT, "model": _TEXT}
_TIERS: Schema = {"type": "object", "additionalProperties": _WHOLE}
_LOOKUP = _object(
    **_WHOSE,
    prompt_tokens=_WHOLE,
    tokens=_said(_WHOLE, "Of the prefix that some tier has."),
    tiers=_said(_TIERS, 'Tokens that each tier gives; "l1" is memory.'),
    arriving_tokens=_said(_WHOLE, "Right behind those in memory, on their way."),
)
_EXPLAIN = _object(
    **_WHOSE,
    tokens=_WHOLE,
    usable_tokens=_WHOLE,
    places={"type": "array", "items": _object(chunk=_WHOLE, memory=_TEXT, why=_TEXT)},
    decision=_object(),
    stores=_object(),
    identities={"type": "array", "items": _TEXT},
    text=_said(_TEXT, "The same, for people."),
)
_NAMES: Schema = {"type": "array", "items": _TEXT}
_READY = _object(ready=_FLAG, degraded=_said(_NAMES, "Stores that cannot be asked, if any."))
_PIN = _object(
    **_WHOSE,
    id=_said(_TEXT, "null: nothing of the prompt could be had."),
    prompt_tokens=_WHOLE,
    tokens=_WHOLE,
    since=_said({"type": "number"}, "Seconds since 1970."),
)
_FILE = _object(file=_TEXT, prompt_tokens=_WHOLE, tokens=_WHOLE, error=_TEXT)
_JOB = _object(
    **_WHOSE,
    id=_TEXT,
    state=_said(_TEXT, '"waiting", "running", "done" or "stopped".'),
    files=_WHOLE,
    finished=_WHOLE,
    tokens=_WHOLE,
    results={"type": "array", "items": _FILE},
)
_PREFETCH = _object(
    ("files",),
    files=_said(
        {"type": "array", "items": _TEXT},
        "Absolute paths on the host of the server: JSON lists, or .npy of int32, uint32, int64.",
    ),
    identity=_IDENTITY,
    salt=_SALT,
    wait=_said(_FLAG, "Answer when all are done, or after timeout_s."),
    timeout_s=_said({"type": "number"}, "Up to 600; default 60."),
)
_UNPIN = _object(id=_TEXT, tokens=_TOKENS, **_OF_ENGINES)
_CLEAR = _object(
    identity=_IDENTITY,
    stores=_said(_FLAG, "For all engines on its stores; default false: in memory alone."),
)
_REFUSED = _object(error=_object(code=_TEXT, text=_TEXT))

# Path, method, what it does, body, and what comes back.
_ROUTES: tuple[tuple[str, str, str, Schema | None, Schema], ...] = (
    ("/healthz", "get", "Whether the server turns; 503 if not. Needs no token.", None, _object()),
    (
        "/readyz",
        "get",
        "Whether it may be asked; 503 and why if not. Needs no token.",
        None,
        _READY,
    ),
    ("/metrics", "get", "Metrics, as Prometheus reads them.", None, _TEXT),
    ("/v1/status", "get", "Pool, identities, sessions, requests, stores.", None, _object()),
    ("/v1/config", "get", "The settings as they take effect, without secrets.", None, _object()),
    ("/v1/lookup", "post", "How much of a prompt each tier has.", _PROMPT, _LOOKUP),
    ("/v1/explain", "post", "Where each chunk is, or why it is not.", _PROMPT, _EXPLAIN),
    ("/v1/pins", "get", "Pins that were set here.", None, _object(pins={"type": "array"})),
    ("/v1/pins", "post", "Load a prompt's prefix and keep it in memory.", _PROMPT, _PIN),
    ("/v1/pins", "delete", "Undo a pin, by id or tokens.", _UNPIN, _object(tokens=_WHOLE)),
    ("/v1/pins/{id}", "delete", "Undo a pin.", None, _object(tokens=_WHOLE)),
    ("/v1/clear", "post", "Forget all chunks of an identity.", _CLEAR, _object(chunks=_WHOLE)),
    ("/v1/prefetch", "get", "The last prefetches.", None, _object(jobs={"type": "array"})),
    ("/v1/prefetch", "post", "Load prompts of token files into memory.", _PREFETCH, _JOB),
    ("/v1/prefetch/{id}", "get", "How far a prefetch is.", None, _JOB),
    ("/openapi.json", "get", "This description.", None, _object()),
    ("/docs", "get", "This description, as a page.", None, _TEXT),
)
_MEDIA = {"/metrics": "text/plain", "/docs": "text/html"}
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


@cache
def document() -> dict[str, Any]:
    """The document, version 3.1."""
    paths: dict[str, Any] = {}
    for path, method, text, body, answer in _ROUTES:
        operation: dict[str, Any] = {
            "summary": text,
            "operationId": f"{method}_{path.strip('/').replace('/', '_').replace('.', '_')}",
            "responses": {
                "200": {
                    "description": "Done.",
                    "content": {_MEDIA.get(path, "application/json"): {"schema": answer}},
                },
                **{code: {"$ref": f"#/components/responses/{code}"} for code in _errors(path)},
            },
        }
        operation["operationId"] = operation["operationId"].replace("{", "by_").replace("}", "")
        if body is not None:
            content = {"application/json": {"schema": body}}
            operation["requestBody"] = {"required": "required" in body, "content": content}
        if "{id}" in path:
            named = {"name": "id", "in": "path", "required": True, "schema": _TEXT}
            operation["parameters"] = [named]
        if path in ("/healthz", "/readyz"):
            operation["security"] = []
        paths.setdefault(path, {})[method] = operation
    answers = {
        code: {"description": text, "content": {"application/json": {"schema": _REFUSED}}}
        for code, text in _ERRORS.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "kvferry server",
            "version": __version__,
            "description": "Health, metrics and control of a cache server.",
        },
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "responses": answers,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _errors(path: str) -> tuple[str, ...]:
    if path in ("/healthz", "/readyz"):
        return ("503",)
    return tuple(_ERRORS) if path.startswith("/v1/") else ("401",)


@cache
def page() -> str:
    """The document as HTML."""
    parts = []
    for path, method, text, body, answer in _ROUTES:
        parts.append(f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>")
        parts.append(f"<p>{html.escape(text)}</p>")
        for name, schema in (("Body", body), ("Answer", answer)):
            if schema is not None and schema.get("properties"):
                parts.append(f"<h3>{name}</h3>{_table(schema)}")
    errors = "".join(f"<tr><td>{code}<td>{html.escape(t)}" for code, t in _ERRORS.items())
    return _PAGE.format(version=html.escape(__version__), parts="\n".join(parts), errors=errors)


def _table(schema: Schema) -> str:
    rows = []
    for name, one in schema["properties"].items():
        needed = " (needed)" if name in schema.get("required", ()) else ""
        kind = one.get("type", "")
        if kind == "array" and "items" in one:
            kind = f"list of {one['items'].get('type', '')}"
        text = html.escape(one.get("description", ""))
        rows.append(f"<tr><td><code>{html.escape(name)}</code>{needed}<td>{kind}<td>{text}")
    return f"<table>{''.join(rows)}</table>"


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>kvferry server {version}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 50em; margin: 2em auto; padding: 0 1em; }}
h2 {{ margin-top: 2em; border-top: 1px solid #8884; padding-top: 1em; }}
table {{ border-collapse: collapse; }} td {{ padding: .2em 1.2em .2em 0; vertical-align: top; }}
</style>
<h1>kvferry server {version}</h1>
<p>Bodies and answers are JSON. Where the server has a token, everything but health wants the header
<code>Authorization: Bearer TOKEN</code>. For programs: <a href="openapi.json">openapi.json</a>.</p>
{parts}
<h2>Errors</h2>
<p>Every error is <code>{{"error": {{"code": "...", "text": "..."}}}}</code>.</p>
<table>{errors}</table>
</html>
"""
