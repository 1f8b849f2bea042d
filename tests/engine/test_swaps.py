"""Weights are swapped while clients stream: nothing fails, nothing is cut, no answer has two
versions in it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from benchmarks.swaps import Options, judge, run, summarise
from benchmarks.swaps_world import Record, make_adapter
from tests.engine.small import make_small_model
from tests.support.depth import tries

pytestmark = pytest.mark.anyio
_PATIENCE_S = 120
"""How long nothing may happen: a busy machine makes everything slow, but only a hang stops
everything.
"""


@asynccontextmanager
async def _making_progress(record: Record) -> AsyncIterator[None]:
    """Raise TimeoutError once neither an answer nor a load has ended for `_PATIENCE_S`."""

    async def extend() -> None:
        seen = (0, 0)
        while True:
            if (now := (record.ended, len(record.load_s))) != seen:
                seen, scope.deadline = now, anyio.current_time() + _PATIENCE_S
            await anyio.sleep(0.5)

    with anyio.fail_after(_PATIENCE_S) as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(extend)
            yield
            group.cancel_scope.cancel()


@pytest.mark.slow
async def test_swaps_under_load_leave_every_answer_whole_and_by_one_version(
    folder: Path, tmp_path: Path
) -> None:
    small = make_small_model(folder, tmp_path / "small")
    swaps = tries(8, nightly=24)
    options = Options(
        small, swaps=swaps, blocks=3, clients=4, tokens=40, idle_answers=8, threads=1, effect=0.7
    )
    adapters = [make_adapter(small, tmp_path / str(seed), seed, options.effect) for seed in (0, 1)]
    record = Record()
    async with _making_progress(record):
        await run(options, adapters, record)
    with anyio.fail_after(_PATIENCE_S):
        verdict = await anyio.to_thread.run_sync(
            judge, options, adapters, record.answers, abandon_on_cancel=True
        )
    assert (record.failures, record.cut, verdict.mixed) == ([], 0, 0)
    versions = {answer.version for answer in record.answers}
    assert (len(record.load_s), max(versions)) == (swaps + 1, swaps + 1)
    assert len(versions) > swaps / 2
    # The check can fail: the other adapter's weights explain none of these answers, nor do an
    # answer's own if it was tampered with.
    assert verdict.others_miss_by > 0.05
    first = record.answers[0]
    swapped = replace(first, version=first.version + 1)
    assert judge(options, adapters, [swapped]).mixed == 1
    facts = summarise(record, verdict)
    assert (facts["swaps"], facts["failed"], facts["answers"]) == (swaps, 0, len(record.answers))
