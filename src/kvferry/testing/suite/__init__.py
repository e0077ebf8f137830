"""The suite that every connector passes: a test module imports all of it, and has a fixture
``driver``, which is a `kvferry.testing.driver.StoreDriver`; see docs/guides/new-connector.md.
"""

from kvferry.testing.suite.damage import *  # noqa: F403
from kvferry.testing.suite.inventory import *  # noqa: F403
from kvferry.testing.suite.values import *  # noqa: F403
from kvferry.testing.suite.waiting import *  # noqa: F403
