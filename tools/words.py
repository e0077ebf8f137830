"""words: names in comments, docstrings and pages that nothing has.

Looked at are names in backticks, and beside these what can be nothing but a name: `Class.member`,
dotted paths of modules, paths of files, errors that are said to be raised, parameters, and in C++
whatever is written like code. A member is looked for in its class and its bases, an attribute of a
module in the module, any other name in all code of the tree.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from known import Known, words_of
from prose import code, fences, prose

__all__ = ["OTHERS", "nameless"]

# Whose: names that no code of ours uses.
OTHERS = {
    "vLLM": (
        *("BlockStored", "OffloadKey", "OffloadingConfig", "OffloadingSpec", "SchedulerOutput"),
        *("RequestOutput", "VllmConfig", "offload_prompt_only", "vllm.LLM"),
        *("VLLM_PLUGINS", "VLLM_SERVER_DEV_MODE", "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS"),
        *("--lora-modules", "kvferry.mp", "lmcache.NAME"),  # the last two: keys of its extra config
    ),
    "SGLang": (
        *("--enable-cache-report", "--enable-metrics", "--enable-unified-cache-external-linker"),
        *("--hicache-io-backend", "--hicache-mem-layout", "--hicache-storage-backend"),
        *("write_back", "write_through", "write_through_selective"),
        *(
            "HiCacheStorageConfig",
            "backuped_tokens_total",
            "prefetched_tokens_total",
            "storage_prefetch_hit_tokens_total",
        ),
    ),
    "LMCache": (
        *("ConnectorContext", "LMCacheEngineConfig", "LMCACHE_RESP_HOST", "MemoryObj", "ObjectKey"),
    ),
    "llmperf": ("RESULTS_VERSION", "common_metrics", "token_benchmark_ray.py"),
    "redis-cli and Valkey": ("--askpass", "--bigkeys", "src/commands", "tclsh"),
    "Linux, systemd, processors": (
        *("PR_SET_DUMPABLE", "PR_SET_PDEATHSIG", "kernel.yama.ptrace_scope", "shmem_enabled"),
        *("st_ctime",),
        *("LimitCORE", "RemoveIPC", "logind.conf"),
        *("io_uring_enter", "pthread_exit", "strtoul", "virtio_net_hdr"),
    ),
    "containers": ("hostIPC", "hostPath", "shareable"),
    "ZeroMQ, prometheus_client, NumPy, pytest, xxHash": (
        *("PROMETHEUS_MULTIPROC_DIR", "ml_dtypes", "conftest.py"),
        *("doc/xxhash_spec.md",),
    ),
    "numbers": ("EiB", "NaN", "SplitMix64"),
    "this page of style, and this module": (
        *("PascalCase", "snake_case", "kPascalCase", "Args", "Returns", "Units"),
        *("Class.member",),
    ),
}

Where = tuple[PurePosixPath, int, str]  # file, line, message

_ROOTS = ("src", "native", "bindings", "benchmarks", "tools", "docs")
_PAGES = ("README.md", "ARCHITECTURE.md", "STYLE.md", "CONTRIBUTING.md")
_PROSE = (".py", ".cpp", ".hpp", ".md")
_SPAN = re.compile(r"(``?)([^`\n]+(?:\n[^`\n]+)?)\1")
_NAME = re.compile(r"(?<![\w./$%<{&@-])~?[A-Za-z_]\w*(?:(?:\.|::|->)~?\w+)*(?![\w/]|-\w)", re.ASCII)
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*\w")
_PATH = re.compile(
    r"(?<![\w/.:*<>{}-])(?:"
    r"(?:[\w.-]+/)*[\w-]+\.(?:py|pyi|cpp|hpp|md|sh|js|toml|cmake)\b(?![/*(])"
    r"|(?:src|native|bindings|benchmarks|tools|docs|tests)/[\w/-]*\w(?![\w<{*/-]|\.\w))"
)
_MODULE = re.compile(r"(?<![\w./-])kvferry(?:\.[a-z_]\w*)+(?:\.[A-Z]\w*)?")
_MEMBER = re.compile(r"(?<![\w./:`-])([A-Z]+[a-z]\w*)(\.|::)(~?[A-Za-z_]\w*)(?![\w/]|-\w|\.\w)")
_CPP_NAME = re.compile(
    r"(?<![\w./:`-])(?:"
    r"k[A-Z]\w+|[a-z]\w*_[a-z]\w*(?![\w*{}<])|[a-z_]\w*\(\)|[A-Z][a-z0-9]+[A-Z]\w*)"
)
_SECTION = re.compile(r"^( *)(Args|Attributes|Raises):\n((?:(?:\1 +\S.*)?(?:\n|\Z))+)", re.M)
_ROW = re.compile(r"^ *(\w+) {2,}\S.* {2,}([\w/, ]+\.py)$", re.MULTILINE)  # name, what, files
_SAID = re.compile(r"[a-z]{2} [a-z]{2,} [a-z]{2}")
_HEX = re.compile(r"(?:[0-9a-f]{2} ?)+")
_MADE = ("build", ".venv")
_UNITS = re.compile(r"_(?:total|seconds|bytes|count|sum|bucket)$")


def nameless(root: Path, files: Iterable[PurePosixPath]) -> Iterator[Where]:
    """Yield the names in the prose of `files` that the tree does not have."""
    files = list(files)
    names = _Names(Known(root, files))
    for path in filter(_read, files):
        text = (root / path).read_text(encoding="utf-8")
        here = _Here(root, path, text)
        for first, block in prose(path.suffix, text):
            for offset, wrong in sorted(set(names.wrong(here, block))):
                yield path, first + block.count("\n", 0, offset), f"nothing is called {wrong}"


def _read(path: PurePosixPath) -> bool:
    ours = path.parts[0] in _ROOTS or path.parts[:2] == ("tests", "support") or str(path) in _PAGES
    return ours and path.suffix in _PROSE


class _Here:
    """The file whose prose is read: what is beside it, and the names of its own code."""

    def __init__(self, root: Path, path: PurePosixPath, text: str) -> None:
        own = fences(text) if path.suffix == ".md" else code(path.suffix, text)
        self.suffix = path.suffix
        self.product = path.parts[0] in ("src", "native", "bindings")
        self.words = set(words_of(own))
        self.classes = re.findall(r"^class (\w+)", own, re.MULTILINE)
        self._root, self._folder = root, root / path.parent

    def has(self, name: str) -> bool:
        """Whether there is such a file, seen from the root or from here."""
        return any(
            (place / name).exists() or any(place.glob(f"{name}-*.md"))  # a decision by its number
            for place in (self._folder, self._root)
        )

    def mentions(self, name: str, files: Iterable[str]) -> bool:
        """Whether one of these files, seen from here, is called so, or has the name."""
        places = [self._folder / file for file in files]
        return any(
            place.stem == name or re.search(rf"\b{name}\b", place.read_text(encoding="utf-8"))
            for place in places
            if place.exists()
        )


class _Names:
    """Which names are wrong."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._words = known.words
        self._others = {name for names in OTHERS.values() for name in names}

    def wrong(self, here: _Here, block: str) -> Iterator[tuple[int, str]]:
        """Offset and name of those in one block."""
        self._words = self._known.product if here.product else self._known.words
        for match in _SPAN.finditer(block):
            yield from ((match.start(2), name) for name in self._in_span(here, match[2]))
        rest = _SPAN.sub(lambda match: re.sub(r"[^\n]", "`", match[0]), block)
        for match in _PATH.finditer(rest):
            if not self._file(here, match[0]):
                yield match.start(), match[0]
        for match in _MODULE.finditer(rest):
            if not self._chain(match[0]):
                yield match.start(), match[0]
        for match in _MEMBER.finditer(rest):
            plain = match[2] == "." and match[3][0].isupper()  # perhaps two sentences
            if not plain and self._known.member(match[1], match[3]) is False:
                yield match.start(), match[0]
        if here.suffix == ".py":
            yield from self._in_sections(here, block)
            for match in _ROW.finditer(block):
                if not here.mentions(match[1], re.findall(r"[\w/]+\.py", match[2])):
                    yield match.start(1), match[1]
        elif here.suffix in (".cpp", ".hpp"):
            for match in _CPP_NAME.finditer(rest):
                if not self._chain(match[0].removesuffix("()")):
                    yield match.start(), match[0]

    def _in_sections(self, here: _Here, block: str) -> Iterator[tuple[int, str]]:
        """Errors and parameters, which stand without backticks."""
        for match in _SECTION.finditer(block):
            entry = rf"^{match[1]}    (\*{{0,2}}[\w.]+(?:, \*{{0,2}}[\w.]+)*):(?=\s)"
            for names in re.finditer(entry, match[3], re.MULTILINE):
                for name in re.findall(r"[\w.]+", names[1]):
                    there = name.partition(".")[0] in here.words
                    if match[2] == "Raises":
                        there = there or hasattr(builtins, name) or self._known.is_class(name)
                    else:
                        there = there or any(self._known.takes(one, name) for one in here.classes)
                    if not there:
                        yield match.start(3) + names.start(), name

    def _in_span(self, here: _Here, span: str) -> Iterator[str]:
        span = re.sub(r"\s+", " ", span)
        if "://" in span or span.startswith("/") or _HEX.fullmatch(span):
            return
        if "/" in span or _PATH.fullmatch(span):
            yield from (m[0] for m in _PATH.finditer(span) if not self._file(here, m[0]))
            return
        for option in _OPTION.findall(span):
            if not self._option(option):
                yield option
        said = _SAID.search(span)  # what a program says: its plain words are no names
        for match in _NAME.finditer(_OPTION.sub(" ", span)):
            own = (said and match[0].isalpha()) or match[0] in here.words
            if not own and not self._chain(match[0]):
                yield match[0]

    def _file(self, here: _Here, name: str) -> bool:
        if name.split("/")[0] in _MADE or name in self._others or here.has(name):
            return True
        anywhere = "/" in name or here.suffix == ".md" or name.startswith("test_")
        return anywhere and self._known.path(name)

    def _option(self, name: str) -> bool:
        bare = re.sub("^--(no-)?", "", name)
        return not self._words.isdisjoint((name, bare, bare.replace("-", "_"))) or (
            name in self._others
        )

    def _chain(self, chain: str) -> bool:
        """Whether a name, or one behind others, is known."""
        parts = re.split(r"\.|::|->", chain)
        if {".".join(parts[:count]) for count in range(1, len(parts) + 1)} & self._others:
            return True
        if not self._word(parts[0]) and chain not in self._words:
            return False
        if parts[0] == "kvferry" and len(parts) > 1:
            setting = self._known.of_module("kvferry", parts[1]) is False and len(parts) == 2
            return self._word(parts[1]) if setting else self._known.module(chain)
        return all(map(self._behind, parts, parts[1:]))

    def _behind(self, owner: str, name: str) -> bool:
        """Whether `name` may stand behind `owner`: a class, a module, or any object."""
        of_class, of_module = self._known.member(owner, name), self._known.of_module(owner, name)
        if of_class or of_module:
            return True
        if of_class is False or (of_module is False and name[0].isupper()):
            return False
        return name in self._known.attributes or name in self._words

    def _word(self, name: str) -> bool:
        words = self._words
        if name.startswith("test_") and name in self._known.words:
            return True  # tests that hold a constant are named by it
        if name in words or len(name) == 1 or re.fullmatch(r"[A-Z][A-Z0-9]+", name):
            return True  # the last are placeholders
        if name.startswith("_") or name.endswith("_"):  # a part of names
            bare = name.lower().strip("_")
            whole = bare in words or _UNITS.sub("", bare) in words
            return whole or any(word.startswith(name) or word.endswith(name) for word in words)
        if name.lower().startswith("kvferry_"):  # metrics and variables, made from parts
            bare = name.lower()
            tails = [bare[at + 1 :] for at in range(len(bare)) if bare[at] == "_"][:2]
            return any(tail in words or _UNITS.sub("", tail) in words for tail in tails)
        return False
