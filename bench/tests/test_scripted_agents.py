"""Agents without a model score what the formulas predict, on a benchmark of our own and on the
public days.
"""

import json
from pathlib import Path

import pytest

from bench.tests.playing import play, play_day
from bench.tests.small_benchmark import choice, files, write
from metaclaw.plugin import ConfigError
from metaclaw_bench.data import digest, read_benchmark
from metaclaw_bench.defects import Kind, Variant, defects_of, side_by_side, variant_of
from metaclaw_bench.questions import Benchmark
from metaclaw_bench.simulated.file_checks import (
    Backup,
    Files,
    Log,
    Member,
    Metadata,
    Names,
    Target,
    Text,
    Times,
    wants,
)
from metaclaw_bench.simulated.scripted import scripted
from metaclaw_bench.totals import Rate, totals

PICK = "glob.glob('day1/20260105_*.md')"


@pytest.fixture
def small(tmp_path: Path) -> Benchmark:
    days = {
        "day1": [
            choice("r1", "ABCD", "AC"),
            files(
                "r2",
                "python scripts/check_iso8601.py day1/plan.json at steps[].at && python"
                " scripts/check_done_log.py done.log",
            ),
            files(
                "r3",
                f'python -c "import glob,sys; sys.exit(0 if len({PICK})>=1 else 1)" && python'
                " scripts/check_metadata.py "
                f"$(python -c \"import glob; fs=sorted({PICK}); print([f for f in fs if 'tale' in"
                ' f][0])")',
            ),
            files(
                "r4",
                "python scripts/check_backup.py day1/notes.txt && python scripts/check_done_log.py"
                " done.log --min-entries 3",
            ),
            choice("r5", "AB", "B"),
        ]
    }
    return read_benchmark(write(tmp_path, days))


@pytest.fixture
def ticking(tmp_path: Path) -> Benchmark:
    return read_benchmark(
        write(
            tmp_path,
            {
                "day1": [
                    choice("r1", "ABCD", "AC"),
                    choice("r2", "AB", "B"),
                    files("r3", "test -f made"),
                ]
            },
        )
    )


def test_what_a_check_asks_for_is_read_from_its_command() -> None:
    picked = Target("d/2026_*.md", is_pattern=True, keywords=("plan", "week"))
    files_wanted = """python -c "import glob,sys; fs=glob.glob('d/2026_*.md'); sys.exit(0 if len(fs)>=3 else 1)" """
    picking = (
        """$(python -c "import glob; print([f for f in glob.glob('d/2026_*.md')"""
        """ if 'plan' in f or 'week' in f.lower()][0])")"""
    )
    member = """python -c "d=json.load(open('d/t.json')); t=next((x for x in d['ts'] if x['id']=='T-1'),None); t.get('due')" """
    assert wants(f"{files_wanted}&& python scripts/check_metadata.py {picking}") == [
        Files(Target("d/2026_*.md", is_pattern=True), 3),
        Metadata(picked),
    ]
    assert wants(f"{member} && python scripts/check_iso8601.py d/t.json ts[].due at") == [
        Member("d/t.json", "ts", "id", "T-1", ("due",)),
        Times(Target("d/t.json"), ("ts[].due", "at")),
    ]
    assert wants(
        "python scripts/check_filename.py --dir d/ --ext md && python scripts/check_backup.py d/a"
    ) == [
        Names("d/", "md"),
        Backup("d/a"),
    ]
    assert wants("python scripts/check_done_log.py l --min-entries 2 --task-prefix x") == [
        Log("l", 2, "x")
    ]
    assert wants("test -f it") == []
    assert wants(
        "python scripts/check_filename.py --dir=d && echo 'open && python scripts/check_backup.py a"
    ) == [Backup("a")]
    assert wants("""python scripts/check_metadata.py $(python -c "print('a')")""") == []
    looking = """python -c "f=sorted(glob.glob('d/[0-9]*_*sum*.json')); d=json.load(open(f[0])); ok=d.get('at','')" """
    summed = Target("d/[0-9]*_*sum*.json", is_pattern=True)
    assert wants(looking) == [Files(summed), Times(summed, ("at",))]
    assert wants("""python -c "code=open('d/a.py').read(); sys.exit('def f' not in code)" """) == [
        Text("d/a.py", ())
    ]
    assert wants("""python -c "code=open('d/a.py').read(); ok='def f' in code" """) == [
        Text("d/a.py", ("def f",))
    ]


