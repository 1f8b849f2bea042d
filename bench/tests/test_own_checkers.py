"""Our five checkers say what the published ones say, their looseness included."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from metaclaw_bench.workspaces import OWN_CHECKERS

TIME = "2026-03-16T09:30:00+08:00"
# One process for a whole table: starting Python is what a check costs.
DRIVER = """
import json, runpy, sys
codes = []
for name, *arguments in json.load(sys.stdin):
    sys.argv = [name, *arguments]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        codes.append(0)
    except SystemExit as end:
        codes.append(end.code if isinstance(end.code, int) else 0 if end.code is None else 1)
    except Exception:
        codes.append(1)
print(json.dumps(codes))
"""


def exits(folder: Path, name: str, calls: list[list[str]]) -> list[int]:
    """How the checker ends, for each of the calls."""
    cases = [[str(OWN_CHECKERS / f"check_{name}.py"), *call] for call in calls]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        cwd=folder,
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=True,
    )
    codes: list[int] = json.loads(done.stdout)
    return codes


def expect(folder: Path, name: str, table: list[tuple[list[str], int]]) -> None:
    codes = exits(folder, name, [call for call, _ in table])
    assert [(call, code) for (call, _), code in zip(table, codes, strict=True)] == table


def put(folder: Path, contents: dict[str, str]) -> None:
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def test_times_are_full_and_have_the_offset(tmp_path: Path) -> None:
    good = {
        "at": TIME,
        "fraction": "2026-03-16T09:30:00.5+08:00",
        "deep": {"er": TIME},
        "all": [{"at": TIME}, {"at": TIME}],
    }
    bad: dict[str, object] = {
        "day": "2026-03-16",
        "utc": "2026-03-16T09:30:00Z",
        "none": None,
        "number": 5,
        "all": [{"at": TIME}, {"at": ""}],
        "lacks": [{}],
    }
    put(
        tmp_path,
        {
            "good.json": json.dumps(good),
            "bad.json": json.dumps(bad),
            "no.json": "{",
            "list.json": f'[{{"at": "{TIME}"}}]',
        },
    )
    expect(
        tmp_path,
        "iso8601",
        [
            (["good.json", "at", "fraction", "deep.er", "all[].at"], 0),
            *(
                (["bad.json", field], 1)
                for field in (
                    "day",
                    "utc",
                    "none",
                    "number",
                    "all[].at",
                    "lacks[].at",
                    "absent",
                    "day.x",
                )
            ),
            (["no.json", "at"], 1),
            (["absent.json", "at"], 1),
            (["list.json", "at"], 1),
            (["good.json"], 2),
        ],
    )


def test_times_are_loose_where_the_published_checker_is(tmp_path: Path) -> None:
    loose: dict[str, object] = {
        "empty": [],
        "impossible": "2026-99-99T99:99:99+08:00",
        "line": TIME + "\n",
        "nothing": None,
        "text": "ab",
    }
    put(tmp_path, {"x.json": json.dumps(loose), "e.json": "{}"})
    expect(
        tmp_path,
        "iso8601",
        [
            (["e.json", "tasks[].at"], 0),
            (["x.json", "empty[].at"], 0),
            (["x.json", "impossible"], 0),
            (["x.json", "line"], 0),
            (["x.json", "nothing[].at"], 1),
            (["x.json", "text[].at"], 1),
        ],
    )


def test_names_are_counted_by_their_form_alone(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            f"d/{name}": ""
            for name in (
                "20260316_a.md",
                "99999999_b_2.md",
                "20260316_A.md",
                "2026_c.md",
                "20260316_1.md",
                "20260316_j.json",
            )
        },
    )
    expect(
        tmp_path,
        "filename",
        [
            (["--dir", "d/", "--ext", "md", "--min-count", "2"], 0),
            (["--dir", "d/", "--ext", "md", "--min-count", "3"], 1),
            (["--dir", "d", "--ext", ".json"], 0),
            (["--dir", "d", "--ext", "csv"], 1),
            (["--dir", "nowhere", "--ext", "md"], 1),
            (["d/20260316_a.md"], 0),
            (["d/20260316_A.md"], 1),
            (["--dir", "d"], 2),
        ],
    )


LINES = f"created_at: {TIME}\nauthor: somebody\nstatus: done"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "x.md",
            [f"---\n{LINES}\n---\nText"],
            [
                LINES,
                f"---\n{LINES}\n",
                f"---\n{LINES.replace('done', 'ready')}\n---\n",
                f"---\ncreated_at: '{TIME}'\nauthor: a\nstatus: done\n---\n",
                f"---\ncreated_at: {TIME}\nauthor:\nstatus: done\n---\n",
            ],
        ),
        (
            "x.json",
            [json.dumps({"meta": {"created_at": TIME, "author": "a", "status": "pending"}})],
            [
                json.dumps({"created_at": TIME, "author": "a", "status": "done"}),
                json.dumps({"meta": {"created_at": "2026-03-16", "author": "a", "status": "done"}}),
                json.dumps({"meta": {"created_at": TIME, "author": "a", "status": "ready"}}),
                json.dumps({"meta": {"created_at": TIME, "status": "done"}}),
                "[]",
            ],
        ),
        (
            "x.py",
            [
                f'"""What.\n\nMeta:\n  {LINES}\n"""\n',
                f'x = 1\n"""Meta:\n{LINES.replace("done", "anything")}"""',
            ],
            [
                f"'''Meta:\n{LINES}\n'''\n",
                f'"""What.\n\n{LINES}\n"""\n',
                f'"""Meta:\n\n{LINES}\n"""\n',
            ],
        ),
        (
            "x.csv",
            [f"# meta: created_at={TIME} author=a status=anything\nh\n"],
            [
                f"h\n# meta: created_at={TIME} author=a status=done\n",
                f"# meta: created_at={TIME}, author=a, status=done\n",
                "",
            ],
        ),
        ("x.yaml", [], [LINES]),
    ],
)
def test_metadata_are_told_in_the_way_of_each_kind_of_file(
    tmp_path: Path, name: str, good: list[str], bad: list[str]
) -> None:
    put(tmp_path, {f"{number}/{name}": text for number, text in enumerate([*good, *bad])})
    table = [
        ([f"{number}/{name}"], 0 if number < len(good) else 1)
        for number in range(len(good) + len(bad))
    ]
    expect(tmp_path, "metadata", table)


def test_a_backup_is_there_and_differs(tmp_path: Path) -> None:
    put(tmp_path, {"a": "new", "a.bak": "", "b": "same", "b.bak": "same", "c": "", "d.bak": ""})
    expect(tmp_path, "backup", [(["a"], 0), (["b"], 1), (["c"], 1), (["d"], 1), ([], 2)])


def test_every_line_of_the_log_counts(tmp_path: Path) -> None:
    line = f"[DONE] {TIME} | task_one | did it"
    put(
        tmp_path,
        {
            "good": f"{line}\n\n{line.replace('one', 'two')}\n",
            "odd": line.replace("03-16", "99-99"),
            "bad": f"{line}\nfinished\n{line}\n",
            "long": f"[DONE] {TIME} | t | {'x' * 81}",
            "full": f"[DONE] {TIME} | t | {'x' * 80}",
        },
    )
    expect(
        tmp_path,
        "done_log",
        [
            (["good", "--min-entries", "2", "--task-prefix", "task_t"], 0),
            (["good", "--task-prefix", "task_o"], 1),
            (["good", "--min-entries", "3"], 1),
            (["odd"], 0),
            (["bad"], 1),
            (["long"], 1),
            (["full"], 0),
            (["absent"], 1),
            (["good", "--min-count", "2"], 2),
        ],
    )
