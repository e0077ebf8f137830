"""tools/words.py: names that nothing has are found, in docstrings, comments and pages."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
import tidy
import words

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "src/kvferry/a.py"
TREE = {
    "src/kvferry/__init__.py": "",
    "src/kvferry/cache/__init__.py": "",
    "src/kvferry/cache/store.py": (
        "from foreign import Theirs\n"
        "class Base:\n    kept: int = 1\n    def __init__(self, salt): self._salt = salt\n"
        "class Store(Base):\n    def look_up(self): return self._found\n"
        "class Late(Exception): ...\n"
        "class Half(Theirs): ...\n"
    ),
    "src/kvferry/cache/settings.py": 'PORT = "--max-size"\nSAID = "the word notice in a text"\n',
    "native/net/gate.hpp": (
        "// A gate.\nclass Gate final : public Wall {\n  int open_max() const;\n  int shut_;\n};\n"
        "constexpr int kGates = 4;\nint Gate::built() {}\n"
    ),
    "native/net/wall.hpp": "// A wall.\nclass Wall {\n  int height();\n};\n",
}


def said(root: Path, path: str, text: str) -> list[str]:
    """What is found in a tree with one more file, without the words that are always said."""
    for name, inner in {**TREE, path: text}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(inner)
    where = words.nameless(root, [PurePosixPath(name) for name in {**TREE, path: text}])
    return [f"{file}:{line} {message.split()[-1]}" for file, line, message in where]


WRONG = {
    "a name": (PYTHON, '"""See `notice`."""', 1, "notice"),
    "in two backticks": (PYTHON, '"""A.\n\nSee ``notice``."""', 3, "notice"),
    "of a function": (PYTHON, 'def f():\n    """See `noticed()`."""', 2, "noticed"),
    "in a comment": (PYTHON, "a = 1\n# One\n# or `notice`.", 3, "notice"),
    "in a span of two lines": (PYTHON, "# One `x +\n# notice` two.", 1, "notice"),
    "in a page": ("docs/a.md", "One.\n\nSee `notice`.", 3, "notice"),
    "in a C++ comment": ("native/net/a.hpp", "// See `notice`.", 1, "notice"),
    "a member": (PYTHON, '"""See `Store.look`."""', 1, "Store.look"),
    "a member without backticks": (PYTHON, '"""See Store.look()."""', 1, "Store.look"),
    "a class of a module": (PYTHON, '"""See `store.Base2`."""', 1, "store.Base2"),
    "a class that another module has": (PYTHON, '"""See `settings.Store`."""', 1, "settings.Store"),
    "a module": (PYTHON, '"""See `kvferry.cache.stores`."""', 1, "kvferry.cache.stores"),
    "of a module": (PYTHON, "# kvferry.cache.store.Stores", 1, "kvferry.cache.store.Stores"),
    "a path": (PYTHON, '"""See `cache/stores.py`."""', 1, "cache/stores.py"),
    "a path without backticks": (PYTHON, '"""See cache/stores.py."""', 1, "cache/stores.py"),
    "a file of another folder": (PYTHON, '"""See `settings.py`."""', 1, "settings.py"),
    "a folder": ("docs/a.md", "See native/nets.", 1, "native/nets"),
    "an option": ("docs/a.md", "See `--min-size`.", 1, "--min-size"),
    "an error": (PYTHON, '"""A.\n\nRaises:\n    Lateness: No.\n"""', 4, "Lateness"),
    "a parameter": (PYTHON, 'def f(b):\n    """A.\n\n    Args:\n        c: No.\n    """', 5, "c"),
    "a C++ member": ("native/net/a.hpp", "// See Gate::close_max.", 1, "Gate::close_max"),
    "a C++ function": ("native/net/a.hpp", "// See shut().", 1, "shut()"),
    "a C++ constant": ("native/net/a.hpp", "// See kDoors.", 1, "kDoors"),
    "a C++ name": ("native/net/a.hpp", "// At most doors_max of them.", 1, "doors_max"),
    "a C++ class": ("native/net/a.hpp", "// See OpenGate.", 1, "OpenGate"),
}


@pytest.mark.parametrize(("path", "text", "line", "name"), WRONG.values(), ids=WRONG)
def test_name_that_nothing_has_is_found(
    tmp_path: Path, path: str, text: str, line: int, name: str
) -> None:
    assert said(tmp_path, path, text) == [f"{path}:{line} {name}"]


RIGHT = {
    "a name": (PYTHON, '"""See `Store`, `look_up()` and `store`."""'),
    "of this file": (PYTHON, '"""See `notice`."""\nnotice = 1'),
    "members": (PYTHON, '"""See `Store.look_up`, Store.kept and `Store._found`."""'),
    "of a foreign class": (PYTHON, '"""See `Half.kept`."""'),
    "of modules": (
        PYTHON,
        '"""See `store.Store`, kvferry.cache and `kvferry.cache.store.Late`."""',
    ),
    "paths": (PYTHON, '"""See `cache/store.py`, cache/settings.py, native/net and `a.py`."""'),
    "an option": ("docs/a.md", "See `--max-size 3`."),
    "an error": (PYTHON, '"""A.\n\nRaises:\n    Late, ValueError: No.\n"""'),
    "a parameter": (PYTHON, 'def f(b):\n    """A.\n\n    Args:\n        b: No.\n    """'),
    "of the base": (
        PYTHON,
        'class C(Store):\n    """A.\n\n    Args:\n        salt: No.\n    """',
    ),
    "C++": ("native/net/a.hpp", "// Gate::open_max, Gate::height, Gate::built, kGates, shut_."),
    "of a fence": ("docs/a.md", "```\nnotice()\n```\nSee `notice`."),
    "what a program says": ("docs/a.md", "See `nothing was noticed here`."),
    "placeholders": ("docs/a.md", "See `--max-size SIZE`."),
    "of others": (PYTHON, '"""See `BlockStored`."""'),
    "code": (PYTHON, 'a = "`notice`"'),
    "sentences": (PYTHON, '"""It is a Store.The next is one."""'),
}


@pytest.mark.parametrize(("path", "text"), RIGHT.values(), ids=RIGHT)
def test_name_that_something_has_is_not_found(tmp_path: Path, path: str, text: str) -> None:
    assert said(tmp_path, path, text) == []


@pytest.mark.full
def test_names_of_others_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {name for names in words.OTHERS.values() for name in names}
    monkeypatch.setattr(words, "OTHERS", {})
    files = list(tidy.source_files(ROOT))
    found = {
        message.split()[-1].removesuffix("()") for _, _, message in words.nameless(ROOT, files)
    }
    ours = {name for name in others if not any(one.startswith(name) for one in found)}
    assert ours == set()
