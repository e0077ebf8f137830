"""A controller without its HTTP: what it knows, and the thread that hears the instances.

    controller = Controller(ControllerConfig.load())
    controller.start()          # or UnavailableError: a port is taken
    controller.ports            # {"pull": 8300, "reply": 8400, "heartbeat": 8082}
    controller.stop()

Where the settings name a tokenizer, prompts may be texts (`Tokenizer`).
"""

from __future__ import annotations

import os
import threading
import time
from array import array

from kvferry.base.errors import ConfigError, UnavailableError
from kvferry.base.local_secret import local_secret
from kvferry.config import ClientConfig
from kvferry.config.controller import ControllerConfig
from kvferry.sharing.controller.jobs import Jobs
from kvferry.sharing.controller.journal import Journal
from kvferry.sharing.controller.members import Members
from kvferry.sharing.controller.ports import Ports
from kvferry.sharing.controller.prefixes import Prefixes
from kvferry.sharing.controller.quotas import Quotas
from kvferry.sharing.controller.shared_directory import SharedDirectory

__all__ = ["Controller", "Tokenizer"]


class Controller:
    """What a controller knows, and the thread of its ports. Threads: any.

    Args:
        config: Where it listens, and its limits.

    Raises:
        ConfigError: The tokenizer cannot be used, or there is no secret.

    Attributes:
        members: Who lives, and what each holds.
        jobs: What instances are asked to do.
        quotas: What instances may hold.
        journal: What happened.
        prefixes: Which prefixes were asked for.
        shared: What other controllers know; None: there are no others.
        tokenizer: For texts; None: only tokens and hashes are understood.
        ending: Set by whoever is about to end the controller, so that streams of HTTP end.
    """

    def __init__(self, config: ControllerConfig) -> None:
        self.config = config
        if not config.secret:
            local_secret()  # without it nobody could register
        self.journal = Journal()
        self.members = Members(
            self.journal,
            suspect_s=config.tuning.suspect_s,
            dead_s=config.tuning.dead_s,
        )
        self.jobs = Jobs(self.journal)
        self.quotas = Quotas(self.journal)
        self.prefixes = Prefixes()
        self.tokenizer = Tokenizer(config.tokenizer_file) if config.tokenizer_file else None
        self.started = time.time()
        self.ending = threading.Event()
        self.shared: SharedDirectory | None = None
        if config.directory is not None:
            store = ClientConfig.from_url(config.directory)
            parts = (self.members, self.jobs, self.quotas)
            self.shared = SharedDirectory(store, config.tuning.heartbeat_s, *parts)
        self._ports = Ports(config, self.members, self.jobs, self.quotas, self.shared)

    @property
    def ports(self) -> dict[str, int]:
        """Where instances connect, by name."""
        return dict(self._ports.ports)

    @property
    def counts(self) -> dict[str, int]:
        """Connections now; messages, refusals, gaps and deaths so far."""
        return {**self._ports.counts, **self.members.counts}

    def start(self) -> None:
        """Listen to instances.

        Raises:
            UnavailableError: A port is taken; the text says which.
        """
        if self.shared is not None:
            self.shared.start()
        try:
            self._ports.open()
        except UnavailableError:
            if self.shared is not None:
                self.shared.stop()
            raise

    def stop(self) -> None:
        """End all connections, and the thread."""
        if self.shared is not None:
            self.shared.stop()
        self._ports.close()


class Tokenizer:
    """A tokenizer.json of Hugging Face. Threads: any.

    Args:
        path: The file.

    Raises:
        ConfigError: It cannot be read, or the package `tokenizers` is not installed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            import tokenizers
        except ImportError:
            text = "tokenizer_file needs the package tokenizers: pip install tokenizers"
            raise ConfigError(text) from None
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(os.fspath(path))
        except Exception as error:  # it raises no narrower kind
            raise ConfigError(f"tokenizer_file: {path} is no tokenizer: {error}") from None

    def tokens(self, text: str) -> array[int]:
        """Of a prompt, with what the tokenizer puts around each."""
        return array("q", self._tokenizer.encode(text).ids)
