"""What tests need that are about kvferry: a suite for connectors.

A pytest plugin, so that what fails in the suite says what was compared:

    pytest_plugins = ["kvferry.testing"]    # in conftest.py

`kvferry.testing.suite` has the tests; docs/guides/new-connector.md shows how a driver runs them.
"""