def test_the_oracle_passes_everything_and_the_honest_one_all_that_was_asked_for(
    small: Benchmark,
) -> None:
    assert [score.score for score in play(small, scripted("oracle"))] == [1.0] * 5
    # The last check counts a log entry nobody asked for.
    assert [score.passed for score in play(small, scripted("honest"))] == [
        True,
        True,
        True,
        False,
        True,
    ]


def test_patterns_and_texts_are_filled_with_something_that_fits(tmp_path: Path) -> None:
    looking = (
        "import glob,json,sys; f=glob.glob('day1/[0-9]*_*sum*.json');"
        " sys.exit(json.load(open(f[0])).get('at','')[10:11]!='T')"
    )
    reading = (
        "import re,sys; code=open('day1/a.py').read(); sys.exit(not ('def f' in code and"
        " re.search('T09:30', code)))"
    )
    days = {"day1": [files("r1", f'python -c "{looking}"'), files("r2", f'python -c "{reading}"')]}
    benchmark = read_benchmark(write(tmp_path, days))
    assert [score.passed for score in play(benchmark, scripted("oracle"))] == [True, True]


@pytest.mark.parametrize(
    "code",
    [
        (
            r"import re,sys; s=open('day1/n.md').read(); sys.exit(0 if"
            r" re.search(r'T\d\d:30:00(\.\[0-9\]+)?\+08:00', s) else 1)"
        ),
        (
            "import sys; s=open('day1/n.md').read(); sys.exit(1 if 'AM' in s or 'Monday' in s or"
            " 'plan' not in s else 0)"
        ),
        (
            "import re,sys; s=open('day1/n.md').read(); sys.exit(0 if 'Due' in s and not ('PM' in"
            " s) and re.findall('26-', s) else 1)"
        ),
        (
            "import json,sys; d=json.load(open('day1/t.json')); sys.exit(not all(t.get('due') and"
            " t['by']=='me' for t in d['ts']))"
        ),
        (
            "import json,sys; d=json.load(open('day1/t.json')); sys.exit(0 if d['state']=='done'"
            " and d.get('at') else 1)"
        ),
    ],
)
def test_the_oracle_finds_contents_for_checks_whose_code_it_cannot_read_in_full(
    tmp_path: Path, code: str
) -> None:
    benchmark = read_benchmark(write(tmp_path, {"day1": [files("r1", f'python -c "{code}"')]}))
    (day,) = benchmark.days
    assert day.folder is not None
    (day.folder / "t.json").write_text('{"ts": [{"id": 1}, {"id": 2, "due": ""}], "state": "open"}')
    assert [score.passed for score in play(benchmark, scripted("oracle"))] == [True]
    assert [score.passed for score in play(benchmark, scripted("mute"))] == [False]


def test_the_late_learner_breaks_each_rule_once_and_never_goes_back(small: Benchmark) -> None:
    late = scripted("late")
    assert [score.passed for score in play(small, late)] == [True, False, False, False, True]
    again = play_day(small, small.days[0], late)
    assert [score.passed for score in again] == [True, True, True, False, True]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("all", [0.5, 0.5]),
        ("first", [0.75, 0.0]),
        ("drop1", [0.75, 0.0]),
        ("extra", [0.75, 0.5]),
        ("complement", [0.0, 0.0]),
        ("mute", [0.0, 0.0]),
    ],
)
def test_ticking_agents_get_what_the_formula_gives(
    ticking: Benchmark, name: str, expected: list[float]
) -> None:
    assert [score.score for score in play(ticking, scripted(name))] == [*expected, 0.0]


def test_tampering_with_the_checkers_passes_nothing(small: Benchmark) -> None:
    assert totals(small, play(small, scripted("tamper"))).files == Rate(0, 3)


def test_an_agent_nobody_wrote_is_named() -> None:
    with pytest.raises(ConfigError, match="'clever'"):
        scripted("clever")


def test_a_benchmark_of_another_name_has_no_known_defects(ticking: Benchmark) -> None:
    assert variant_of(ticking) is None
    both = side_by_side(ticking, play(ticking, scripted("mute")))
    assert both.raw == both.honest
    assert both.excluded == ()


