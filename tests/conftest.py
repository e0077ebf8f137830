"""Fixtures for every test: tests/support/fixtures.py. (pyproject.toml puts tests/ on the path.)"""

from __future__ import annotations

pytest_plugins = ["support.fixtures"]
