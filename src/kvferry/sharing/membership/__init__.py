"""How an instance tells a controller what it holds: messages, and the side of the instance.

messages        what is said over the three ports of a controller        messages.py
ControllerLink  the way to one of them, and who may speak on it          controller_link.py
Reporter        registers, reports what `Holdings` say, obeys commands   reporter.py
Backlog         what the reporter has not sent yet, bounded              backlog.py
"""

from __future__ import annotations

from kvferry.sharing.membership.messages import (
    Command,
    HeldIdentity,
    Hits,
    MemoryUsage,
    Peer,
    Quota,
    Renewed,
    Result,
    WorkDone,
)
from kvferry.sharing.membership.reporter import Holdings, Reporter

__all__ = [
    "Command",
    "HeldIdentity",
    "Hits",
    "Holdings",
    "MemoryUsage",
    "Peer",
    "Quota",
    "Renewed",
    "Reporter",
    "Result",
    "WorkDone",
]
