"""Weights are swapped while clients stream: nothing fails, nothing is cut, no answer has two versions in it."""

from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from benchmarks.swaps import Options, judge, run, summarise
from benchmarks.swaps_world import make_adapter
from tests.engine.small import make_small_model

pytestmark = pytest.mark.anyio


@pytest.mark.slow
async def test_two_dozen_swaps_under_load_leave_every_answer_whole_and_by_one_version(folder: Path, tmp_path: Path) -> None:
    small = make_small_model(folder, tmp_path / "small")
    options = Options(small, swaps=24, blocks=3, clients=4, tokens=40, idle_answers=8, threads=1, effect=0.7)
    adapters = [make_adapter(small, tmp_path / str(seed), seed, options.effect) for seed in (0, 1)]
    with anyio.fail_after(300):
        record = await run(options, adapters)
    verdict = judge(options, adapters, record.answers)
    assert (record.failures, record.cut, verdict.mixed) == ([], 0, 0)
    versions = {answer.version for answer in record.answers}
    assert (len(record.load_s), max(versions)) == (25, 25)
    assert len(versions) > 12
    # The check can fail: the other adapter's weights explain none of these answers, nor do an answer's own if it was tampered with.
    assert verdict.others_miss_by > 0.05
    first = record.answers[0]
    swapped = replace(first, version=first.version + 1)
    assert judge(options, adapters, [swapped]).mixed == 1
    facts = summarise(record, verdict)
    assert (facts["swaps"], facts["failed"], facts["answers"]) == (24, 0, len(record.answers))
