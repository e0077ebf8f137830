"""tools/tidy.py: this tree is tidy, and each rule reports the violation that was planted for it."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
import tidy

ROOT = Path(__file__).resolve().parents[2]


def plant(root: Path, path: str, text: str) -> list[str]:
    """Write one file into an empty tree; return what tidy says about it."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return [str(finding) for finding in tidy.check(root)]


@pytest.mark.full  # `make check` runs it
def test_this_tree_is_tidy() -> None:
    assert [str(finding) for finding in tidy.check(ROOT)] == []


def test_the_page_of_style_has_the_layers_that_are_checked(tmp_path: Path) -> None:
    text = (ROOT / "STYLE.md").read_text()
    assert not [one for one in plant(tmp_path, "STYLE.md", text) if "layers" in one]
    for wrong in (text.replace("< base <", "< engine <"), text.replace("redis, cache}", "cache}")):
        found = plant(tmp_path, "STYLE.md", wrong)
        assert [one for one in found if "layers are not those" in one]


def test_waivers_name_long_files_that_exist() -> None:
    for path, reason in tidy.WAIVERS.items():
        assert (ROOT / path).exists(), f"{path} is gone; so goes its waiver"
        assert reason


NOTE = "TO" + "DO"
VIOLATIONS = {
    "upward include": ("native/base/a.cpp", '#include "net/socket.hpp"', 1, "base uses net"),
    "sibling include": ("native/net/a.cpp", '#include "resp/parser.hpp"', 1, "is beside it"),
    "code uses a fuzzer": (
        "native/redis/a.cpp",
        '#include "fuzz/a.hpp"',
        1,
        "no layer that others",
    ),
    "unrooted include": ("native/net/a.cpp", '#include "socket.hpp"', 1, "as seen from native/"),
    "Python.h below bindings": ("native/net/a.cpp", "\n#include <Python.h>", 2, "only bindings/"),
    "nanobind in a test": (
        "native/net/a_test.cpp",
        "#include <nanobind/nanobind.h>",
        1,
        "bindings/",
    ),
    "socket in resp": ("native/resp/a.cpp", "#include <sys/socket.h>", 1, "knows no sockets"),
    "netinet in resp": ("native/resp/a.cpp", "#include <netinet/tcp.h>", 1, "knows no sockets"),
    "unknown layer": ("native/misc/a.cpp", "int a;", 1, "misc has no layer"),
    "bare header": ("native/net/a.hpp", "#pragma once\n\n#include <span>", 1, "no opening comment"),
    "upward import": ("src/kvferry/client/a.py", "import kvferry.cache", 1, "is above it"),
    "sibling import": (
        "src/kvferry/cli/a.py",
        "from kvferry.integrations import a, b",
        1,
        "is beside it",
    ),
    "lazy import": (
        "src/kvferry/client/a.py",
        "def f() -> None:\n    from kvferry import cli\n\n\nf()",
        2,
        "client uses cli",
    ),
    "relative import": ("src/kvferry/client/a.py", "from ..engine import a", 1, "uses engine"),
    "import by name": (
        "src/kvferry/chunks/pool.py",
        'import importlib\nimportlib.import_module("kvferry_lab")',
        2,
        "chunks uses kvferry_lab",
    ),
    "leaf uses its sibling": (
        "src/kvferry/chunks/keys.py",
        "import kvferry.metrics",
        1,
        "is beside it",
    ),
    "what is for programs": ("src/kvferry/cli/a.py", "import kvferry.errors", 1, "no layer"),
    "import of the package": (
        "src/kvferry/chunks/pool.py",
        "import kvferry",
        1,
        "the module that is",
    ),
    "import of a public name": (
        "src/kvferry/chunks/pool.py",
        "from kvferry import Status",
        1,
        "no layer",
    ),
    "unknown module": ("src/kvferry/misc.py", "", 1, "misc has no layer"),
    "long header": ("native/net/a.hpp", "// a\n" * 241, 241, "241 lines"),
    "long source": ("native/net/a.cpp", "// a\n" * 701, 701, "701 lines"),
    "long C++ test": ("native/net/a_test.cpp", "// a\n" * 601, 601, "601 lines"),
    "long module": ("src/kvferry/chunks/pool.py", "# a\n" * 601, 601, "601 lines"),
    "long test module": ("tests/test_a.py", "# a\n" * 601, 601, "601 lines"),
    "wide C++": ("native/net/a.cpp", "// " + "a" * 98, 1, "101 columns"),
    "wide Python": ("tools/a.py", "# " + "a" * 99, 1, "101 columns"),
    "wide Markdown": ("docs/a.md", "a" * 101, 1, "101 columns"),
    "bare thread": (
        "src/kvferry/chunks/pool.py",
        "import threading\n\nthreading.Thread(target=print).start()",
        3,
        "start threads by kvferry.base.threads",
    ),
    "bare timer": (
        "src/kvferry/chunks/pool.py",
        "import threading\nthreading.Timer(1, print)",
        2,
        "Timer",
    ),
    "thread by its name": (
        "src/kvferry/chunks/pool.py",
        "from threading import Thread",
        1,
        "base.threads",
    ),
    "thread of one's own": (
        "src/kvferry/chunks/pool.py",
        "import threading\nclass A(threading.Thread): ...",
        2,
        "base.threads",
    ),
    "bare executor": (
        "src/kvferry/chunks/pool.py",
        "from concurrent.futures import Future, ThreadPoolExecutor",
        1,
        "ThreadPoolExecutor: start",
    ),
    "executor by its module": (
        "src/kvferry/chunks/pool.py",
        "from concurrent import futures\nfutures.ThreadPoolExecutor(1)",
        2,
        "base.threads",
    ),
    "tab": ("src/kvferry/chunks/pool.py", "if True:\n\tpass", 2, "a tab"),
    "machine path": ("docs/a.md", "see " + "/home" + "/ada/src", 1, "path of one machine"),
    "untyped note": ("native/net/a.cpp", f"int a;  // {NOTE}: later", 1, "without a type"),
    "strangely typed note": ("tools/a.py", f"# {NOTE}(now): later", 1, "without a type"),
}


