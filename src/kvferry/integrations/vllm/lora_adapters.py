"""What the LoRA adapters of an engine hold: read once for each time that the engine loads one.

    adapters = Adapters(); watch(adapters)
    load = adapters.of(request.lora_request)     None: its requests are computed, not cached
    load.digest, load.is_fit(local_tokens), load.holds()

The name and the path of an adapter do not say what the engine has in its memory: files are
replaced, a branch of the hub moves, a number is used again. So an adapter is read when it is
loaded, and what was read counts for as long as nothing shows that the engine may have something
else. What shows it:

- vLLM's core says that it loads or removes an adapter (`watch`). What is read before such a load
  counts only if its files are the same after it.
- Without that, vLLM loads an adapter in the step of the first request that names it, so the files
  are read when that is asked for.
- vLLM may forget an adapter and load it again without a word, and with `load_inplace` it does so in
  every step. So the files are looked at (not read) with each request and before each save: place,
  size, both times of change, and the number of the file. A writer of a file cannot set the time of
  its last change, and what changed within the grain of that clock is waited out before it is read.

What happens within the milliseconds between a look at the files and vLLM's own reading of them,
where vLLM tells nobody, is not seen.

vLLM's own prefix cache knows an adapter by name and path (0.22.1: by name). Once other weights were
loaded under the same ones it may have KV of both, so a request that it has a part of is then not
fit to be saved: nobody knows of which. One that it has nothing of is.

Threads: the scheduler's, which is that of vLLM's core.
"""

from __future__ import annotations

import functools
import logging
import os
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kvferry.integrations.weights import files_of, fingerprint, hub_place, is_known, place_of

__all__ = ["Adapters", "LoadedAdapter", "watch"]

_log = logging.getLogger("kvferry.integrations.vllm")

# The clock that file systems take their times from is not finer than this.
_GRAIN_S = 0.02
_MARK = "_kvferry_watched"


@dataclass(frozen=True, slots=True)
class _Look:
    """Files as they lie there: of each its name, size, times of change, and number."""

    place: str
    files: tuple[tuple[str, int, int, int, int, int], ...]

    def wait_out(self) -> None:
        """Until a change would have another time than the last one."""
        newest_s = max(file[3] for file in self.files) / 1e9
        if 0 <= time.time() - newest_s < _GRAIN_S:
            time.sleep(_GRAIN_S)


@dataclass(eq=False, slots=True)
class LoadedAdapter:
    """An adapter that the engine has loaded.

    Attributes:
        digest: Of what it holds.
        path: As requests name it.
    """

    digest: str
    path: str
    number: int
    look: _Look
    owner: Adapters
    domain: str

    def holds(self) -> bool:
        """Whether it is what the engine computes with now, as far as can be seen."""
        return self.owner.loads.get(self.number) is self and _look(self.path) == self.look

    def is_fit(self, local_tokens: int) -> bool:
        """Whether a request of which vLLM has so many tokens itself may be loaded and saved."""
        return not local_tokens or self.domain not in self.owner.mixed


