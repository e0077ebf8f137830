"""A child process of clients that mean no good: ``... PORT KIND COUNT SECONDS``.

Kinds: ``silent`` says nothing; ``greedy`` asks for values and texts and reads nothing; ``slow``
sends large values a little at a time. Who loses his connection comes again. Prints one line when
all are there, and how many connections were lost at the end.
"""

from __future__ import annotations

import random
import socket
import sys
import time

_PAUSE_S = 0.05
_VALUE_BYTES = 40 << 20
_TEXTS = (b"COMMAND DOCS\r\n", b"SCAN 0 COUNT 16384\r\n", b"INFO\r\n", b"KEYS *\r\n")


class Hostile:
    """One of them."""

    def __init__(self, port: int, kind: str) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.connect(("127.0.0.1", port))
        self._socket.setblocking(False)
        self._words = b"GET old%d\r\n" % random.randrange(16) * 20
        if random.randrange(2):
            self._words = random.choice(_TEXTS) * 20
        if kind == "slow":
            self._words = b"x" * 3000
            key = b"slow%d" % random.randrange(16)
            head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, _VALUE_BYTES)
            self._socket.send(head)
        self._silent = kind == "silent"

    def go_on(self) -> bool:
        """Do what it does; false: the connection is over."""
        try:
            if not self._silent:
                self._socket.send(self._words)
            elif not self._socket.recv(1):
                return False
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Go away."""
        self._socket.close()


def main(port: int, kind: str, count: int, seconds: float) -> None:
    """Be so many of a kind for so long."""
    end = time.monotonic() + seconds
    all_of_them = [Hostile(port, kind) for _ in range(count)]
    print("there", flush=True)
    lost = 0
    while time.monotonic() < end:
        for index, one in enumerate(all_of_them):
            if one.go_on():
                continue
            lost += 1
            one.close()
            try:
                all_of_them[index] = Hostile(port, kind)
            except OSError:
                continue
        time.sleep(_PAUSE_S)
    print(lost, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
