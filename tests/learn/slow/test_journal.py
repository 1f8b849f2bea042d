"""What a run has drawn is kept piece by piece, exactly, and a torn piece counts as none."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.batch import Rollout
from metaclaw.domain.ids import TurnId
from metaclaw.learn.slow.journal import Journal, group_of, rollouts_of

logprobs = st.floats(max_value=0.0, allow_nan=False, allow_infinity=False)
rollouts = st.lists(st.tuples(st.integers(0, 49_151), logprobs), min_size=1, max_size=6).map(
    lambda drawn: Rollout(tuple(token for token, _ in drawn), tuple(logprob for _, logprob in drawn), "text", True)
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
        journal.write(step, 0, [group_of(TurnId("t_1"), [Rollout((1,), (-0.5,), "a", True)], [1.0])])
    journal.forget_before(2)
    assert [journal.read(step, 0) is not None for step in range(3)] == [False, False, True]


def test_steps_that_gave_nothing_to_learn_from_are_not_done_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run")
    for step in (0, 2, 3):
        journal.mark_empty(step)
    assert [journal.next_step(applied) for applied in (0, 1, 2)] == [1, 4, 5]
