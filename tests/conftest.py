"""What every test has: the fixtures, a search for secrets in what was said, the part of the suite
that it belongs to, and a second try for what failed while the host had our processors.

pyproject.toml puts tests/ on the path.
"""

from __future__ import annotations

import signal

from hypothesis import settings

pytest_plugins = [
    "kvferry.testing",
    "support.fixtures",
    "support.connectors",
    "support.leaks",
    "support.summary",
    "support.overheard",
    "support.parts",
    "support.stolen",
]


settings.register_profile("kvferry", deadline=None)  # a machine may have other work
settings.load_profile("kvferry")


def pytest_configure() -> None:
    """Programs that tests start can be interrupted, whoever started pytest.

    What a shell without job control runs in the background ignores SIGINT, and so would all that it
    starts. A handler does not: a new program begins with the default (execve(2)).
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: None)
