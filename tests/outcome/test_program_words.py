"""The tables of `programs.toml` that are searched in outputs: every entry is found in what it is
meant for, and in nothing else.
"""

import tomllib
from pathlib import Path

import pytest

from metaclaw.outcome.phrases import ProgramWords, programs_of
from tests.outcome.steps import bash, edit, heard, past, ran, step
from tests.support.cases import each

TABLES = (
    *("fault_network", "fault_service", "fault_machine", "fault_program", "fault_refused"),
    *("fault_certificate", "fault_credentials"),
    *("schema", "hangs", "note_schema", "note_edit", "timed_out"),
)
ENTRIES = sorted({entry for table in TABLES for entry in programs_of(table)})
OUTPUTS = tomllib.loads(
    (Path(__file__).parent / "program_outputs.toml").read_text(encoding="utf-8")
)
FAULTS, ORDINARY = (OUTPUTS[kind].strip().lower().splitlines() for kind in ("faults", "ordinary"))


@each("entry", ENTRIES)
def test_an_entry_is_found_in_a_real_output_and_in_no_ordinary_one(entry: str) -> None:
    words, bare = ProgramWords(entry), entry.rstrip("*")
    assert any(words.find(line) == bare for line in FAULTS)
    assert [line for line in ORDINARY if words.find(line)] == []
    for glued in (f"x{bare}", f"x_{bare} now", f"_{bare}:", f"{bare}x_{bare}x"):
        assert words.find(glued) == (
            bare if entry.endswith("*") and not glued.startswith(("x", "_")) else None
        )
    for apart in (
        f"\x1b[31m{bare}\x1b[0m",
        f'{{"output": "failed\\n{bare}\\n"}}',
        f"({bare})",
        f"x{bare} {bare}",
    ):
        assert words.find(apart) == bare


@pytest.mark.parametrize(
    "output",
    [
        (
            'Traceback (most recent call last):\n  File "a.py", line 1\nModuleNotFoundError: No'
            " module named 'shop.cart'"
        ),
        (
            'Traceback (most recent call last):\n  File "a.py", line 1\nFileNotFoundError: [Errno'
            " 2] No such file or directory: 'a'"
        ),
    ],
)
def test_an_import_or_a_file_that_is_not_there_is_no_fault_of_the_network(output: str) -> None:
    assert heard(step("run it", "Running.", bash("python a.py", output, 1))) == {"exception.raised"}


def test_an_edit_of_a_file_named_after_errors_went_in() -> None:
    went_in = ran("Edit", {"file_path": "src/error.py"}, "The file src/error.py has been updated.")
    test = ("pytest", "1 failed", 1)
    history = past(bash(*test), went_in)
    assert "repeat.same" not in heard(step("fix it", "Trying.", bash(*test), history=history))
    assert "repeat.same" in heard(
        step("fix it", "Trying.", bash(*test), history=past(edit(), bash(*test)))
    )


def test_a_word_that_is_only_a_part_of_the_tasks_words_is_not_shouted() -> None:
    assert "correction" not in str(
        heard(step("Make another notebook.", "Done.", said="the tests are NOT for this machine"))
    )
