"""How chunks are encoded for a store, where the settings leave the choice to the link (``auto``).

A load of encoded chunks takes the longer one of two times: their fewer bytes on the link, and the
decoding. So encoding pays where the link is slower than one thread, because others of the machine
compute; and the slower it is, the more computing pays. The link is as fast as the cost model has
seen loads to be. As long as nothing was loaded, chunks are written as they are.

Threads: one at a time.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping
from operator import itemgetter

from kvferry import _native
from kvferry.connectors.serde import CODECS

__all__ = ["Coding", "coder_bytes_s"]

_log = logging.getLogger("kvferry.cache")

# The codecs, the shortest first, each with the share of what one thread encodes or decodes below
# which the link must be for the codec to begin: the time of writing counts as well. Above `_END`
# the link could be quicker than the codec, and the codec ends. In between nothing changes, because
# fewer bytes on the link look like a faster link.
_BEGIN = dict(sorted(((n, share) for n, _, share in _native.codecs() if share), key=itemgetter(1)))
_END = 0.8
_SAMPLE_BYTES = 1 << 20
_ROUNDS = 3


class Coding:
    """Chooses the codec of one store.

    Args:
        name: Of the store, for the log.
        write_as: Tells the connector the codec.
        coders: Says how many bytes a second one thread encodes or decodes by each codec.
    """

    def __init__(
        self,
        name: str,
        write_as: Callable[[str], None],
        coders: Callable[[], Mapping[str, float]] | None = None,
    ) -> None:
        self._name, self._write_as = name, write_as
        self._coders = coders or coder_bytes_s
        self.serde = "naive"

    def choose(self, seen_bytes_s: float) -> None:
        """The codec of what is written next, by `seen_bytes_s` of loads; 0: nothing was loaded."""
        if not seen_bytes_s:
            return
        serde = next((each for each in _BEGIN if self._pays(each, seen_bytes_s)), "naive")
        if serde != self.serde:
            self.serde = serde
            self._write_as(serde)
            _log.info(
                "%s: chunks are written as %s from now on; loads came with %.2f GB/s",
                self._name,
                serde,
                seen_bytes_s / 1e9,
            )

    def _pays(self, serde: str, seen_bytes_s: float) -> bool:
        share = seen_bytes_s / self._coders()[serde]
        return share < (_END if serde == self.serde else _BEGIN[serde])


@functools.cache
def coder_bytes_s() -> Mapping[str, float]:
    """What one thread of this machine encodes or decodes, whichever is slower, by each codec;
    measured once in some milliseconds."""
    import numpy as np  # its threads would take the signals of a server that has not masked them

    numbers = np.random.default_rng(0).standard_normal(_SAMPLE_BYTES // 2, np.float32)
    content = (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    payload, back = np.zeros(2 * content.size, np.uint8), np.zeros_like(content)
    bytes_s: dict[str, float] = {}
    for serde in _BEGIN:
        encode_s = decode_s = float("inf")
        for _ in range(_ROUNDS):
            began = time.perf_counter()
            length = _native.encode_value(CODECS[serde], content, payload)
            encoded = time.perf_counter()
            _native.decode_value(payload[:length], back)
            encode_s = min(encode_s, encoded - began)
            decode_s = min(decode_s, time.perf_counter() - encoded)
        bytes_s[serde] = content.size / max(encode_s, decode_s)
    return bytes_s
