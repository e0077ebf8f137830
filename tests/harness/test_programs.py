"""Programs of tests: what they print is read once, and all of it."""

from __future__ import annotations

from support.programs import Program


def test_what_a_program_printed_behind_the_line_that_was_read_is_not_lost() -> None:
    with Program("print('open'); print('result')") as program:
        program.process.wait(60)
        assert program.read_line() == "open"
        assert program.ends() == "result\n"