@pytest.mark.parametrize(("path", "text", "line", "message"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_reports(tmp_path: Path, path: str, text: str, line: int, message: str) -> None:
    (finding,) = plant(tmp_path, path, text)
    assert finding.startswith(f"{path}:{line}: ")
    assert message in finding


ALLOWED = {
    "downward include": ("native/redis/a.cpp", '#include "net/socket.hpp"'),
    "own layer": ("native/net/a.cpp", '#include "net/socket.hpp"'),
    "test sees everything": ("native/base/a_test.cpp", '#include "redis/client.hpp"'),
    "fuzzer sees everything": ("native/fuzz/a_fuzz.cpp", '#include "node/node.hpp"'),
    "bindings know Python": ("bindings/a.cpp", '#include <Python.h>\n#include "errors.hpp"'),
    "net knows sockets": ("native/net/a.cpp", "#include <sys/socket.h>"),
    "downward import": ("src/kvferry/cli/a.py", "from kvferry.client import batch"),
    "own package": ("src/kvferry_lab/a.py", "from . import b\nfrom kvferry_lab import c"),
    "the lab sees everything": ("src/kvferry_lab/a.py", "from kvferry.cli import main"),
    "the package's own list": ("src/kvferry/__init__.py", "from kvferry.client.sync import A"),
    "what programs import": ("src/kvferry/errors.py", "from kvferry.base.errors import A"),
    "version": ("src/kvferry/cli/a.py", "from kvferry import __version__"),
    "the one way to start threads": (
        "src/kvferry/base/threads.py",
        "import threading\nclass A(threading.Thread): ...",
    ),
    "what a thread is": ("src/kvferry/chunks/pool.py", "import threading\na: threading.Thread"),
    "threads that measure": ("src/kvferry_lab/a.py", "from threading import Thread"),
    "ceiling exactly": ("src/kvferry/chunks/pool.py", "# a\n" * 600),
    "wide table": ("docs/a.md", "| " + "a" * 120 + " |"),
    "wide output": ("docs/a.md", "```\n" + "a" * 120 + "\n```"),
    "wide link": ("docs/a.md", "https://example.com/" + "a" * 100),
    "system path": ("docs/a.md", "see /usr/bin/env and https://example.com/home/ada"),
    "typed note": ("native/net/a.cpp", f"// {NOTE}(perf): measure a smaller window"),
    "stub": ("src/kvferry/_native.pyi", "a" * 200),
    "build output": ("build/a.cpp", "\t"),
}


@pytest.mark.parametrize(("path", "text"), ALLOWED.values(), ids=ALLOWED)
def test_allows(tmp_path: Path, path: str, text: str) -> None:
    assert plant(tmp_path, path, text) == []


def test_a_waiver_lifts_the_ceiling_of_one_file(tmp_path: Path) -> None:
    plant(tmp_path, "src/kvferry/chunks/keys.py", "# a\n" * 401)
    plant(tmp_path, "src/kvferry/logs.py", "# a\n" * 401)
    (finding,) = tidy.check(tmp_path, waivers={"src/kvferry/chunks/keys.py": "one table"})
    assert str(finding.path) == "src/kvferry/logs.py"


def test_aims_are_told_when_asked_for(tmp_path: Path) -> None:
    assert plant(tmp_path, "src/kvferry/chunks/keys.py", "# a\n" * 201) == []
    (finding,) = tidy.check(tmp_path, aims=True)
    assert "aims for 200" in finding.message


@pytest.mark.parametrize(("what", "most"), [("modules", 2), ("lines", 5)])
def test_what_weighs_more_than_it_may_is_told(tmp_path: Path, what: str, most: int) -> None:
    files = []
    for name, lines in (("a/one.py", 2), ("b/two.py", 3), ("c/three.py", 9), ("a/four.txt", 9)):
        files.append(PurePosixPath(name))
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\n" * lines)
    weights = ((("a", "b"), what, most),)
    assert not list(tidy._weights(tmp_path, files, weights))
    (finding,) = tidy._weights(tmp_path, files, ((("a", "b"), what, most - 1),))
    assert f"{most} {what} in a and b" in str(finding)


def test_ceilings_of_weight_are_near_what_stands() -> None:
    """A ceiling far above the tree holds nothing."""
    lower = tuple((folders, what, int(most * 0.95)) for folders, what, most in tidy.WEIGHTS)
    files = list(tidy.source_files(ROOT))
    assert len(list(tidy._weights(ROOT, files, lower))) == len(lower)
