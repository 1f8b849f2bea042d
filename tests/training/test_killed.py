"""The slow loop's program, killed on the spot at any moment: no turn is lost, and every batch ends
once.
"""

import random
from pathlib import Path

import pytest

from metaclaw.store import BatchState
from tests.training.killed import Story, killed_story


def is_whole(story: Story) -> bool:
    """Every turn that may teach has taught or still may; every batch was finished, and made one
    version, of which alone weights are left."""
    taught = story.taught
    return (
        set(taught) <= story.eligible
        and len(taught) + story.waiting == len(story.eligible)
        and set(story.states) == {BatchState.DONE}
        and not story.left_over
        and story.versions_by_batch.total()
        == story.states[BatchState.DONE]
        == len(story.versions_by_batch)
    )


@pytest.mark.slow
def test_a_program_that_is_killed_again_and_again_loses_no_turn_and_finishes_every_batch_once(
    tmp_path: Path,
) -> None:
    story = killed_story(tmp_path / "killed", turns=24, span_s=0.3, chance=random.Random(5))
    assert story.kills >= 3
    assert (
        story.states[BatchState.DONE] >= 2
    )  # turns of a version that the gate rejected may teach again, and do not count here
    assert is_whole(story), story