@pytest.fixture(scope="session")
def public(shared: Path) -> Benchmark:
    folder = shared / "bench" / "metaclaw-bench"
    if not folder.is_dir():
        pytest.skip(
            f"no public benchmark at {folder}: set METACLAW_SHARED to a folder that holds"
            " bench/metaclaw-bench"
        )
    return read_benchmark(folder)


def test_known_defects_of_the_public_days_are_theirs(public: Benchmark) -> None:
    assert variant_of(public) is Variant.FULL
    there = {(day.id, asked.id) for day in public.days for asked in day.rounds}
    known = defects_of(public)
    assert {(defect.day, defect.round) for defect in known} <= there
    assert sum(defect.excluded for defect in known) == 11
    assert {defect.kind for defect in known if defect.excluded} == {
        Kind.UNREACHABLE,
        Kind.CONTRADICTION,
    }


def choices(public: Benchmark) -> list[tuple[int, set[str]]]:
    """Options and key of every choice, from the raw files."""
    paths = [public.root / "eval" / day.id / "questions.json" for day in public.days]
    rounds = [
        asked
        for path in paths
        for asked in json.loads(path.read_text())["rounds"]
        if asked["type"] == "multi_choice"
    ]
    return [(len(asked["eval"]["options"]), set(asked["eval"]["answer"])) for asked in rounds]


def only_choices(public: Benchmark) -> Benchmark:
    """The same days without what would start a process."""
    kept = [
        (day, tuple(asked for asked in day.rounds if asked.feedback.options)) for day in public.days
    ]
    days = tuple(
        type(day)(day.id, day.title, day.session, day.opening, rounds, day.folder, day.tags)
        for day, rounds in kept
    )
    return Benchmark(public.name, public.root, days, public.shared, public.checkers)


def test_the_public_choices_score_what_the_formulas_predict(public: Benchmark) -> None:
    known = choices(public)
    predicted = {
        "oracle": len(known),
        "all": sum(len(key) / count for count, key in known),
        "first": sum(1 - len(key ^ {"A"}) / count for count, key in known),
        "drop1": sum(1 - 1 / count for count, key in known if len(key) > 1),
        "extra": sum(1 - (len(key) < count) / count for count, key in known),
        "complement": 0,
        "mute": 0,
    }
    benchmark = only_choices(public)
    for name, expected in predicted.items():
        found = totals(benchmark, play(benchmark, scripted(name)))
        assert found.score == pytest.approx(expected), name
        assert found.planned == len(known)


def test_a_public_day_of_each_kind_is_played_through(public: Benchmark) -> None:
    day = next(day for day in public.days if day.id == "day21")
    assert all(score.passed for score in play_day(public, day, scripted("oracle")))


LATE = {
    **{
        "day01": ["r1", "r5"],
        "day06": ["r1", "r2", "r4", "r7", "r9"],
        "day11": ["r1", "r2"],
        "day12": ["r1"],
    },
    **{"day16": ["r1", "r6", "r7"], "day21": ["r1", "r2", "r4", "r5", "r7", "r9"]},
    # The first file of comma-separated values lies on a day that is not among the twelve, so they
    # are met here.
    **{"day22": ["r1", "r2", "r4", "r5", "r7", "r8", "r10"], "day28": ["r4"]},
}


@pytest.mark.nightly
def test_the_twelve_public_days_come_out_as_described(public: Benchmark) -> None:
    before = digest(public.root)
    oracle = totals(public, play(public, scripted("oracle")))
    assert (oracle.score, oracle.files) == (129, Rate(80, 80))
    # Whoever tampers does nothing else, so what an untouched workspace scores is told as well.
    assert totals(public, play(public, scripted("tamper"))).files == Rate(0, 80)
    defective = read_benchmark(public.root, only=["day01", "day16", "day22"])
    honest = side_by_side(defective, play(defective, scripted("honest")))
    assert (honest.raw.files, honest.honest.files) == (Rate(9, 19), Rate(8, 8))
    failed = [
        (score.day, score.round) for score in play(public, scripted("late")) if not score.passed
    ]
    assert failed == [(day, name) for day, names in LATE.items() for name in names]
    assert digest(public.root) == before
