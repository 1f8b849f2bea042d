"""What a run has drawn is kept piece by piece, exactly, and a torn piece counts as none."""

from pathlib import Path

import pytest
from anyio import run
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.ids import TurnId
from metaclaw.domain.policy import Weights
from metaclaw.domain.training import Rollout
from metaclaw.training.advantages import ScoredGroup
from metaclaw.training.journal import Journal, record_name
from metaclaw.training.records import GroupRecord, StepRecord, moved_prefix

pytestmark = pytest.mark.anyio
logprobs = st.floats(max_value=0.0, allow_nan=False, allow_infinity=False)
rollouts = st.lists(st.tuples(st.integers(0, 49_151), logprobs), min_size=1, max_size=6).map(
    lambda drawn: Rollout(
        tuple(token for token, _ in drawn), tuple(logprob for _, logprob in drawn), "text", True
    )
)
GROUP = ScoredGroup(TurnId("t_1"), (1, 2), (Rollout((1,), (-0.5,), "a", False),), (None,), "key")


@given(st.lists(st.tuples(rollouts, st.none() | st.floats(0, 1)), min_size=1, max_size=4))
def test_what_is_read_back_is_what_was_drawn(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[Rollout, float | None]]
) -> None:
    answers, rewards = zip(*drawn, strict=True)
    group = ScoredGroup(TurnId("t_1"), (3, 4), answers, rewards, "key")

    async def kept_and_found() -> list[ScoredGroup] | None:
        journal = Journal(tmp_path_factory.mktemp("run"))
        await journal.keep("step-00003-piece-00001", [group])
        return await journal.find("step-00003-piece-00001", list[ScoredGroup])

    assert run(kept_and_found) == [group]


async def test_a_value_is_there_after_it_was_kept_and_no_other(tmp_path: Path) -> None:
    await Journal(tmp_path / "run").keep("one", [GROUP])
    journal = Journal(tmp_path / "run")
    assert await journal.find("one", list[ScoredGroup]) == [GROUP]
    assert await journal.find("other", list[ScoredGroup]) is None


async def test_a_torn_value_counts_as_none(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    await journal.keep("one", [GROUP])
    (file,) = tmp_path.glob("*.msgpack")
    file.write_bytes(file.read_bytes()[:-3])
    assert await journal.find("one", list[ScoredGroup]) is None


async def test_what_was_made_once_is_not_made_again(tmp_path: Path) -> None:
    made = []

    async def make() -> int:
        made.append(1)
        return 0

    for _ in range(2):
        assert await Journal(tmp_path).once("number", int, make) == 0
    assert len(made) == 1


async def test_what_older_weights_drew_goes(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    names = [f"step-{step:05d}-piece-00000" for step in range(3)]
    for name in names:
        await journal.keep(name, [GROUP])
    await journal.forget_before(2)
    found = [await journal.find(name, list[ScoredGroup]) for name in names]
    assert found == [None, None, [GROUP]]


def step_record(reward: float, *, moved: bool = True) -> StepRecord:
    return StepRecord(
        [GroupRecord("t_1", "key", reward, 0.0)], reward, moved, [3], 4.0, entropy=float("inf")
    )


async def test_records_stay_when_what_was_drawn_goes_and_are_read_up_to_a_gap(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path / "run")
    records = [step_record(0.25), step_record(0.5, moved=False), step_record(0.75)]
    for step in (0, 1, 2, 4):
        await journal.keep(record_name(step), records[step % 3])
    await journal.forget_before(9)
    assert await journal.records() == records
    await journal.drop_records(1)
    assert await Journal(tmp_path / "run").records() == records[:1]


def test_only_records_of_steps_that_the_weights_have_made_hold() -> None:
    records = [step_record(0.1), step_record(0.2, moved=False), step_record(0.3), step_record(0.4)]
    assert [len(moved_prefix(records, moves)) for moves in range(5)] == [0, 2, 3, 4, 4]


async def test_all_weights_are_told_whatever_their_names(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    first, second = Weights("toy", "a", "b"), Weights("toy", "c")
    await journal.keep("weights-00008-1", first)
    await journal.keep("weights-chosen", second)
    assert await journal.all_weights() == [first, second]
