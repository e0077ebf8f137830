"""How chunks are written to a store where the settings leave that to the link (``auto``).

A load of encoded chunks takes the longer one of two times: their fewer bytes on the link, and the
decoding. So encoding pays where the link is slower than a decoder. The link is as fast as the cost
model has seen loads to be; the decoder is one thread, because others of the machine compute. As
long as nothing was loaded, chunks are written as they are.

Threads: one at a time.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable

from kvferry import _native

__all__ = ["Coding", "decode_bytes_s"]

_log = logging.getLogger("kvferry.cache")

# Of what a thread decodes: a link below the first share gets encoded chunks. When encoded ones come
# faster than the second, the link could be quicker than the decoder, and they are naive again; in
# between nothing changes, for then a quarter less on the link is seen as a link that is faster.
_BEGIN, _END = 0.5, 0.8
_SAMPLE_BYTES = 1 << 20
_ROUNDS = 3


class Coding:
    """Chooses for one store.

    Args:
        name: Of the store, for the log.
        write_as: Tells the connector.
        decoder_bytes_s: What one thread decodes.
    """

    def __init__(
        self,
        name: str,
        write_as: Callable[[str], None],
        decoder_bytes_s: Callable[[], float] | None = None,
    ) -> None:
        self._name, self._write_as = name, write_as
        self._decoder_bytes_s = decoder_bytes_s or decode_bytes_s
        self.serde = "naive"

    def choose(self, seen_bytes_s: float) -> None:
        """For what is written next; `seen_bytes_s`: how fast loads came, 0 before the first."""
        if not seen_bytes_s:
            return
        share = seen_bytes_s / self._decoder_bytes_s()
        coded = share < (_BEGIN if self.serde == "naive" else _END)
        serde = "split12" if coded else "naive"
        if serde != self.serde:
            self.serde = serde
            self._write_as(serde)
            _log.info(
                "%s: chunks are written as %s from now on; loads came with %.2f GB/s",
                self._name,
                serde,
                seen_bytes_s / 1e9,
            )


@functools.cache
def decode_bytes_s() -> float:
    """What one thread of this machine decodes, measured once in some milliseconds."""
    import numpy as np  # its threads would take the signals of a server that has not masked them

    numbers = np.random.default_rng(0).standard_normal(_SAMPLE_BYTES // 2, np.float32)
    content = (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    payload, back = np.zeros(2 * content.size, np.uint8), np.zeros_like(content)
    length = _native.encode_value(1, content, payload)
    took_s = float("inf")
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        _native.decode_value(payload[:length], back)
        took_s = min(took_s, time.perf_counter() - began)
    return content.size / took_s
