"""What the lab writes beside its tables: the command line that was called, and figures as JSON."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

__all__ = ["command_line", "write_json"]


def command_line() -> str:
    """What was called, without secrets."""
    return re.sub(r"://[^@/\s]*@", "://***@", shlex.join(["kvferry", *sys.argv[1:]]))


def write_json(target: str, figures: Any) -> None:
    """Into a file; "-" is stdout."""
    text = json.dumps(figures, indent=1) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        Path(target).write_text(text)
