"""Run as a program: change the library with a real store, once for each moment at which the process
can be killed, and see what is left.

Every operation on the skills folder and every call of the store is such a moment. A forked child
does the work and kills itself at the n-th moment; then a new library is loaded and store, view and
files are compared. `publish` publishes; `join` writes out what the store has into an empty folder,
and another home publishes before the next start. Prints how many moments there were."""

import os
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, LearnedFrom, Skill, SkillGeneration
from metaclaw.skills import SkillLibrary, read_skill
from metaclaw.store import Database, SqlGenerations, open_database

LEARNED = Skill(
    SkillName("descale"),
    "When descaling the boiler",
    "Use citric acid.",
    author=Authorship.EVOLVER,
)
PURGE = replace(LEARNED, name=SkillName("purge"), trigger="When purging the steam wand")
GRIND = replace(LEARNED, name=SkillName("grind"), trigger="When grinding")
BEFORE = {skill.name: skill for skill in (LEARNED, PURGE, GRIND)}
REVISED = replace(LEARNED, body="Use less citric acid.")
NEW = replace(LEARNED, name=SkillName("backflush"), trigger="When backflushing")
PROMOTED = replace(GRIND, pinned=True)
AFTER = {skill.name: skill for skill in (REVISED, NEW, PROMOTED)}
EVENTS = frozenset(
    ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.listdir", "os.scandir")
)


class Death:
    """Comes at the n-th moment."""

    def __init__(self, at: int) -> None:
        self.left = at

    def pass_by(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, folder: Path) -> None:
        def hook(event: str, arguments: tuple[object, ...]) -> None:
            if event in EVENTS and any(str(folder) in str(argument) for argument in arguments):
                self.pass_by()

        sys.addaudithook(hook)


class Mortal(SqlGenerations):
    """A store during whose calls the program may be killed."""

    def __init__(self, database: Database, death: Death) -> None:
        super().__init__(database)
        self._death = death

    def publish(
        self,
        skills: Sequence[Skill],
        reason: str,
        *,
        after: int | None = None,
        learned: LearnedFrom | None = None,
        reverted_to: int | None = None,
    ) -> SkillGeneration:
        self._death.pass_by()
        published = super().publish(
            skills, reason, after=after, learned=learned, reverted_to=reverted_to
        )
        self._death.pass_by()
        return published


def url_of(home: Path) -> str:
    return f"sqlite:///{home / 'ledger.db'}"


def prepare(home: Path) -> None:
    database = open_database(url_of(home))
    try:
        SkillLibrary(home / "skills", SqlGenerations(database)).publish(
            list(BEFORE.values()), (), "learned"
        )
    finally:
        database.close()
    (home / "skills" / "purge" / "notes.txt").write_text("a person's")


def join(home: Path, moment: int) -> None:
    death = Death(moment)
    database = open_database(url_of(home))
    death.watch(home / "joining")
    SkillLibrary(home / "joining", Mortal(database, death)).sync()
    os._exit(0)


def check_joined(home: Path, moment: int) -> None:
    database = open_database(url_of(home))
    try:
        generations = SqlGenerations(database)
        SkillLibrary(home / "skills", generations).publish(
            [REVISED, NEW, PROMOTED], [PURGE.name], "revised elsewhere"
        )
        view = SkillLibrary(home / "joining", generations).sync()
        latest = generations.latest()
    finally:
        database.close()
    files = {
        path.parent.name: read_skill(path) for path in (home / "joining").glob("[!.]*/SKILL.md")
    }
    assert (latest.number, view.generation, view.skipped) == (2, 2, ()), (
        f"moment {moment}: {latest}"
    )
    assert {skill.name: skill for skill in view.skills} == files == AFTER, (
        f"moment {moment}: files say {files}"
    )


def work(home: Path, moment: int) -> None:
    death = Death(moment)
    database = open_database(url_of(home))
    library = SkillLibrary(home / "skills", Mortal(database, death))
    library.sync()
    death.watch(home / "skills")
    library.publish([REVISED, NEW, PROMOTED], [PURGE.name], "revised")
    library.sync()
    os._exit(0)


def check(home: Path, moment: int) -> None:
    database = open_database(url_of(home))
    try:
        generations = SqlGenerations(database)
        view = SkillLibrary(home / "skills", generations).sync()
        found, latest = {skill.name: skill for skill in view.skills}, generations.latest()
    finally:
        database.close()
    files = {
        path.parent.name: read_skill(path) for path in (home / "skills").glob("[!.]*/SKILL.md")
    }
    assert (view.generation, found) in ((1, BEFORE), (2, AFTER)), (
        f"moment {moment}: generation {view.generation} is {found}"
    )
    assert {skill.name: skill for skill in latest.skills} == found, (
        f"moment {moment}: the store has another set"
    )
    assert files == found, f"moment {moment}: files say {files}"
    assert view.skipped == (), f"moment {moment}: skipped {view.skipped}"
    notes = list((home / "skills").rglob("notes.txt"))
    assert [path.read_text() for path in notes] == ["a person's"], (
        f"moment {moment}: a person's file is lost"
    )


def main(what: str, place: Path) -> None:
    """Die at every moment there is."""
    do, look = (work, check) if what == "publish" else (join, check_joined)
    prepare(place / "base")
    moment = 0
    while True:
        moment += 1
        home = place / f"home-{moment}"
        shutil.copytree(place / "base", home)
        child = os.fork()
        if child == 0:
            do(home, moment)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, (
                f"moment {moment}: exit status {os.WEXITSTATUS(status)}"
            )
            look(home, moment)
            break
        look(home, moment)
        shutil.rmtree(home)
    sys.stdout.write(f"{moment - 1}\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
