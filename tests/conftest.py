"""What every test has: the fixtures, and a search for secrets in what was said.

pyproject.toml puts tests/ on the path.
"""

from __future__ import annotations

pytest_plugins = ["support.fixtures", "support.connectors", "support.overheard"]
