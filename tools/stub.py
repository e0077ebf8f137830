"""The stub of the extension: src/kvferry/_native.pyi, generated and committed.

python tools/stub.py            write it
python tools/stub.py --check    exit 1 with a diff when it is not what the extension says
"""

from __future__ import annotations

import difflib
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

STUB = Path(__file__).resolve().parents[1] / "src/kvferry/_native.pyi"


def generate() -> str | None:
    """Return the stub of the built extension, or ``None`` while there is none."""
    if find_spec("kvferry._native") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "_native.pyi"
        command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "kvferry._native"]
        subprocess.run([*command, "-o", str(output)], check=True)
        return output.read_text()


def main(arguments: list[str]) -> int:
    """Write or check the stub; return the exit status."""
    wanted = generate()
    if wanted is None:
        print("stub: the extension is not built, nothing to compare", file=sys.stderr)
        return 0
    if "--check" not in arguments:
        STUB.write_text(wanted)
        return 0
    present = STUB.read_text() if STUB.exists() else ""
    diff = difflib.unified_diff(
        present.splitlines(True), wanted.splitlines(True), "committed", "generated"
    )
    text = "".join(diff)
    if text:
        print(f"{text}stub: out of date; run `make stub` and review the difference")
    return 1 if text else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
