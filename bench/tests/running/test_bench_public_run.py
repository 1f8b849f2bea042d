"""The public benchmark through agent, tools, proxy, runner and scorer: a script scores there what
it scores by itself.
"""

import json
from pathlib import Path

import pytest

from bench.tests.playing import play
from metaclaw_bench.data import digest, read_benchmark
from metaclaw_bench.records import RoundRecord, read_records
from metaclaw_bench.simulated.scripted import scripted
from tests.cli.program import program


@pytest.fixture(scope="module")
def data(shared: Path) -> Path:
    found = shared / "bench" / "metaclaw-bench"
    if not found.is_dir():
        pytest.skip(
            f"no public benchmark at {found}: set METACLAW_SHARED to the folder that holds bench/"
        )
    return found


@pytest.mark.slow
def test_a_script_scores_through_the_proxy_what_it_scores_by_itself(
    data: Path, tmp_path: Path
) -> None:
    day = read_benchmark(data).days[0].id
    before = digest(data)
    done = program(
        *(
            "bench",
            "metaclaw",
            "--data",
            str(data),
            "--days",
            day,
            "--simulated",
            "--scripted",
            "honest",
        ),
        *("--conditions", "baseline", "--out", str(tmp_path), "--json"),
        timeout_s=300,
    )
    assert done.code == 0, done.err
    expected = play(read_benchmark(data, [day]), scripted("honest"))
    rounds = [
        one
        for one in read_records(tmp_path / "baseline" / "seed-0" / "rounds.jsonl")
        if isinstance(one, RoundRecord)
    ]
    assert [(one.day, one.round, one.score, one.failure) for one in rounds] == [
        (one.day, one.round, one.score, None) for one in expected
    ]
    assert json.loads(done.out)["runs"][0]["simulated"] is True
    assert digest(data) == before
