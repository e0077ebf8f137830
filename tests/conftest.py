"""What every test has: the fixtures, a search for secrets in what was said, and a second try for
what failed while the host had our processors.

pyproject.toml puts tests/ on the path.
"""

from __future__ import annotations

pytest_plugins = [
    "support.fixtures",
    "support.connectors",
    "support.overheard",
    "support.stolen",
]
