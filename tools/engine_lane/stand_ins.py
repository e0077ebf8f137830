"""Stand-ins for the CUDA libraries that torch is linked with, for machines without a GPU.

    python stand_ins.py TORCH_LIB_DIRECTORY

torch's libraries name their CUDA neighbours in DT_NEEDED, so the dynamic linker wants all of them
before the first line of torch runs, although a program without a GPU calls none. For each one that
is missing this writes a shared library of the same soname, which exports what torch's libraries
want from it, under the same symbol versions. Every function returns 100, which CUDA calls
"no device". Needs readelf and a C compiler. Writes beside torch's own libraries, which look there
first; libraries that are there are left alone, so a second run does nothing.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Needs", "make_stand_ins", "needs_of"]

# What every Linux has; the driver's library is looked for by torch itself.
_OF_ALL = re.compile(r"lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+)\.so|ld-linux")
_OF_THE_DRIVER = re.compile(r"libcuda\.so")
_OF_PYTHON = re.compile(r"_?Py[A-Z_]")
_NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
_VERSION_FILE = re.compile(r"Version: \d+\s+File: (\S+)")
_VERSION_NAME = re.compile(r"Name: (\S+)\s+Flags")
# Num: Value Size Type Bind Vis Ndx Name
_SYMBOL = re.compile(r"\s*\d+: \S+\s+\S+ \S+\s+(\S+)\s+\S+\s+(\S+) (\S+)")


@dataclass
class Needs:
    """What one library wants from others."""

    sonames: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)  # symbol version: soname
    undefined: set[str] = field(default_factory=set)  # "name" or "name@version"
    defined: set[str] = field(default_factory=set)


def needs_of(library: Path) -> Needs:
    """Read one library."""
    needs = Needs()
    file = ""
    for line in _readelf("-d", library):
        if found := _NEEDED.search(line):
            needs.sonames.append(found[1])
    for line in _readelf("-V", library):
        if found := _VERSION_FILE.search(line):
            file = found[1]
        elif (found := _VERSION_NAME.search(line)) and file:
            needs.versions[found[1]] = file
    for line in _readelf("--dyn-syms", library):
        if found := _SYMBOL.match(line):
            bind, section, name = found.groups()
            if section != "UND":
                needs.defined.add(name.partition("@")[0])
            elif bind == "GLOBAL":
                needs.undefined.add(name.replace("@@", "@"))
    return needs


def make_stand_ins(directory: Path) -> list[str]:
    """Write what is missing; return the sonames that were made.

    Raises:
        subprocess.CalledProcessError: readelf or the compiler failed.
    """
    read = [needs_of(path) for path in sorted(directory.glob("*.so*")) if _is_elf(path)]
    defined = {name for needs in read for name in needs.defined}
    common = {name for needs in read for name in needs.sonames if _OF_ALL.match(name)}
    system = [ctypes.CDLL(name) for name in sorted(common)]
    missing: dict[str, dict[str, set[str]]] = {}  # soname: {version: names}
    for needs in read:
        lacks = [name for name in needs.sonames if _lacks(directory, name)]
        for soname in lacks:
            missing.setdefault(soname, defaultdict(set))
        for symbol in needs.undefined:
            name, _, version = symbol.partition("@")
            owner = needs.versions.get(version, "")
            if owner in missing:
                missing[owner][version].add(name)
            elif not (version or name in defined or _OF_PYTHON.match(name)) and lacks:
                # Nobody says whose it is. If it is not the system's, any neighbour will do that
                # is loaded together with this library.
                theirs = any(hasattr(library, name) for library in system)
                missing[lacks[0]][""] |= set() if theirs else {name}
    for soname, exported in missing.items():
        _compile(directory / soname, exported)
    return sorted(missing)


def _lacks(directory: Path, soname: str) -> bool:
    others = _OF_ALL.match(soname) or _OF_THE_DRIVER.match(soname)
    return not others and not (directory / soname).exists()


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _readelf(what: str, library: Path) -> list[str]:
    command = ["readelf", what, "--wide", str(library)]
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.splitlines()


def _compile(target: Path, exported: dict[str, set[str]]) -> None:
    names = sorted(set().union(*exported.values())) if exported else []
    source = "static long stand_in(void) { return 100; }\n" + "".join(
        f'long {name}(void) __attribute__((alias("stand_in")));\n' for name in names
    )
    script = "".join(
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(of))} }};\n"
        for version, of in sorted(exported.items())
        if version
    )
    with tempfile.TemporaryDirectory() as scratch:
        code, versions = Path(scratch, "stand_in.c"), Path(scratch, "versions")
        code.write_text(source)
        versions.write_text(script)
        flags = ["-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{target.name}"]
        flags += [f"-Wl,--version-script,{versions}"] if script else []
        compiler = os.environ.get("CC", "cc")
        half_done = Path(scratch, target.name)
        subprocess.run([compiler, *flags, "-o", half_done, code], check=True)
        target.write_bytes(half_done.read_bytes())


if __name__ == "__main__":
    print(*make_stand_ins(Path(sys.argv[1])), sep="\n")
