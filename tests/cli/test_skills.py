"""`metaclaw skills` on real files."""

import json
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from metaclaw.config import ensure_api_key
from metaclaw.instance import acquire
from tests.cli.program import metaclaw, program

SKILL = """---
name: backup-first
description: Before changing a file that has no copy
category: files
---
Copy the file to `*.bak` first.
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "download" / "SKILL.md"
    path.parent.mkdir()
    path.write_text(SKILL)
    return path


def test_a_skill_is_added_listed_shown_and_removed(home: Path, source: Path) -> None:
    assert metaclaw("skills", "list", "--json").facts == {"skills": [], "skipped": []}
    added = program("skills", "add", str(source))
    assert (added.code, added.err) == (0, "")
    assert (home / "skills" / "backup-first" / "SKILL.md").is_file()
    (listed,) = metaclaw("skills", "list", "--json").facts["skills"]
    assert (listed["name"], listed["description"], listed["category"]) == (
        "backup-first",
        "Before changing a file that has no copy",
        "files",
    )
    assert (
        "backup-first  live   person  everyone  files     Before changing a file"
        in metaclaw("skills", "list").out
    )
    shown = metaclaw("skills", "show", "backup-first", "--json").facts
    assert shown["body"].strip() == "Copy the file to `*.bak` first."
    assert "Copy the file to `*.bak` first." in metaclaw("skills", "show", "backup-first").out
    assert metaclaw("skills", "remove", "backup-first", "--yes", "--json").facts == {
        "removed": "backup-first"
    }
    assert metaclaw("skills", "list").out.startswith("No skills in")
    assert not (home / "skills" / "backup-first").exists()


def test_a_folder_may_be_added_and_replaced_only_on_a_word(source: Path) -> None:
    assert metaclaw("skills", "add", str(source.parent), "--json").facts["replaced"] is False
    source.write_text(SKILL.replace("Copy", "Always copy"))
    refused = metaclaw("skills", "add", str(source))
    assert refused.code == 1
    assert "--yes" in refused.err
    assert "Always" not in metaclaw("skills", "show", "backup-first").out
    assert metaclaw("skills", "add", str(source), given="y\n").code == 0
    assert "Always copy" in metaclaw("skills", "show", "backup-first").out
    assert metaclaw("skills", "add", str(source), "--replace", "--json").facts["replaced"] is True
    assert metaclaw("skills", "add", str(source), "--yes").code == 0


def test_removing_asks_first(source: Path) -> None:
    metaclaw("skills", "add", str(source))
    assert metaclaw("skills", "remove", "backup-first", given="n\n").code == 1
    assert metaclaw("skills", "show", "backup-first").code == 0
    assert metaclaw("skills", "remove", "backup-first", given="y\n").code == 0


@pytest.mark.parametrize("name", ["nothing", "../config.toml", "..", ".", "", "a/b"])
def test_a_name_that_is_no_skill_is_refused(home: Path, name: str) -> None:
    (home / "skills").mkdir(parents=True)
    for command in (("show", name), ("remove", name, "--yes")):
        refused = metaclaw("skills", *command)
        assert refused.code == 1
        assert "there is no skill named" in refused.err
    assert (home / "skills").is_dir()


def test_an_unreadable_file_is_named_and_the_rest_is_listed(home: Path, source: Path) -> None:
    metaclaw("skills", "add", str(source))
    broken = home / "skills" / "broken" / "SKILL.md"
    broken.parent.mkdir()
    broken.write_bytes(b"\xff\xfe")
    listed = metaclaw("skills", "list")
    assert listed.code == 0
    assert "backup-first" in listed.out
    assert listed.err.startswith(f"skipped {broken}: ")
    assert listed.err.count(str(broken)) == 1
    facts = metaclaw("skills", "list", "--json").facts
    assert [entry["path"] for entry in facts["skipped"]] == [str(broken)]
    shown = metaclaw("skills", "show", "broken")
    assert shown.code == 1
    assert "Traceback" not in shown.err


def test_a_file_that_is_no_skill_is_not_added(home: Path, tmp_path: Path) -> None:
    (tmp_path / "SKILL.md").write_text("just words")
    for path in (tmp_path / "SKILL.md", tmp_path / "absent"):
        refused = metaclaw("skills", "add", str(path))
        assert refused.code != 0
        assert "Traceback" not in refused.err
    assert not list((home / "skills").glob("*")) if (home / "skills").exists() else True


def test_the_configured_folder_is_used(tmp_path: Path, source: Path) -> None:
    metaclaw("config", "set", "skills.dir", str(tmp_path / "elsewhere"))
    metaclaw("skills", "add", str(source))
    assert (tmp_path / "elsewhere" / "backup-first" / "SKILL.md").is_file()


LEARNED = SKILL.replace(
    "category: files\n", "category: files\nscope: user:alice\nauthor: evolver\n"
)


def put(home: Path, text: str, name: str = "backup-first") -> Path:
    path = home / "skills" / name / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace("name: backup-first", f"name: {name}"))
    return path


def generations() -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = metaclaw("skills", "history", "--json").facts["generations"]
    return listed


def listed_names() -> list[str]:
    return [skill["name"] for skill in metaclaw("skills", "list", "--json").facts["skills"]]


def test_the_list_tells_state_author_and_scope(home: Path) -> None:
    put(home, LEARNED)
    put(home, SKILL.replace("---\nCopy", "pinned: true\n---\nCopy"), "mine")
    learned, mine = metaclaw("skills", "list", "--json").facts["skills"]
    assert [learned[key] for key in ("state", "author", "scope", "pinned")] == [
        "live",
        "evolver",
        "user:alice",
        False,
    ]
    assert [mine[key] for key in ("state", "author", "scope", "pinned")] == [
        "live",
        "person",
        None,
        True,
    ]
    table = metaclaw("skills", "list").out.splitlines()
    assert table[0].split() == ["NAME", "STATE", "AUTHOR", "FOR", "CATEGORY", "USE", "WHEN"]
    assert table[1].split()[:4] == ["backup-first", "live", "evolver", "alice"]
    assert "live, pinned" in table[2]
    shown = metaclaw("skills", "show", "backup-first").out
    assert all(word in shown for word in ("live", "evolver", "alice"))


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("'pattern: [unclosed'", "Its check is not run: check: "),
        ("'contains: foo'", "Its check is not run: a check begins with "),
        (
            "|\n  program: |\n    if True\n      print(1)",
            "Its check is not run: check: its program is not Python: line 1: ",
        ),
        ("'pattern: b'", "Its check accepts "),
    ],
)
def test_a_check_that_cannot_be_run_or_proves_nothing_is_told_when_its_skill_is_added(
    home: Path, tmp_path: Path, check: str, words: str
) -> None:
    path = tmp_path / "SKILL.md"
    path.write_text(SKILL.replace("---\nCopy", f"check: {check}\n---\nCopy"))
    added = metaclaw("skills", "add", str(path))
    assert (added.code, added.err.startswith(words)) == (0, True), added.err


def test_a_home_that_is_made_for_a_skill_is_the_owners_alone(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "SKILL.md"
    path.write_text(SKILL)
    assert not home.exists()
    assert metaclaw("skills", "add", str(path)).code == 0
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_a_skill_is_shown_with_its_check(home: Path) -> None:
    put(home, SKILL.replace("---\nCopy", "check: 'pattern: bak'\n---\nCopy"))
    assert metaclaw("skills", "show", "backup-first").out.endswith("\nIts check:\npattern: bak\n")


GRADED = """---
name: roster-times
description: When a time is to be written for the roster.
check: |
  program: |
    import json, sys
    given = json.load(sys.stdin)
    if "roster" not in given["task"]: sys.exit(2)
    said, asked = given["text"].strip(), given["messages"][-1]["content"]
    print(json.dumps({"score": 1 if said == "14:17+05:30" else 0.3 if "14" in said else 0, "reason": asked}))
