"""tools/callers.py: what nothing calls is found, what is called is not."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import callers
import pytest
import tidy

ROOT = Path(__file__).resolve().parents[2]
HEADER = "// a\nint used();\nstd::string Widget::name_of(int a);\n"
MODULE = "class A:\n    def asked(self) -> None: ...\n"


def found(root: Path, files: dict[str, str]) -> list[str]:
    """What nothing calls in a tree of these files."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    where = callers.uncalled(root, [PurePosixPath(path) for path in files])
    return [f"{path}:{line} {message.split()[2][:-1]}" for path, line, message in where]


USED = {
    "another source": {"native/net/b.cpp": "int a = used() + name_of(1);"},
    "bindings": {"bindings/b.cpp": 'm.def("a", &used).def("b", &name_of);'},
    "a benchmark": {"native/bench/b.cpp": "return used(), name_of(2);"},
    "after a return": {"native/net/b.cpp": "int f() { return used(); }\nauto g = name_of(f());"},
}


@pytest.mark.parametrize("by", USED.values(), ids=USED)
def test_called_function_of_a_header_is_not_found(tmp_path: Path, by: dict[str, str]) -> None:
    definitions = "int used() { return 1; }\nstd::string Widget::name_of(int a) { return {}; }"
    assert (
        found(tmp_path, {"native/net/a.hpp": HEADER, "native/net/a.cpp": definitions, **by}) == []
    )


UNUSED = {
    "nobody": {},
    "its definition": {"native/net/a.cpp": "int used() { return 1; }"},
    "a test": {"native/net/a_test.cpp": "int a = used() + name_of(1);"},
    "help of tests": {"native/net/test_a.hpp": "// a\nint a = used() + name_of(1);"},
    "a fuzzer": {"native/fuzz/b.cpp": "int a = used() + name_of(1);"},
    "a comment": {"native/net/b.cpp": "// used() and name_of()\n"},
    "a text": {"native/net/b.cpp": 'auto a = "used, name_of";\n'},
}


@pytest.mark.parametrize("by", UNUSED.values(), ids=UNUSED)
def test_function_of_a_header_that_nothing_calls_is_found(
    tmp_path: Path, by: dict[str, str]
) -> None:
    assert found(tmp_path, {"native/net/a.hpp": HEADER, **by}) == [
        "native/net/a.hpp:2 used",
        "native/net/a.hpp:3 name_of",
    ]


ASKED = {
    "a call": {"src/kvferry/b.py": "from kvferry.a import A\nA().asked()"},
    "a name in a table": {"src/kvferry/b.py": 'WHO = {"x": "kvferry.a:A.asked"}'},
    "a page": {"docs/a.md": "Then `asked()` says so."},
    "bindings": {"bindings/b.cpp": 'object.attr("asked")();'},
}


@pytest.mark.parametrize("by", ASKED.values(), ids=ASKED)
def test_called_function_of_a_module_is_not_found(tmp_path: Path, by: dict[str, str]) -> None:
    assert found(tmp_path, {"src/kvferry/a.py": MODULE, **by}) == []


UNASKED = {
    "nobody": {},
    "a test": {"tests/test_a.py": "A().asked()"},
    "a comment": {"src/kvferry/b.py": "# asked\n"},
    "a sentence": {"src/kvferry/b.py": '"""It is asked."""\n'},
    "its export": {"src/kvferry/b.py": '__all__ = ["asked"]'},
}


@pytest.mark.parametrize("by", UNASKED.values(), ids=UNASKED)
def test_function_of_a_module_that_nothing_calls_is_found(
    tmp_path: Path, by: dict[str, str]
) -> None:
    assert found(tmp_path, {"src/kvferry/a.py": MODULE, **by}) == ["src/kvferry/a.py:2 asked"]


def test_methods_that_somebody_elses_class_calls_are_left_out(tmp_path: Path) -> None:
    text = "from engine import Base\nclass A(Base):\n    def asked(self) -> None: ...\n"
    assert found(tmp_path, {"src/kvferry/a.py": text}) == []


@pytest.mark.full
def test_exceptions_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    excepted, files = callers.CALLED_ELSEWHERE, list(tidy.source_files(ROOT))
    monkeypatch.setattr(callers, "CALLED_ELSEWHERE", {})
    needed = {message.split()[2][:-1] for _, _, message in callers.uncalled(ROOT, files)}
    assert needed == set(excepted)
    assert all(excepted.values())


def test_tests_that_the_package_ships_are_called_by_pytest(tmp_path: Path) -> None:
    shipped = "def test_it() -> None: ...\ndef helped() -> None: ...\n"
    assert found(tmp_path, {"src/kvferry/testing/a.py": shipped}) == [
        "src/kvferry/testing/a.py:2 helped"
    ]
