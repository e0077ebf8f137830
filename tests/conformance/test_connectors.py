"""Every driver of the tree passes the suite that drivers outside of it pass."""

from __future__ import annotations

import pytest

from kvferry.base.errors import CapacityError
from kvferry.testing.suite import *  # noqa: F403
from support.connectors import SpecDriver, space_of


@pytest.mark.parametrize("driver", ["memory", "file", "file-threads"], indirect=True)
def test_a_queue_that_is_full_refuses_whole_jobs(driver: SpecDriver) -> None:
    with driver.open(space_of(10), queued_keys_max=50) as store:
        with pytest.raises(CapacityError):
            store.submit_exists([f"k{i}" for i in range(51)])
        assert len(store.batch_exists([f"k{i}" for i in range(50)])) == 50
