"""Jobs of a controller, on a clock of the test."""

from __future__ import annotations

import pytest

from kvferry.base.errors import CapacityError
from kvferry.sharing.controller.jobs import Jobs, Step
from kvferry.sharing.controller.journal import Journal
from kvferry.sharing.membership.messages import Command, Result

ONE, TWO = ("one", 0), ("two", 0)
PREFETCH, DELETE = Command("-", "prefetch"), Command("-", "delete")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def answer(jobs: Jobs, key: tuple[str, int], ok: bool = True, text: str = "") -> list[str]:
    """Do what a member is asked for; the actions."""
    commands = jobs.commands(key)
    jobs.results(key, [Result(one.job, ok, 3, text) for one in commands])
    return [one.action for one in commands]


def test_steps_follow_each_other_and_each_command_is_said_once() -> None:
    jobs = Jobs(Journal())
    job = jobs.start("move", [Step(PREFETCH, [TWO]), Step(DELETE, [ONE])])
    assert answer(jobs, ONE) == []  # not before the copy is there
    assert answer(jobs, TWO) == ["prefetch"]
    assert answer(jobs, TWO) == []
    assert job.state == "running"
    assert answer(jobs, ONE) == ["delete"]
    assert (job.state, job.chunks) == ("done", 3)


def test_a_step_waits_for_all_of_its_members() -> None:
    jobs = Jobs(Journal())
    job = jobs.start("delete", [Step(DELETE, [ONE, TWO])])
    answer(jobs, ONE)
    assert job.shown()["waits_for"] == ["two/0"]
    answer(jobs, TWO)
    assert (job.state, job.chunks) == ("done", 6)


@pytest.mark.parametrize("how", ["refused", "gone", "silent"])
def test_a_copy_that_fails_deletes_nothing(how: str) -> None:
    clock = Clock()
    jobs = Jobs(Journal(), clock)
    job = jobs.start("move", [Step(PREFETCH, [TWO]), Step(DELETE, [ONE])])
    if how == "refused":
        answer(jobs, TWO, False, "no room")
    elif how == "gone":
        jobs.gone(TWO)
    else:
        late = jobs.commands(TWO)
        clock.now = 1000.0
        jobs.tick()
        jobs.results(TWO, [Result(one.job, True, 3) for one in late])
    assert job.state == "failed"
    assert job.text
    assert answer(jobs, ONE) == []


def test_answers_of_others_and_second_ones_do_not_count() -> None:
    jobs = Jobs(Journal())
    job = jobs.start("delete", [Step(DELETE, [ONE])])
    (command,) = jobs.commands(ONE)
    jobs.results(TWO, [Result(command.job, True, 3)])
    assert job.state == "running"
    for _ in range(2):
        jobs.results(ONE, [Result(command.job, True, 3)])
    assert (job.state, job.chunks) == ("done", 3)


def test_what_waits_for_a_member_is_limited() -> None:
    jobs = Jobs(Journal())
    for _ in range(256):
        jobs.start("delete", [Step(DELETE, [ONE])])
    with pytest.raises(CapacityError):
        jobs.start("delete", [Step(DELETE, [ONE])])
    assert len(jobs.commands(ONE)) == 16
