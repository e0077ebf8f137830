"""A controller and the memory of a real engine: tokens name the same chunks on both sides."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from kvferry import TieredCache
from kvferry.http.listener import HttpListener
from kvferry.sharing.controller.http.app import make_app
from kvferry.sharing.membership import (
    Command,
    HeldIdentity,
    MemoryUsage,
    Quota,
    Renewed,
    Reporter,
    Result,
    WorkDone,
)
from support.engines import CHUNK, IDENTITY, expected, open_engine, prompt
from support.holdings import controller
from support.stamps import until
from support.views import ask

LIMIT_S = 30.0


def resident(engine: TieredCache) -> bytes:
    """The hashes of all chunks in memory."""
    return engine.memory.cache.entries()[0]


class EngineHoldings:
    """What an engine holds in memory; it does a clear, and nothing else."""

    def __init__(self, engine: TieredCache) -> None:
        self.engine = engine

    @property
    def actions(self) -> Collection[str]:
        """See `Holdings`."""
        return ("clear",)

    quotas: Sequence[Quota] = ()

    def heard(self, renewed: Sequence[Renewed], began: float) -> None:
        """See `Holdings`."""

    def limit(self, quotas: Sequence[Quota]) -> None:
        """See `Holdings`."""

    def identities(self) -> Sequence[HeldIdentity]:
        """See `Holdings`."""
        generation = self.engine.generation
        return [HeldIdentity(IDENTITY.digest, IDENTITY.model, CHUNK, generation)]

    def usage(self) -> MemoryUsage:
        """See `Holdings`."""
        return MemoryUsage()

    def work(self) -> WorkDone:
        """See `Holdings`."""
        return WorkDone()

    def held(self, identity: bytes) -> Iterable[bytes]:
        """See `Holdings`."""
        return (resident(self.engine),)

    def obey(self, command: Command) -> Result:
        """See `Holdings`."""
        return Result(command.job, True, self.engine.clear())


def test_an_engine_is_found_by_the_tokens_of_its_prompts_also_after_a_clear() -> None:
    tokens = prompt(5 * CHUNK + 3)
    with open_engine() as engine, controller() as ctl:
        listener = HttpListener(make_app(ctl), "127.0.0.1", 0, "another port")
        listener.start()
        reporter = Reporter(
            EngineHoldings(engine),
            instance="one",
            pull=f"127.0.0.1:{ctl.ports['pull']}",
            reply=f"127.0.0.1:{ctl.ports['reply']}",
        )

        def store() -> None:
            engine.store(tokens, expected(tokens))
            reporter.added(IDENTITY.digest, resident(engine))

        def held() -> int:
            body = {"tokens": tokens, "identity": IDENTITY.model}
            status, found = ask(f"{listener.url}/v1/lookup", "POST", body)
            return (
                int(found["instances"][0]["tokens"]) if status == 200 and found["instances"] else 0
            )

        try:
            engine.store(tokens, expected(tokens))
            reporter.start()
            until(lambda: held() == 5 * CHUNK, LIMIT_S)
            status, cleared = ask(
                f"{listener.url}/clear",
                "POST",
                {"instance_id": "one", "location": "LocalCPUBackend"},
            )
            assert (status, cleared["num_tokens"]) == (200, 5 * CHUNK)
            until(lambda: held() == 0, LIMIT_S)  # its prompts have other hashes now
            store()
            until(lambda: held() == 5 * CHUNK, LIMIT_S)
        finally:
            reporter.close()
            listener.stop()
