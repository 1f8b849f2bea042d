"""The records of answers in progress: bounded each and together, cut at the largest, and whole
where they must be.
"""

import pytest

from metaclaw.proxy.answer_record import (
    MAX_RECORD_BYTES,
    AnswerRecord,
    RecordBudget,
    RecordTooLongError,
)

MIB = 1024 * 1024


def filled(budget: RecordBudget, size: int, *, must_be_whole: bool = False) -> AnswerRecord:
    record = AnswerRecord(budget, must_be_whole=must_be_whole)
    for _ in range(size // 65536):
        record.add(b"x" * 65536)
    return record


@pytest.mark.parametrize("piece", [1000, 300_007])
def test_a_record_keeps_the_beginning_and_for_a_while_the_end(piece: int) -> None:
    record, said = (
        AnswerRecord(RecordBudget()),
        b"".join(b"%09d\n" % number for number in range(1_800_000)),
    )
    for at in range(0, len(said), piece):
        record.add(said[at : at + piece])
    begin, end = record.edges()
    assert (record.is_cut, record.size, record.kept()) == (True, len(said), said[:MAX_RECORD_BYTES])
    assert said.startswith(begin)
    assert said.endswith(end)
    assert 64 * 1024 <= len(end) < 2 * 64 * 1024


def test_a_record_that_must_be_whole_is_refused_instead_of_cut() -> None:
    record = filled(RecordBudget(), MAX_RECORD_BYTES, must_be_whole=True)
    assert not record.has_room(1)
    with pytest.raises(RecordTooLongError):
        record.add(b"x")


def test_the_largest_records_are_cut_when_all_together_take_too_much() -> None:
    budget = RecordBudget(12 * MIB)
    small, whole = filled(budget, 2 * MIB), filled(budget, 4 * MIB, must_be_whole=True)
    large = filled(budget, 8 * MIB)
    assert (small.is_cut, whole.is_cut, large.is_cut) == (False, False, True)
    assert len(large.kept()) == MIB
    assert large.size == 8 * MIB
    with pytest.raises(RecordTooLongError):
        filled(budget, 10 * MIB, must_be_whole=True)
    small.release()
    large.release()
    whole.release()


def test_a_record_that_was_cut_at_its_own_limit_can_be_cut_again() -> None:
    budget = RecordBudget(18 * MIB)
    first = filled(budget, MAX_RECORD_BYTES + 65536)
    first.add(b"the end")
    second = filled(budget, 4 * MIB)
    assert (len(first.kept()), second.is_cut) == (MIB, False)
    assert first.edges()[1].endswith(b"xxthe end")
