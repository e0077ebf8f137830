"""The views with forms: explain, and jobs and pins with what can be done."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from kvferry.base.errors import UsageError
from kvferry.http.bodies import ById, converted
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.http import views
from kvferry.sharing.controller.http.actions import Actions, JobBody, PinBody
from kvferry.sharing.controller.http.answers import ChunkRow, IdentityRow, PinRow
from kvferry.sharing.controller.http.usage import WindowQuery
from kvferry.sharing.controller.jobs import JobRow
from kvferry.sharing.controller.page import figures
from kvferry.sharing.controller.page.elements import Column, Html, Query, chosen, el, joined, table

__all__ = ["ActionViews", "prompt_of"]

_HASH = re.compile("[0-9a-fA-F]{32,}")
_BETWEEN = str.maketrans('[],"', "    ")
_ACTIONS = {
    "prefetch": "prefetch to the goal",
    "copy": "copy to the goal",
    "move": "move to the goal",
    "delete": "delete these chunks",
    "clear": "clear all chunks",
    "pin": "pin these chunks",
    "unpin": "unpin these chunks",
}


def prompt_of(text: str) -> dict[str, Any]:
    """Tokens, hashes or a text that somebody has pasted, as a body names them."""
    words = text.translate(_BETWEEN).split()
    if not words:
        return {}
    if all(_HASH.fullmatch(one) for one in words):
        return {"hashes": words}
    if all(one.isdecimal() and len(one) <= 10 for one in words):
        return {"tokens": array("q", map(int, words))}
    return {"text": text}


def _prompt_field() -> Html:
    return el(
        "label",
        "Prompt",
        el(
            "textarea",
            name="prompt",
            rows=3,
            placeholder="a text, tokens (1, 2, 3 ...) or hashes of chunks (32 hex digits each)",
            spellcheck="false",
        ),
        class_="wide",
    )


def _text(label: str, name: str, hint: str = "") -> Html:
    field = el("input", name=name, placeholder=hint, autocomplete="off")
    return el("label", label, field)


class ActionViews:
    """Views of jobs, pins and prompts.

    Args:
        actions: Does what is asked for.
    """

    def __init__(self, actions: Actions) -> None:
        self._actions = actions

    # --- Explain ---

    def explain_form(self) -> Html:
        """Where a prompt is pasted, and what is said of it."""
        return joined(
            el(
                "form",
                _prompt_field(),
                _text("Model or identity", "identity", "all of them"),
                _text("Salt of the tenant", "salt", "hexadecimal, if there is one"),
                el("button", "Explain", type="submit", class_="main"),
                hx_post="page/explain",
                hx_target="#explained",
                hx_swap="innerHTML",
                class_="form",
            ),
            el("div", id="explained", aria_live="polite"),
        )

    def explain(self, controller: Controller, query: Query) -> Html:
        """Below the form: whose chunks can be asked about."""
        rows = views.cluster(controller, WindowQuery())["identities"]
        return joined(
            el("h2", "Models", el("small", "of living processes, now")),
            table(_MODELS, rows, "No instance is registered: nobody holds anything."),
        )

    def explained(self, controller: Controller, form: Mapping[str, str]) -> Html:
        """For each chunk of a prompt where it is, or why nobody can give it."""
        body = prompt_of(form.get("prompt", ""))
        if not body:
            raise UsageError("paste a prompt: a text, its tokens, or the hashes of its chunks")
        body |= {name: form[name] for name in ("identity", "salt") if form.get(name)}
        found = views.explain(controller, converted(body, views.LookupBody))
        shown = {**body, "tokens": list(body["tokens"])} if "tokens" in body else body
        rows = found["chunks"]
        given = sum(not one["why"] for one in rows)
        best = found["instances"][0] if found["instances"] else None
        text = f"{given} of {len(rows)} chunks can be given."
        if best is not None:
            text += f" The longest prefix: {best['instance']}, {best['tokens']} tokens."
        return joined(
            el("p", text, class_="said"),
            _curl("/v1/explain", shown),
            table(_CHUNKS, rows, found.get("why") or "The prompt has no full chunk.", (), _missing),
        )

    # --- Jobs and pins ---

    def jobs_form(self) -> Html:
        """Where a job or a pin is begun."""
        options = [el("option", text, value=name) for name, text in _ACTIONS.items()]
        return joined(
            el(
                "form",
                el("label", "Action", el("select", *options, name="action")),
                _text("Instance", "instance", "its name"),
                _text("Goal", "to", "of prefetch, copy and move"),
                _text("Model or identity", "identity", "all of them"),
                _prompt_field(),
                el("button", "Start", type="submit", class_="main"),
                hx_post="page/jobs",
                hx_target="#said",
                hx_swap="innerHTML",
                class_="form acting",
            ),
            el("p", "Read only: switch actions on to start a job.", class_="quiet reading"),
            el("div", id="said", aria_live="polite"),
        )

    def jobs(self, controller: Controller, query: Query) -> Html:
        """Jobs, and pins with what undoes them."""
        jobs = [
            one
            for one in self._actions.jobs(controller)["jobs"]
            if chosen(query, one["action"], one["state"], one["text"], *one["waits_for"])
        ]
        pins = [
            one
            for one in self._actions.pins(controller)["pins"]
            if chosen(query, one["instance"], one["state"])
        ]
        return joined(
            el("h2", "Pins", el("small", "that were set here, since the controller began")),
            table(_PINS, pins, "Nothing is pinned."),
            el("h2", "Jobs", el("small", "the last 1000, the youngest first")),
            table(_JOBS, jobs, "No job was begun."),
        )

    def start(self, controller: Controller, form: Mapping[str, str]) -> Html:
        """Begin a job or a pin; how it began."""
        body = prompt_of(form.get("prompt", ""))
        body |= {name: form[name] for name in ("instance", "to", "identity") if form.get(name)}
        action = form.get("action", "")
        found: JobRow | PinRow
        if action == "pin":
            body.pop("to", None)
            found = self._actions.pin(controller, converted(body, PinBody)).then()
            path = "/v1/pins"
        else:
            body["action"] = action
            found = self._actions.start(controller, converted(body, JobBody)).then()
            path = "/v1/jobs"
        shown = {**body, "tokens": list(body["tokens"])} if "tokens" in body else body
        text = f"{action} {found['id']}: {found['state']}"
        return joined(el("p", text, class_="said"), _curl(path, shown))

    def unpin(self, controller: Controller, form: Mapping[str, str]) -> Html:
        """Undo a pin; how that began."""
        found = self._actions.unpin(controller, converted(form, ById))
        return el("p", f"unpin {found['id']}: {found['state']}", class_="said")


def _names(names: Sequence[str]) -> Html | str:
    text = ", ".join(sorted(names)) or "nobody"
    return el("span", text, class_="long", title=text)


def _missing(one: ChunkRow) -> str:
    return "missing" if one["why"] else ""


def _unpin(one: PinRow) -> Html:
    return el(
        "button",
        "Unpin",
        type="button",
        class_="acting",
        id=f"unpin-{one['id']}",
        hx_delete=f"page/pins/{one['id']}",
        hx_target="#said",
        hx_swap="innerHTML",
    )


_MODELS: Sequence[Column[IdentityRow]] = (
    Column("Model", lambda one: el("b", one["model"])),
    Column("Chunk", lambda one: one["chunk_size"], "tokens", True),
    Column("Processes", lambda one: one["instances"], "now", True),
    Column("Identity", lambda one: el("code", one["digest"])),
)
_CHUNKS: Sequence[Column[ChunkRow]] = (
    Column("Chunk", lambda one: one["chunk"], "from 0", True),
    Column("Hash", lambda one: el("code", one["hash"][:16])),
    Column("What is with it", lambda one: one["why"] or "it can be given", "now"),
    Column("Held by", lambda one: _names(one["holders"]), "now"),
    Column("With all before it", lambda one: _names(one["prefix_of"]), "now"),
)
_PINS: Sequence[Column[PinRow]] = (
    Column("Instance", lambda one: el("b", one["instance"])),
    Column("State", lambda one: one["state"]),
    Column("Chunks", lambda one: one["chunks"], "", True),
    Column("Set", lambda one: figures.ago(one["since"]) if one["since"] else "", "", True),
    Column("Said", lambda one: one["text"] or ""),
    Column("", _unpin),
)
_JOBS: Sequence[Column[JobRow]] = (
    Column("Action", lambda one: el("b", one["action"])),
    Column("State", lambda one: el("span", el("i", class_=f"job-{one['state']}"), one["state"])),
    Column("Chunks", lambda one: one["chunks"], "", True),
    Column("Began", lambda one: figures.ago(one["since"]), "", True),
    Column("Waits for", lambda one: ", ".join(one["waits_for"]) or "nobody"),
    Column("Said", lambda one: one["text"]),
    Column("Id", lambda one: el("code", one["id"])),
)


def _curl(path: str, body: Mapping[str, Any]) -> Html:
    return el(
        "button",
        "Copy as curl",
        type="button",
        class_="curl",
        data_path=path.removeprefix("/"),
        data_body=json.dumps(body),
    )
