"""A controller with its page, and instances that lend, hit and read from each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from kvferry.http.listener import HttpListener
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.http.app import make_app
from kvferry.sharing.membership import HeldIdentity, Hits, WorkDone
from support.holdings import CHUNK, IDENTITY, OTHER, FakeCache, controller, hashes, reporting
from support.stamps import until

__all__ = ["CHUNK_BYTES", "PageCluster", "page_cluster"]

LIMIT_S = 30.0
CHUNK_BYTES = 1 << 20
MODELS = (
    HeldIdentity(IDENTITY.digest, "tiny", CHUNK, b"", CHUNK_BYTES),
    HeldIdentity(OTHER.digest, "other", CHUNK, b"", 2 * CHUNK_BYTES),
)


class PageCluster:
    """Two instances: "one" holds 4 chunks of a prompt and "two" 7, which reads from "one"."""

    def __init__(self, ctl: Controller, listener: HttpListener) -> None:
        self.ctl, self.listener = ctl, listener
        self.url = listener.url
        self.caches = [FakeCache(*MODELS), FakeCache(*MODELS)]
        self.caches[0].add(hashes(4))
        self.caches[1].add(hashes(7))

    def works(self, rounds: int) -> None:
        """Tell what was done in so many rounds, all in all."""
        one, two = self.caches
        one.done = WorkDone(
            1000 * rounds, 1.5 * rounds, (Hits("l1", 600 * rounds, 6_000 * rounds),)
        )
        two.done = WorkDone(
            1000 * rounds,
            0.5 * rounds,
            (
                Hits("peer one", 300 * rounds, 3_000_000 * rounds),
                Hits("redis", 100 * rounds, 1_000 * rounds),
            ),
        )

    def beats(self) -> None:
        """Wait until both have said what they have done until now."""
        want = [one.done for one in self.caches]
        until(lambda: [one.work for one in self.ctl.members.living()] == want, LIMIT_S)


@contextmanager
def page_cluster(**settings: str) -> Iterator[PageCluster]:
    """See the module.

    Args:
        settings: Of the controller.
    """
    with ExitStack() as stack:
        ctl = stack.enter_context(controller(**settings))
        listener = HttpListener(make_app(ctl), "127.0.0.1", 0, "choose another --port")
        listener.start()
        stack.callback(listener.stop)
        stack.callback(ctl.ending.set)
        found = PageCluster(ctl, listener)
        for name, cache in zip(("one", "two"), found.caches, strict=True):
            stack.enter_context(reporting(cache, ctl, name, address=f"10.0.0.1:{name}"))
            until(lambda name=name: _knows(found, name), LIMIT_S)  # in this order
        yield found


def _knows(cluster: PageCluster, name: str) -> bool:
    return any(
        one.instance == name and one.synced and one.beats for one in cluster.ctl.members.living()
    )
