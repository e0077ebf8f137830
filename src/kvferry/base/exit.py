"""Import this where daemon threads run native code: the interpreter may end before they do.

A thread that comes back from native code to an interpreter that has ended would abort the process.
So the exit is announced, and such threads park; see bindings/gil.hpp.
"""

from __future__ import annotations

import atexit

from kvferry import _native

__all__: list[str] = []


@atexit.register
def _announce() -> None:
    _native.begin_exit()
    _native.await_parked()