class Adapters:
    """The adapters of one engine, by vLLM's numbers.

    Args:
        read: Fingerprint of the files at a path.

    Attributes:
        loads: What is loaded.
        mixed: Domains of vLLM's prefix cache that have had several adapters.
    """

    def __init__(self, read: Callable[[str], str] = fingerprint) -> None:
        self._read = read
        self.loads: dict[int, LoadedAdapter] = {}
        self.mixed: set[str] = set()
        self._digests: dict[str, str] = {}  # the first one of each domain

    def of(self, lora: Any) -> LoadedAdapter | None:
        """The adapter that a request names; None: nobody knows what its KV is computed with."""
        known = self.loads.get(int(lora.lora_int_id))
        if known is None:
            return self._taken(lora, self._seen(lora))
        same = known.path == str(lora.lora_path) and _look(known.path) == known.look
        if not same and getattr(lora, "load_inplace", False):  # it is read again in this step
            return self._taken(lora, self._seen(lora))
        if not same:
            self.mixed.add(_domain(lora))  # vLLM may read them when it needs it again
            if known.digest:  # else it was said
                _warn_once(f"the files of {_shown(lora)} are not those that were loaded")
            return None
        return known

    def loading(self, lora: Any) -> tuple[_Look, str] | None:
        """vLLM is about to load it: what it holds before that; None: unknown."""
        return self._seen(lora, quiet=True) if self._is_new(lora) else None

    def loaded(self, lora: Any, seen: tuple[_Look, str] | None) -> None:
        """vLLM has loaded it, and `seen` is what `loading` said."""
        if not self._is_new(lora):
            return
        look = _look(str(lora.lora_path))
        if look is not None and (seen is None or seen[0] != look) and hub_place(look.place)[1]:
            seen = self._seen(lora)  # the engine has fetched it: a commit does not change
        if seen is None or seen[0] != look:
            why = "cannot be read here" if look is None else "changed while it was loaded"
            _warn_once(f"the files of {_shown(lora)} {why}")
            seen = _Look("", ()), ""  # which nothing is equal to
        self._taken(lora, seen)

    def removed(self, number: int) -> None:
        """vLLM has forgotten it."""
        self.loads.pop(number, None)

    def _is_new(self, lora: Any) -> bool:
        """Whether vLLM reads the files; if not, it goes on with what it has under this number."""
        return int(lora.lora_int_id) not in self.loads or getattr(lora, "load_inplace", False)

    def _seen(self, lora: Any, quiet: bool = False) -> tuple[_Look, str] | None:
        path = os.path.expanduser(str(lora.lora_path))
        look = None if getattr(lora, "tensorizer_config_dict", None) else _look(path)
        if look is not None:
            look.wait_out()
            digest = self._read(path)
            if is_known(digest) and _look(path) == look:
                # Experts that lie in the file in another way are other weights.
                return look, f"{digest} 3d" if getattr(lora, "is_3d_lora_weight", False) else digest
        if not quiet:
            _warn_once(f"the files of {_shown(lora)} cannot be read here")
        return None

    def _taken(self, lora: Any, seen: tuple[_Look, str] | None) -> LoadedAdapter | None:
        number, domain = int(lora.lora_int_id), _domain(lora)
        if seen is None:
            self.loads.pop(number, None)
            self._digests.setdefault(domain, "")
            return None
        look, digest = seen
        if self._digests.setdefault(domain, digest) != digest and domain not in self.mixed:
            self.mixed.add(domain)
            _log.warning(
                "other weights were loaded as %s: of its requests those are not cached of which "
                "vLLM's own cache has a part, because that may be of the weights before; load it "
                "under another name, or reset vLLM's prefix cache",
                _shown(lora),
            )
        load = LoadedAdapter(digest, str(lora.lora_path), number, look, self, domain)
        self.loads[number] = load
        return load


def watch(adapters: Adapters) -> Adapters:
    """Tell `adapters` what the core of vLLM in this process loads and removes, as long as they are.

    This module's only part that needs vLLM.
    """
    from vllm.v1.engine.core import EngineCore

    _watching.add(adapters)
    if not hasattr(EngineCore.add_lora, _MARK):
        EngineCore.add_lora = _watched_add(EngineCore.add_lora)
        EngineCore.remove_lora = _watched_remove(EngineCore.remove_lora)
    return adapters


_watching: weakref.WeakSet[Adapters] = weakref.WeakSet()


def _watched_add(add_lora: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(add_lora)
    def watched(core: Any, lora_request: Any) -> Any:
        seen = [(each, each.loading(lora_request)) for each in list(_watching)]
        result = add_lora(core, lora_request)
        for each, before in seen:
            each.loaded(lora_request, before)
        return result

    setattr(watched, _MARK, True)
    return watched


def _watched_remove(remove_lora: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(remove_lora)
    def watched(core: Any, lora_id: int) -> Any:
        result = remove_lora(core, lora_id)
        for each in list(_watching):
            each.removed(lora_id)
        return result

    return watched


def _look(path: str) -> _Look | None:
    """What lies at the path of an adapter, or in the hub's cache under its name; None: nothing."""
    try:
        place = place_of(os.path.expanduser(path))
        if place is None or (os.getenv("VLLM_USE_MODELSCOPE") and not Path(path).exists()):
            return None  # what another hub has under this name is not known here
        place = place.resolve()
        files = tuple(_looked(file, place) for file in files_of(place))
        return _Look(str(place), files) if files else None
    except (OSError, ValueError):
        return None


def _looked(file: Path, place: Path) -> tuple[str, int, int, int, int, int]:
    seen, name = file.stat(), file.relative_to(place).as_posix()
    return name, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino, seen.st_dev


def _domain(lora: Any) -> str:
    """What vLLM's own cache knows the adapter by."""
    try:
        from vllm.v1.core import kv_cache_utils

        return str(kv_cache_utils._gen_lora_extra_hash_keys(SimpleNamespace(lora_request=lora)))
    except (ImportError, AttributeError):
        return str(lora.lora_name)


def _shown(lora: Any) -> str:
    return f"LoRA adapter {lora.lora_name!r} at {lora.lora_path}"


@functools.cache
def _warn_once(what: str) -> None:
    _log.warning("%s: its requests are not cached", what)
