"""The examples in docstrings, and whether what they name is there.

An example is a block of ``>>>`` lines, or an indented block that is Python and calls something. Not
all can run: some need an engine, or a second machine. Of every one each name, attribute, call and
keyword can be looked up in the real objects all the same, as far as their types are known: classes
say what they return, and what an example begins with is given to it.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prose import docstrings

__all__ = ["ANY", "Example", "Of", "examples", "wrong_names"]

_DOING = (ast.Call, ast.Assign, ast.Import, ast.ImportFrom, ast.With, ast.AsyncWith, ast.ClassDef)


@dataclass(frozen=True)
class Example:
    """One example.

    Attributes:
        line: Of the file, where it begins.
        source: Its code, without the indentation.
    """

    line: int
    source: str

    @property
    def is_session(self) -> bool:
        """Whether it has ``>>>``, and says what comes out."""
        return ">>>" in self.source


@dataclass(frozen=True)
class Of:
    """A value that is not known, of a class that is."""

    kind: Any


ANY = Of(None)  # of a class that is not known


def examples(text: str) -> Iterator[Example]:
    """Yield the examples in the docstrings of a module."""
    for line, docstring in docstrings(text):
        for offset, block in _blocks(docstring):
            if ">>>" in block or _does_something(block):
                yield Example(line + offset, block)


def _blocks(docstring: str) -> Iterator[tuple[int, str]]:
    """What is indented more than the docstring and stands behind an empty line."""
    lines = docstring.split("\n")
    indents = [len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()]
    deep = min(indents, default=0) + 4
    first, block = 0, list[str]()
    for number, line in enumerate([*lines, "."]):
        inside = number > 0 and line.startswith(" " * deep)
        if block and line.strip() and not inside:
            yield first, "\n".join(block).rstrip() + "\n"
            block = []
        elif block and not line.strip():
            block.append("")
        if inside and (block or not lines[number - 1].strip()):
            first = first if block else number
            block.append(line[deep:])


def _does_something(block: str) -> bool:
    try:
        tree = ast.parse(_awaited(block))
    except SyntaxError:
        return False
    return any(isinstance(node, _DOING) for node in ast.walk(tree))


def _awaited(block: str) -> str:
    """The block as it may be parsed: with ``await`` it is the body of a function."""
    if not re.search(r"\b(await|async)\b", block):
        return block
    return "async def example():\n" + re.sub("^", "    ", block, flags=re.MULTILINE)


def wrong_names(example: Example, known: Mapping[str, Any]) -> list[str]:
    """What the example names and `known` does not have.

    Args:
        example: No session: these run.
        known: Objects by name; values of a class are `Of` that class.
    """
    reader = _Reader(dict(known))
    reader.read(ast.parse(_awaited(example.source)).body)
    return reader.wrong


@dataclass
class _Reader:
    """Goes through statements and knows what each name stands for."""

    names: dict[str, Any]
    wrong: list[str] = field(default_factory=list)

    def read(self, body: list[ast.stmt]) -> None:
        """Statements, one after the other."""
        for node in body:
            self._statement(node)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    self.names[alias.asname or alias.name.split(".")[0]] = ANY
            case ast.ImportFrom(names=names):
                self.names.update({alias.asname or alias.name: ANY for alias in names})
            case ast.Assign(targets=targets, value=value):
                found = self.value(value)
                for target in targets:
                    self._bind(target, found)
            case ast.AnnAssign(target=target, annotation=annotation):
                self.value(annotation)
                self._bind(target, ANY)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                for item in items:
                    entered = _entered(self.value(item.context_expr))
                    if item.optional_vars is not None:
                        self._bind(item.optional_vars, entered)
                self.read(body)
            case ast.For(target=target, iter=iterated, body=body):
                self.value(iterated)
                self._bind(target, ANY)
                self.read(body)
            case ast.FunctionDef(name=name, body=body) | ast.AsyncFunctionDef(name=name, body=body):
                inner = _Reader(
                    {
                        **self.names,
                        name: ANY,
                        **{one.arg: ANY for one in ast.walk(node.args) if isinstance(one, ast.arg)},
                    },
                    self.wrong,
                )
                inner.read(body)
                self.names |= inner.names if name == "example" else {name: ANY}
            case ast.ClassDef(name=name, bases=bases, body=body):
                for base in bases:
                    self._override(self.value(base), body)
                self.names[name] = ANY
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.value(child)

    def _override(self, base: Any, body: list[ast.stmt]) -> None:
        """The methods of a class that completes ours are those that the base has."""
        for method in body:
            if isinstance(method, ast.FunctionDef) and inspect.isclass(base):
                theirs = getattr(base, method.name, None)
                if theirs is None:
                    self.wrong.append(f"{base.__name__}.{method.name}")
                elif [one.arg for one in method.args.args] != list(
                    inspect.signature(theirs).parameters
                ):
                    self.wrong.append(f"parameters of {base.__name__}.{method.name}")

    def _bind(self, target: ast.expr, found: Any) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = found
        elif isinstance(target, ast.Tuple):
            for one in target.elts:
                self._bind(one, ANY)
        else:
            self.value(target)

    def value(self, node: ast.expr) -> Any:
        """What an expression stands for."""
        match node:
            case ast.Name(id=name):
                if name not in self.names:
                    self.wrong.append(name)
                return self.names.get(name, ANY)
            case ast.Attribute(value=owner, attr=name):
                return self._attribute(self.value(owner), name, ast.unparse(node))
            case ast.Call(func=called, args=args, keywords=keywords):
                function = self.value(called)
                for one in args:
                    self.value(one)
                for keyword in keywords:
                    self.value(keyword.value)
                return self._call(function, node)
            case ast.Await(value=inner):
                return self.value(inner)
            case ast.Lambda(args=arguments, body=body):
                own = {one.arg: ANY for one in ast.walk(arguments) if isinstance(one, ast.arg)}
                _Reader({**self.names, **own}, self.wrong).value(body)
            case (
                ast.ListComp(generators=generators, elt=elt)
                | ast.GeneratorExp(generators=generators, elt=elt)
            ):
                within = _Reader(dict(self.names), self.wrong)
                for each in generators:
                    within.value(each.iter)
                    within._bind(each.target, ANY)
                within.value(elt)
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.value(child)
        return ANY

    def _attribute(self, owner: Any, name: str, said: str) -> Any:
        if not isinstance(owner, Of):
            if not hasattr(owner, name):
                self.wrong.append(said)
            return getattr(owner, name, ANY)
        if owner.kind is None or not inspect.isclass(owner.kind):
            return ANY
        if name in _annotated(owner.kind):
            return _of(_hints(owner.kind).get(name), owner.kind)
        found = inspect.getattr_static(owner.kind, name, None)
        if isinstance(found, property):
            return _of(_hints(found.fget).get("return"), owner.kind)
        if found is not None:
            return _Method(owner.kind, getattr(owner.kind, name))
        if not _sets(owner.kind, name) and not hasattr(owner.kind, "__getattr__"):
            self.wrong.append(said)
        return ANY

    def _call(self, function: Any, node: ast.Call) -> Any:
        if isinstance(function, Of):
            return ANY
        owner, target = None, function
        if isinstance(function, _Method):
            owner, target = function.owner, function.function
        self._check_arguments(target, node, bound=owner is None or inspect.ismethod(target))
        if inspect.isclass(target):
            return Of(target)
        hints = _hints(inspect.unwrap(target))
        is_context = hasattr(target, "__wrapped__") and inspect.isgeneratorfunction(
            inspect.unwrap(target)
        )
        whose: Any = target.__self__ if owner is None and inspect.ismethod(target) else owner
        made = _of(hints.get("return"), whose, inner=is_context)
        return _Entered(made) if is_context else made

    def _check_arguments(self, target: Any, node: ast.Call, *, bound: bool) -> None:
        stars = any(isinstance(one, ast.Starred) for one in node.args)
        dots = any(isinstance(one, ast.Constant) and one.value is ... for one in node.args)
        if stars or dots or any(keyword.arg is None for keyword in node.keywords):
            return
        try:
            signature = inspect.signature(target)
        except (TypeError, ValueError):  # of C: it does not say
            return
        given = [*([] if bound else [ANY]), *node.args]
        try:
            signature.bind(*given, **{str(keyword.arg): ANY for keyword in node.keywords})
        except TypeError as error:
            self.wrong.append(f"{ast.unparse(node.func)}(): {error}")


@dataclass(frozen=True)
class _Method:
    owner: type
    function: Any


@dataclass(frozen=True)
class _Entered(Of):
    """What a function with `contextlib.contextmanager` returns; `kind`: what ``with`` gives."""

    kind: Any


def _entered(found: Any) -> Any:
    """What ``with`` gives of a value."""
    if isinstance(found, _Entered):
        return found.kind
    if isinstance(found, Of) and inspect.isclass(found.kind):
        enter = getattr(found.kind, "__enter__", None) or getattr(found.kind, "__aenter__", None)
        if enter is not None:
            return _of(_hints(enter).get("return"), found.kind)
    return ANY


def _of(hint: Any, owner: Any, *, inner: bool = False) -> Any:
    """A value of the type that an annotation says."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hints = [one for one in typing.get_args(hint) if one is not type(None)]
        hint = hints[0] if len(hints) == 1 else None
    if inner:
        hint = next(iter(typing.get_args(hint)), None)
    if hint is typing.Self:
        return Of(owner)
    return Of(hint) if inspect.isclass(hint) and hint.__module__.startswith("kvferry") else ANY


def _hints(of: Any) -> dict[str, Any]:
    with contextlib.suppress(Exception):  # a type that is imported for checkers alone
        return typing.get_type_hints(of)
    return {}


def _annotated(kind: type) -> set[str]:
    return {name for one in kind.__mro__ for name in vars(one).get("__annotations__", {})}


def _sets(kind: type, name: str) -> bool:
    """Whether a method of the class sets this attribute."""
    for one in kind.__mro__:
        with contextlib.suppress(OSError, TypeError):
            if re.search(rf"\bself\.{name}\b", inspect.getsource(one)):
                return True
    return False
