"""How an instance tells a controller what it holds: messages, and the side of the instance.

messages      what is said over the three ports of a controller        messages.py
framing       how messages lie on a connection, and who may speak       framing.py
Reporter      a thread that registers, reports and takes commands      reporter.py
Backlog       what the reporter has not sent yet, bounded              backlog.py
Holdings      what the reporter needs of a cache                       holdings.py
facts         what messages have in them                               facts.py
"""

from __future__ import annotations

from kvferry.sharing.membership.messages import Command, Hits, Peer, Quota, Renewed, Result
from kvferry.sharing.membership.reporter import (
    HeldIdentity,
    Holdings,
    MemoryUsage,
    Reporter,
    WorkDone,
)

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
