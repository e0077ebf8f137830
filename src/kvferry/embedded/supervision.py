"""A server process that cannot outlive the process that started it.

The server is a child of a small shell, the supervisor, which lives in its own session and reads a
pipe that only we can write. Nothing is ever written: the pipe's end is the message. It comes when
the server is stopped, when we exit and when we are killed with SIGKILL; the supervisor then kills
the server and removes its directory. (PR_SET_PDEATHSIG would be shorter, but it fires when the
*thread* that started the server ends, and setting it needs code between fork and exec, which is
unsafe in a process with threads. And nobody would remove the directory.)

Threads: any. Fork: a child may look, but only the process that started a server can stop it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import weakref
from collections.abc import Sequence
from pathlib import Path

from kvferry.base.errors import StoreError

__all__ = ["SupervisedServer"]

_STOP_TIMEOUT_S = 10.0
_LAST_WORDS_LINES = 8

# $1 is the directory, the rest is the server's command line. Standard output is ours: one line
# with the server's pid, and the next readable event (a line, or the end) says that it is gone.
_SUPERVISOR = """
dir=$1; shift
exec 3<&0 </dev/null
"$@" 3<&- >>"$dir/server.log" 2>&1 &
server=$!
echo "$server"
trap '' PIPE
{ read -r _ <&3; kill -KILL "$server"; } >/dev/null 2>&1 &
exec 3<&-
wait "$server"
echo "ended $?"
wait
rm -rf "$dir"
"""


class SupervisedServer:
    """One server, from now until stop(), collection, our exit or our death.

    ``directory`` becomes ours: it holds the log, server.log, and is removed at the end.
    ``stop()`` kills the server and waits; it may be called any number of times.
    """

    def __init__(self, argv: Sequence[str], directory: str) -> None:
        self.directory = directory
        try:
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _SUPERVISOR, "kvferry-supervisor", directory, *argv],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,  # Ctrl-C in our terminal is ours to handle
            )
        except OSError as error:
            shutil.rmtree(directory, ignore_errors=True)
            raise StoreError(f"cannot start a process: {error}") from error
        _supervised.add(self)
        self.stop = weakref.finalize(self, _stop, self._shell, directory, os.getpid())
        assert self._shell.stdout is not None
        self._news = self._shell.stdout
        self.pid = int(self._news.readline())

    def is_running(self) -> bool:
        """Whether the server lives; one poll, no wait."""
        news = select.poll()  # not select(), which ends at descriptor 1023
        try:
            news.register(self._news, select.POLLIN)
        except ValueError:  # closed: another thread is stopping it
            return False
        return self.stop.alive and not news.poll(0)

    def last_words(self) -> str:
        """The end of the server's log."""
        with contextlib.suppress(OSError):
            log = Path(self.directory, "server.log").read_text(errors="replace")
            return "\n".join(log.rstrip().splitlines()[-_LAST_WORDS_LINES:])
        return ""


_supervised: weakref.WeakSet[SupervisedServer] = weakref.WeakSet()


def _stop(shell: subprocess.Popen[bytes], directory: str, owner_pid: int) -> None:
    if os.getpid() != owner_pid:
        return
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.stdin.close()
    try:
        shell.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        shell.kill()
        shell.wait()
    shell.stdout.close()
    shutil.rmtree(directory, ignore_errors=True)


def _forget_in_child() -> None:
    # A child that kept the pipe open would keep the server of a parent that was killed.
    for server in list(_supervised):
        if server.stop.alive and server._shell.stdin is not None:
            server._shell.stdin.close()
            server._shell.returncode = 0  # not our child: nothing to wait for


os.register_at_fork(after_in_child=_forget_in_child)