---

Write the hour of 24 and the minutes, then +05:30.
"""


@pytest.mark.parametrize("is_added", [True, False])
def test_the_check_of_a_skill_is_tried_on_an_answer(home: Path, is_added: bool) -> None:
    path = put(home, GRADED, "roster-times")
    which, task = "roster-times" if is_added else str(path), "Write 2:17 pm for the roster."
    right = metaclaw("skills", "test", which, task, "14:17+05:30", "--json")
    assert (right.code, right.facts["outcome"], right.facts["score"]) == (0, "pass", 1)
    assert right.facts["reason"].startswith(task)
    assert metaclaw("skills", "test", which, task, "14:17").out.startswith("fail, score 0.3")
    assert metaclaw("skills", "test", which, "Write a poem.", "14:17").out.startswith(
        "unknown, no score"
    )


@pytest.mark.parametrize("answer", ["", " \n", "14:17+05:30 " * 8])
def test_an_answer_that_training_gives_nothing_is_tried_to_nothing(home: Path, answer: str) -> None:
    put(home, GRADED.replace("else 0,", "else 0.1,"), "roster-times")
    tried = metaclaw("skills", "test", "roster-times", "Write 2:17 pm for the roster.", answer)
    assert tried.out.startswith("fail, score 0: an empty answer")


def test_a_check_that_breaks_is_told_by_the_exit_status(home: Path) -> None:
    put(home, GRADED.replace("said, asked =", "said, asked = None,"), "roster-times")
    tried = metaclaw("skills", "test", "roster-times", "Write 2:17 pm for the roster.", "14:17")
    assert tried.code == 1
    assert "the check of roster-times itself fails: the program broke" in tried.err


def test_a_skill_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    tried = metaclaw("skills", "test", str(tmp_path / "SKILL.md"), "a", "b")
    assert tried.code == 1
    assert "cannot be read" in tried.err


def test_a_skill_without_a_check_has_nothing_to_try(home: Path) -> None:
    put(home, "---\nname: plain\ndescription: When asked.\n---\n\nAnswer.\n", "plain")
    tried = metaclaw("skills", "test", "plain", "a", "b")
    assert tried.code != 0
    assert "has no check" in tried.err


def test_a_skill_is_retired_and_comes_back_by_going_back_without_a_proxy(home: Path) -> None:
    put(home, SKILL)
    put(home, SKILL, "other")
    retired = metaclaw("skills", "retire", "backup-first", "--json").facts
    assert (retired, listed_names()) == (
        {"skill": "backup-first", "retired": True, "generation": 2},
        ["other"],
    )
    newest, loaded, empty = generations()
    assert (newest["number"], newest["added"], newest["removed"], newest["reason"]) == (
        2,
        0,
        1,
        "a person retired backup-first",
    )
    assert (loaded["number"], loaded["added"], empty["number"]) == (1, 2, 0)
    assert metaclaw("skills", "revert", "1", "--json").facts == {"reverted_to": 1, "generation": 3}
    assert listed_names() == ["backup-first", "other"]
    assert "as generation 4" in metaclaw("skills", "revert", "2").out
    assert listed_names() == ["other"]
    assert "Retired other; generation 5" in metaclaw("skills", "retire", "other").out
    table = metaclaw("skills", "history", "--limit", "2").out.splitlines()
    assert table[0].split() == ["GENERATION", "WHEN", "ADDED", "REMOVED", "WHY"]
    assert [line.split()[0] for line in table[1:]] == ["5", "4"]
    assert "1970" not in metaclaw("skills", "history").out
    assert metaclaw("skills", "history", "--json").facts["generations"][-1]["published_at"] is None


def test_what_cannot_be_retired_or_gone_back_to_is_said(home: Path) -> None:
    put(home, SKILL)
    for command, word in (
        (("retire", "nothing"), "no skill named nothing"),
        (("revert", "99"), "no generation 99"),
    ):
        refused = metaclaw("skills", *command)
        assert refused.code == 1
        assert word in refused.err
    assert metaclaw("skills", "revert", "-1").code == 2
    assert listed_names() == ["backup-first"]


def test_no_history_makes_no_database(home: Path) -> None:
    assert metaclaw("skills", "history", "--json").facts == {"generations": []}
    assert "No generation" in metaclaw("skills", "history").out
    assert not (home / "ledger.db").exists()


def test_a_learned_skill_that_a_person_changed_is_listed_as_theirs(home: Path) -> None:
    path = put(home, LEARNED)
    put(home, SKILL, "other")
    metaclaw("skills", "retire", "other")
    path.write_text(path.read_text().replace("Copy", "Always copy"))
    (skill,) = metaclaw("skills", "list", "--json").facts["skills"]
    assert (skill["author"], skill["state"]) == ("person", "live")
    assert "author: evolver" in path.read_text()


@pytest.mark.parametrize("target", ["pack.zip", "pack"])
def test_skills_are_taken_from_one_home_to_another(home: Path, tmp_path: Path, target: str) -> None:
    put(home, LEARNED)
    put(home, SKILL, "other")
    pack = tmp_path / target
    exported = metaclaw("skills", "export", "--to", str(pack), "--json").facts
    assert exported == {"exported": ["backup-first", "other"], "to": str(pack)}
    elsewhere = ("--home", str(tmp_path / "elsewhere"))
    imported = metaclaw(*elsewhere, "skills", "import", str(pack), "--json").facts
    assert imported == {"imported": ["backup-first", "other"], "replaced": [], "skipped": []}
    brought, _ = metaclaw(*elsewhere, "skills", "list", "--json").facts["skills"]
    assert (brought["author"], brought["state"], brought["scope"]) == (
        "person",
        "live",
        "user:alice",
    )
    again = metaclaw(*elsewhere, "skills", "import", str(pack))
    assert again.code == 1
    assert "--yes" in again.err
    assert (
        "2 of them in place of others"
        in metaclaw(*elsewhere, "skills", "import", str(pack), "--replace").out
    )
    assert metaclaw(*elsewhere, "skills", "import", str(pack), given="y\n").code == 0


def test_only_the_named_skills_are_exported_and_nothing_is_overwritten(
    home: Path, tmp_path: Path
) -> None:
    put(home, SKILL)
    put(home, SKILL, "other")
    (home / "skills" / "broken").mkdir()
    (home / "skills" / "broken" / "SKILL.md").write_text("x")
    assert metaclaw("skills", "export", "other", "--to", str(tmp_path / "a.zip"), "--json").facts[
        "exported"
    ] == ["other"]
    refused = metaclaw("skills", "export", "--to", str(tmp_path / "a.zip"))
    assert (refused.code, "is there already" in refused.err) == (1, True)
    told = metaclaw("skills", "export", "--to", str(tmp_path / "a.zip"), "--yes")
    assert (told.code, "Exported 2 skills" in told.out, "left out" in told.err) == (0, True, True)
    assert (
        "no skill named absent"
        in metaclaw("skills", "export", "absent", "--to", str(tmp_path / "b.zip")).err
    )
    assert not (tmp_path / "b.zip").exists()


def test_an_import_takes_what_is_good_and_names_the_rest(home: Path, tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    for name, text in (("good", SKILL.replace("backup-first", "good")), ("bad", "no front matter")):
        (pack / name).mkdir(parents=True)
        (pack / name / "SKILL.md").write_text(text)
    done = metaclaw("skills", "import", str(pack), "--json")
    assert (done.code, done.facts["imported"]) == (0, ["good"])
    assert [entry["path"] for entry in done.facts["skipped"]] == [str(pack / "bad" / "SKILL.md")]
    (pack / "good" / "SKILL.md").unlink()
    refused = metaclaw("skills", "import", str(pack))
    assert f"skipped {pack / 'bad' / 'SKILL.md'}: no front matter: begin" in refused.err
    assert (refused.code, "contains no usable skill" in refused.err) == (1, True)
    assert listed_names() == ["good"]


@contextmanager
def answering(
    home: Path, status: int, facts: dict[str, object]
) -> Iterator[list[tuple[str, bytes]]]:
    """A proxy of this home that gives one answer to everything; yields what it was asked."""
    ensure_api_key(home)
    asked: list[tuple[str, bytes]] = []

    class Script(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(facts).encode())

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with acquire(home) as instance, ThreadingHTTPServer(("127.0.0.1", 0), Script) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        instance.announce(f"http://127.0.0.1:{server.server_port}")
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join(5)


def test_a_running_proxy_is_asked_to_retire_and_to_go_back(home: Path) -> None:
    put(home, SKILL)
    with answering(home, 200, {"skill": "backup-first", "retired": True, "generation": 8}) as asked:
        assert metaclaw("skills", "retire", "backup-first", "--json").facts["generation"] == 8
        assert (
            metaclaw("skills", "revert", "3").out
            == "The skills of generation 3 are in force again, as generation 8.\n"
        )
    assert asked == [
        ("/api/skills/backup-first/retire", b""),
        ("/api/generations/revert", b'{"generation": 3}'),
    ]
    assert listed_names() == ["backup-first"]


def test_what_a_running_proxy_refuses_is_said_in_its_words(home: Path) -> None:
    with answering(home, 404, {"error": {"message": "there is no skill gone in force"}}):
        refused = metaclaw("skills", "retire", "gone")
    assert (refused.code, refused.err) == (1, "metaclaw: there is no skill gone in force\n")
