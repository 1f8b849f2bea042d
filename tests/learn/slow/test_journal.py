"""What a run has drawn is kept piece by piece, exactly, and a torn piece counts as none."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.ids import TurnId
from metaclaw.domain.policy import Weights
from metaclaw.domain.training import PieceStats, Rollout
from metaclaw.learn.slow.journal import Journal, Measured, group_of, rollouts_of
from metaclaw.train.records import GroupRecord, StepRecord, moved_prefix

logprobs = st.floats(max_value=0.0, allow_nan=False, allow_infinity=False)
rollouts = st.lists(st.tuples(st.integers(0, 49_151), logprobs), min_size=1, max_size=6).map(
    lambda drawn: Rollout(
        tuple(token for token, _ in drawn), tuple(logprob for _, logprob in drawn), "text", True
    )
)


@given(st.lists(st.tuples(rollouts, st.none() | st.floats(0, 1)), min_size=1, max_size=4))
def test_what_is_read_back_is_what_was_drawn(drawn: list[tuple[Rollout, float | None]]) -> None:
    group = group_of(TurnId("t_1"), [one for one, _ in drawn], [reward for _, reward in drawn])
    assert rollouts_of(group) == [one for one, _ in drawn]
    assert [one.reward for one in group.drawn] == [reward for _, reward in drawn]


def test_a_piece_is_there_after_it_was_written_and_no_other(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run")
    group = group_of(TurnId("t_1"), [Rollout((1, 2), (-0.5, -0.25), "ab", False)], [None])
    journal.write(3, 1, [group])
    assert Journal(tmp_path / "run").read(3, 1) == [group]
    assert journal.read(3, 0) is None
    assert journal.read(2, 1) is None


def test_a_torn_piece_counts_as_none(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(0, 0, [group_of(TurnId("t_1"), [Rollout((1,), (-0.5,), "a", True)], [1.0])])
    (file,) = tmp_path.glob("*.msgpack")
    file.write_bytes(file.read_bytes()[:-3])
    assert journal.read(0, 0) is None


def test_what_older_weights_drew_goes(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for step in range(3):
        journal.write(
            step, 0, [group_of(TurnId("t_1"), [Rollout((1,), (-0.5,), "a", True)], [1.0])]
        )
    journal.forget_before(2)
    assert [journal.read(step, 0) is not None for step in range(3)] == [False, False, True]


def step_record(reward: float, *, moved: bool = True) -> StepRecord:
    return StepRecord(
        [GroupRecord("t_1", "key", reward, 0.0)], reward, moved, [3], 4.0, entropy=float("inf")
    )


def test_records_stay_when_what_was_drawn_goes_and_are_read_up_to_a_gap(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run")
    records = [step_record(0.25), step_record(0.5, moved=False), step_record(0.75)]
    for step in (0, 1, 2, 4):
        journal.keep_record(step, records[step % 3])
    journal.forget_before(9)
    assert journal.records() == records
    journal.drop_records(1)
    assert Journal(tmp_path / "run").records() == records[:1]


def test_only_records_of_steps_that_the_weights_have_made_hold() -> None:
    records = [step_record(0.1), step_record(0.2, moved=False), step_record(0.3), step_record(0.4)]
    assert [len(moved_prefix(records, moves)) for moves in range(5)] == [0, 2, 3, 4, 4]


def test_weights_and_what_was_found_of_them_are_told_by_name(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    first, second = Weights("toy", "a", "b"), Weights("toy", "c")
    journal.keep_weights("00008-1", first)
    journal.keep_weights("00012-1", second)
    journal.keep_measured("00008-1", Measured(0.5, 0.25))
    assert (journal.weights("00008-1"), journal.weights("00004-1")) == (first, None)
    assert journal.all_weights() == [first, second]
    assert journal.measured("00008-1") == Measured(0.5, 0.25)
    journal.keep_stats(3, [PieceStats(7, kl=0.5)])
    assert (journal.stats(3), journal.stats(4)) == ([PieceStats(7, kl=0.5)], [])
