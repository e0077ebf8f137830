"""OpenAPI documents from a table of routes, and a page of one without outside parts."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kvferry import __version__

__all__ = [
    "FLAG",
    "NUMBER",
    "TEXT",
    "WHOLE",
    "Api",
    "Operation",
    "Schema",
    "listed",
    "object_of",
    "said",
]

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
_REFUSED: Schema = {
    "type": "object",
    "properties": {"error": {"type": "object", "properties": {"code": TEXT, "text": TEXT}}},
}


def object_of(needed: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    """An object with these fields."""
    found: Schema = {"type": "object", "properties": properties}
    return {**found, "required": list(needed)} if needed else found


def said(schema: Schema, text: str) -> Schema:
    """A schema, and what it means."""
    return {**schema, "description": text}


def listed(items: Schema) -> Schema:
    """A list of these."""
    return {"type": "array", "items": items}


class Operation(NamedTuple):
    """A path, a method, what it does, the body, and what comes back."""

    path: str
    method: str
    text: str
    body: Schema | None
    answer: Schema
    media: str = "application/json"
    query: Mapping[str, Schema] = {}


class Api:
    """All that an application answers.

    Args:
        title: For the head of the page.
        text: What it is for.
        operations: Its routes.
        errors: Status codes, with what they mean here.
        health: Paths that need no token.
    """

    def __init__(
        self,
        title: str,
        text: str,
        operations: Sequence[Operation],
        errors: Mapping[str, str],
        health: Sequence[str],
    ) -> None:
        self.operations = tuple(operations)
        self._title, self._text = title, text
        self._errors, self._health = errors, health

    def document(self) -> dict[str, Any]:
        """The document, version 3.1."""
        paths: dict[str, Any] = {}
        for one in self.operations:
            paths.setdefault(one.path, {})[one.method] = self._operation(one)
        answers = {
            code: {"description": text, "content": {"application/json": {"schema": _REFUSED}}}
            for code, text in self._errors.items()
        }
        return {
            "openapi": "3.1.0",
            "info": {"title": self._title, "version": __version__, "description": self._text},
            "security": [{}, {"token": []}],
            "paths": paths,
            "components": {
                "responses": answers,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }

    def _operation(self, one: Operation) -> dict[str, Any]:
        name = f"{one.method}_{one.path.strip('/').replace('/', '_').replace('.', '_')}"
        found: dict[str, Any] = {
            "summary": one.text,
            "operationId": name.replace("-", "_").replace("{", "by_").replace("}", ""),
            "responses": {
                "200": {"description": "Done.", "content": {one.media: {"schema": one.answer}}},
                **{c: {"$ref": f"#/components/responses/{c}"} for c in self._codes(one.path)},
            },
        }
        if one.body is not None:
            content = {"application/json": {"schema": one.body}}
            found["requestBody"] = {"required": "required" in one.body, "content": content}
        parameters = [
            {"name": name, "in": "query", "required": False, "schema": schema}
            for name, schema in one.query.items()
        ]
        if "{id}" in one.path:
            parameters.append({"name": "id", "in": "path", "required": True, "schema": TEXT})
        if parameters:
            found["parameters"] = parameters
        if one.path in self._health:
            found["security"] = []
        return found

    def _codes(self, path: str) -> tuple[str, ...]:
        if path in self._health:
            return ("503",)
        return tuple(self._errors) if path.startswith("/v1/") else ("401",)

    def page(self) -> str:
        """The document as HTML."""
        parts = []
        for one in self.operations:
            parts.append(f"<h2><code>{one.method.upper()} {html.escape(one.path)}</code></h2>")
            parts.append(f"<p>{html.escape(one.text)}</p>")
            for name, schema in (("Body", one.body), ("Answer", one.answer)):
                if schema is not None and schema.get("properties"):
                    parts.append(f"<h3>{name}</h3>{_table(schema)}")
        errors = "".join(f"<tr><td>{c}<td>{html.escape(t)}" for c, t in self._errors.items())
        return _PAGE.format(
            title=html.escape(self._title),
            version=html.escape(__version__),
            parts="\n".join(parts),
            errors=errors,
        )


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
<html lang="en"><meta charset="utf-8"><title>{title} {version}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 50em; margin: 2em auto; padding: 0 1em; }}
h2 {{ margin-top: 2em; border-top: 1px solid #8884; padding-top: 1em; }}
table {{ border-collapse: collapse; }} td {{ padding: .2em 1.2em .2em 0; vertical-align: top; }}
</style>
<h1>{title} {version}</h1>
<p>Bodies and answers are JSON. Where the server has a token, everything but health wants the header
<code>Authorization: Bearer TOKEN</code>. For programs: <a href="openapi.json">openapi.json</a>.</p>
{parts}
<h2>Errors</h2>
<p>Every error is <code>{{"error": {{"code": "...", "text": "..."}}}}</code>.</p>
<table>{errors}</table>
</html>
"""
