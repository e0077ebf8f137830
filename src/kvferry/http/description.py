"""Routes as an OpenAPI document, and as a page without outside parts."""

from __future__ import annotations

import html
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvferry import __version__

__all__ = ["Description", "PathMethod"]

Schema = dict[str, Any]

_REF = "#/components/schemas/"
_TEXT: Schema = {"type": "string"}
_REFUSED: Schema = {
    "type": "object",
    "properties": {"error": {"type": "object", "properties": {"code": _TEXT, "text": _TEXT}}},
}
_TABLES = {
    "format": {**_TEXT, "description": '"csv": one table alone.'},
    "table": {**_TEXT, "description": "Which one, by its name; default: the first."},
}


@dataclass(frozen=True)
class PathMethod:
    """A method of a path.

    Attributes:
        path, method: Where.
        text: What it does.
        body: Of what kind its body is, or its query; None: it has none.
        answer: Of what kind its answer is.
        media: Of the answer.
        tables: It may also be had as a table.
    """

    path: str
    method: str
    text: str
    body: type[msgspec.Struct] | None
    answer: Any
    media: str = "application/json"
    tables: bool = False


@dataclass(frozen=True)
class Description:
    """What an application answers.

    Attributes:
        title: For the head of the page.
        text: What it is for.
        open_paths: They need no token.
        errors: Status codes, with what they mean here.
        operations: All of them.
    """

    title: str
    text: str
    open_paths: Sequence[str]
    errors: Mapping[str, str]
    operations: list[PathMethod] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """The document, version 3.1."""
        schemas, components = self._schemas()
        paths: dict[str, Any] = {}
        for one, (body, answer) in zip(self.operations, schemas, strict=True):
            resolved = None if body is None else _resolved(body, components)
            paths.setdefault(one.path, {})[one.method] = self._operation(
                one, body, resolved, answer
            )
        answers = {
            code: {"description": text, "content": {"application/json": {"schema": _REFUSED}}}
            for code, text in self.errors.items()
        }
        return {
            "openapi": "3.1.0",
            "info": {"title": self.title, "version": __version__, "description": self.text},
            "security": [{}, {"token": []}],
            "paths": paths,
            "components": {
                "schemas": components,
                "responses": answers,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }

    def page(self) -> str:
        """The document as HTML."""
        schemas, components = self._schemas()
        parts = []
        for one, (body, answer) in zip(self.operations, schemas, strict=True):
            parts.append(f"<h2><code>{one.method.upper()} {html.escape(one.path)}</code></h2>")
            parts.append(f"<p>{html.escape(one.text)}</p>")
            what = "Query" if one.method == "get" else "Body"
            for name, schema in ((what, body), ("Answer", answer)):
                if schema is None or (name == "Body" and "{" in one.path):
                    continue
                fields = _resolved(schema, components)
                if fields.get("properties"):
                    needed = () if name == "Answer" else fields.get("required", ())
                    parts.append(f"<h3>{name}</h3>{_table(fields['properties'], needed)}")
        errors = "".join(f"<tr><td>{c}<td>{html.escape(t)}" for c, t in self.errors.items())
        return _PAGE.format(
            title=html.escape(self.title),
            version=html.escape(__version__),
            parts="\n".join(parts),
            errors=errors,
        )

    def _schemas(self) -> tuple[list[tuple[Schema | None, Schema]], dict[str, Schema]]:
        """The schemas of body and answer of each operation, and what they refer to."""
        kinds = [kind for one in self.operations for kind in (one.body or int, one.answer)]
        found, components = msgspec.json.schema_components(
            kinds, schema_hook=_hook, ref_template=_REF + "{name}"
        )
        pairs = zip(self.operations, found[::2], found[1::2], strict=True)
        return [(body if one.body else None, answer) for one, body, answer in pairs], components

    def _operation(
        self, one: PathMethod, body: Schema | None, fields: Schema | None, answer: Schema
    ) -> dict[str, Any]:
        name = f"{one.method}_{one.path.strip('/').replace('/', '_').replace('.', '_')}"
        codes = tuple(self.errors) if one.path.startswith("/v1/") else ("401",)
        if one.path in self.open_paths:
            codes = ("503",)
        found: dict[str, Any] = {
            "summary": one.text,
            "operationId": name.replace("-", "_").replace("{", "by_").replace("}", ""),
            "responses": {
                "200": {"description": "Done.", "content": {one.media: {"schema": answer}}},
                **{code: {"$ref": f"#/components/responses/{code}"} for code in codes},
            },
        }
        properties = {} if fields is None else fields["properties"]
        in_path = [name for name in properties if f"{{{name}}}" in one.path]
        parameters = [_parameter(name, "path", _TEXT) for name in in_path]
        if one.method == "get":
            queried = {**properties, **(_TABLES if one.tables else {})}
            parameters += [
                _parameter(name, "query", schema)
                for name, schema in queried.items()
                if name not in in_path
            ]
        elif fields is not None and not in_path:
            content = {"application/json": {"schema": body}}
            found["requestBody"] = {"required": "required" in fields, "content": content}
        if parameters:
            found["parameters"] = parameters
        if one.path in self.open_paths:
            found["security"] = []
        return found


def _hook(kind: type) -> Schema:
    if kind is array:
        return {"type": "array", "items": {"type": "integer"}}
    raise NotImplementedError


def _resolved(schema: Schema, components: Mapping[str, Schema]) -> Schema:
    return components[schema["$ref"].removeprefix(_REF)] if "$ref" in schema else schema


def _parameter(name: str, where: str, schema: Schema) -> dict[str, Any]:
    found = {"name": name, "in": where, "required": where == "path", "schema": schema}
    return found if where == "path" else {**found, "explode": False}  # commas between items


def _table(properties: Mapping[str, Schema], needed: Collection[str]) -> str:
    rows = []
    for name, one in properties.items():
        mark = " (needed)" if name in needed else ""
        text = html.escape(one.get("description", ""))
        rows.append(f"<tr><td><code>{html.escape(name)}</code>{mark}<td>{_kind(one)}<td>{text}")
    return f"<table>{''.join(rows)}</table>"


def _kind(schema: Schema) -> str:
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"] if each.get("type") != "null")
    if "$ref" in schema:
        return "object"
    kind = str(schema.get("type", ""))
    return f"list of {_kind(schema.get('items') or {})}" if kind == "array" else kind


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
