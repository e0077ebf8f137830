"""What a chaos run is to do, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from chaos.journal import Journal
from chaos.watch import Usage

__all__ = ["Plan", "Report"]


@dataclass(frozen=True)
class Plan:
    """What is to be run. Times in seconds."""

    seed: int = 0
    seconds: float = 10.0
    threads: int = 8
    late_s: float = 1.0  # past a deadline that is long, for a machine with other work
    hung_s: float = 15.0


@dataclass
class Report:
    """What came of it."""

    journal: Journal
    outcomes: dict[str, dict[str, int]] = field(default_factory=dict)
    errors: dict[str, dict[str, int]] = field(default_factory=dict)
    blows: dict[str, int] = field(default_factory=dict)
    away_s_max: float = 0.0
    overdue_s_max: float = 0.0
    peaces: int = 0
    pardons: int = 0
    usage: list[Usage] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return sum(sum(counts.values()) for counts in self.outcomes.values())

    def told(self, name: str, plan: Plan) -> str:
        """The report for people, of a run on the stage of that name."""
        lines = [f"{name}: seed {plan.seed}, {plan.threads} threads, {self.journal.now_s():.0f} s"]
        for lane, outcomes in self.outcomes.items():
            lines.append(f"  {lane}: {_counted(outcomes)}")
        lines.append(f"  blows: {_counted(self.blows)}")
        lines.append(
            f"  {self.calls} keys asked for; longest way back {self.away_s_max:.2f} s; latest "
            f"return {self.overdue_s_max:.3f} s past its deadline; {self.peaces} times of peace, "
            f"{self.pardons} pardoned"
        )
        if self.usage:
            lines[-1] += f"; {self.usage[0]!r} -> {self.usage[-1]!r}"
        return "\n".join(lines)


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))
