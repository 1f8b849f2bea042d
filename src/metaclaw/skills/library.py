"""The library: the skills in force as an immutable view, and the only writer of it.

`SkillLibrary.view` is replaced, never changed, so that readers need no lock. There are two ways to
a new generation:

- A person edits files. `sync` (called directly or by `watch`) reads the changed files, makes the
  next index, stores the generation, which gives it a number, and then swaps the view.
- The program, or a person by a command, calls `publish`, `retire` or `revert`. First the store
  saves the new generation in one transaction; then the files are written; then the view is swapped.
  If the program stops in between, the next `sync` writes the files. If there are many files, the
  view is swapped at once, and the next `sync` writes them.
- Another home on the same store publishes. `sync` takes its generation over: the files are written,
  then the view is swapped.

The store has the library, the folder is a view of it: what the folder lacks is written out, unless
this home wrote it before (`file_record`), so that a person must have removed it. A generation is
published only on the newest one: if another home was faster, its changes are taken over first.

A skill that becomes unreadable is withdrawn and shown among `skipped`, unless its file was written
less than 0.3 s ago: an editor may still be writing it.

A removed file counts when the folder has been quiet for 0.5 s, and nothing is written meanwhile:
the whole folder may be on its way out. When it is gone, or has lost its record, it is written out
again.

Edits by hand are found by polling, which works on every platform and network mount. A check costs
about 5 µs a skill; `watch` checks half of the files every 0.4 s, at most 5,000. With up to 10,000
skills, every change is noticed within a second; with 100,000, new and removed skills are noticed
within a second, and changes inside a file within about eight seconds."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, LearnedFrom, Rule, Skill, SkillState
from metaclaw.domain.status import SkippedSkill
from metaclaw.errors import OvertakenError, SkillError, StoreError
from metaclaw.ports import GenerationStore
from metaclaw.skills.file_record import FileFate, digest_of, names_due, read_record
from metaclaw.skills.files import SKILL_FILE, parse_skill, read_skill, render_skill
from metaclaw.skills.folder import FolderChanges, FolderScan, FolderUpkeep, modified_at
from metaclaw.skills.index import SkillIndex
from metaclaw.skills.library_view import LibraryView
from metaclaw.skills.scopes import is_untouchable, owned

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_FILES_A_TICK = 5_000
_FEW_FILES = 100
_STILL_WRITING_S = 0.3
_NAMES_IN_REASON = 5
_MOST_TRIES = 20
_REMOVED = "removed"
FILES = "files"
"""The reason of a generation that comes from changed files begins with this word."""


class SkillLibrary:
    """The skills folder as a sequence of views. Any thread may read `view`; methods that write are
    serialised and block.
    """

    def __init__(
        self, folder: Path, generations: GenerationStore, clock: Callable[[], float] = time.time
    ) -> None:
        self.folder = folder
        self._generations = generations
        self._clock = clock
        self._writing = threading.Lock()
        self._scan = FolderScan(folder, clock)
        self._upkeep = FolderUpkeep(folder, lambda: self._scan.is_losing)
        self._index = self._stored = SkillIndex()
        self._skipped: dict[str, SkippedSkill] = {}
        self._half_written: set[str] = set()
        self._edits: dict[str, str] = {}
        self._read_files: dict[str, str | None] = {}
        self._number = 0
        self._began = self._shown = False
        self._trouble: str | None = None
        self._view = LibraryView(0, self._index)

    @property
    def view(self) -> LibraryView:
        """The skills in force now. Read it once per request."""
        return self._view

    def follow(self) -> LibraryView:
        """The skills in force now. As `RemoteLibrary.follow`; here the view is always up to
        date.
        """
        return self._view

    def settled(self) -> LibraryView:
        """The view after a publication that is in progress: its generation is in the store before
        it is in the view. Blocks.
        """
        with self._writing:
            return self._view

    @property
    def trouble(self) -> str | None:
        """Why the view and the folder differ, or None."""
        return self._trouble

    def sync(self) -> LibraryView:
        """Finish interrupted writes, read all changes on disk, and return the view. Before the
        first call, it is the empty generation 0."""
        return self._sync(None)

    def take_over(self) -> LibraryView:
        """Take over what other homes have published, and return the view."""
        return self._sync(_FEW_FILES)

    def read(self) -> LibraryView:
        """Show the files as they are and write nothing, for a look while no program runs. Raises
        OSError and StoreError."""
        latest = self._generations.latest()
        known = {skill.name: skill for skill in latest.skills}
        names = sorted(FolderScan(self.folder, self._clock).poll(None).changed)
        found = [skill for skill in map(self._read, names) if skill is not None]
        index = SkillIndex().changed([owned(skill, known.get(skill.name)) for skill in found])
        self._view = LibraryView(latest.number, index, tuple(self._skipped.values()))
        return self._view

    async def watch(self, interval_s: float = 0.4) -> None:
        """Keep the view up to date with the folder, and at every second look with the store, until
        cancelled.
        """
        follows = True
        while True:
            half = max(_FEW_FILES, (len(self._index) + 1) // 2)
            await anyio.to_thread.run_sync(self._sync, min(half, _FILES_A_TICK), follows)
            await anyio.sleep(interval_s)
            follows = not follows

    def publish(
        self,
        put: Sequence[Skill],
        retire: Iterable[SkillName],
        reason: str,
        *,
        expected: Mapping[SkillName, str | None] | None = None,
        learned: LearnedFrom | None = None,
        by_person: bool = False,
    ) -> LibraryView:
        """Put skills in force and retire others, in one atomic change; return the view afterwards.
        `expected` are content hashes as the caller saw them (None: the name is free). Raises
        SkillError, and changes nothing, if one of them has changed, or, unless `by_person`, if only
        a person may change one of the skills. `learned` is the evidence of a change by the program;
        the store refuses outdated evidence. Raises StoreError."""
        wanted, gone = [_as_read(skill) for skill in put], list(dict.fromkeys(retire))
        names = [*(skill.name for skill in wanted), *gone]
        if len(set(names)) != len(names):
            raise SkillError("one publication names a skill twice: put or retire each once")

        def change() -> LibraryView:
            self._take_in_first(_FILES_A_TICK, names)
            for name in names:
                self._check(name, expected or {}, by_person=by_person)
            if not by_person:
                self._refuse_stated(wanted, gone)
            for name in gone:
                if self._index.get(name) is None:
                    raise SkillError(f"there is no skill named {name} in force")
            return self._replace(wanted, gone, reason, learned=learned)

        with self._writing:
            return _on_newest(change)

    def retire(self, name: SkillName, reason: str | None = None) -> LibraryView:
        """Retire any skill, for a person. Its text stays in the store."""
        return self.publish((), (name,), reason or f"retired {name}", by_person=True)

    def revert(self, number: int) -> LibraryView:
        """Put the skills of an earlier generation in force again, as a new generation. It is made
        even if no skill changes, because evidence from before it is refused afterwards. Raises
        SkillError."""

        def change() -> LibraryView:
            self._take_in_first(None, ())
            target = self._generations.at(number)
            if target is None:
                raise SkillError(
                    f"there is no generation {number}: metaclaw skills history shows those"
                    " there are"
                )
            texts = {skill.name: skill for skill in target.skills}
            put = [skill for name, skill in texts.items() if skill != self._index.get(name)]
            for skill in put:
                self._refuse_unreadable(skill.name)
            gone = [skill.name for skill in self._index.skills() if skill.name not in texts]
            return self._replace(put, gone, f"reverted to generation {number}", reverted_to=number)

        with self._writing:
            return _on_newest(change)

    def _sync(self, most: int | None, follows: bool = True) -> LibraryView:
        with self._writing:
            try:
                self._catch_up(most, follows=follows)
            except OSError as error:
                self._report(f"{self.folder} cannot be read: {error.strerror}")
            except StoreError as error:
                self._report(f"the skills folder and the store cannot be brought in line: {error}")
                if not self._began:
                    self._show_files()
            else:
                self._upkeep.record(self._number, self._stored.hash)
                self._report(self._upkeep.trouble)
                self._upkeep.tidy()
            return self._view

    def _show_files(self) -> None:
        """Put the files in force as they are, once, until the store can be read: no rule may be
        missing because the disk is full. They are shown as generation 0, so that no turn made with
        them trains."""
        if len(self._view.index) == 0:
            with suppress(OSError):
                found = (
                    self._read(name)
                    for name in FolderScan(self.folder, self._clock).poll(None).changed
                )
                self._view = LibraryView.of(0, tuple(skill for skill in found if skill is not None))

    def _take_in_first(self, most: int | None, also: Iterable[str]) -> None:
        """Publish a person's edits as a separate generation before another change."""
        try:
            self._catch_up(most if self._shown else None, also, is_waited_for=self._shown)
        except OSError as error:
            raise SkillError(
                f"{self.folder} cannot be read: {error.strerror}: make it a folder that you may"
                " read"
            ) from error

    def _catch_up(
        self,
        most: int | None,
        also: Iterable[str] = (),
        *,
        is_waited_for: bool = False,
        follows: bool = True,
    ) -> None:
        """Take over newer generations, write the files that are due, read the changed files, and
        publish the edits. Raises OSError and StoreError."""
        index, skipped = self._index, self._skipped
        if self._upkeep.is_lost:
            if self._shown and not self._scan.is_quiet:
                return  # it is still being removed
            self._began = False
        elif self._began and follows:
            self._follow()
        is_first = not self._began
        if is_first:
            self._begin()
        is_waited_for = is_waited_for or is_first
        self._settle(is_waited_for=is_waited_for)
        changes = self._scan.poll(most, also)
        if (changes.changed or changes.gone) and not is_first and self._upkeep.is_lost:
            return  # a later look writes it out again
        if is_first:
            gone: list[str] = [
                skill.name for skill in self._index.skills() if skill.name not in self._scan
            ]
            changes = FolderChanges(changes.changed, gone)
            if gone and not self._upkeep.has_record:
                log.info(
                    "skills_written_out folder=%s skills=%d; the folder had no record of this"
                    " store",
                    self.folder,
                    len(gone),
                )
        if changes.changed or changes.gone:
            self._skipped = self._skipped.copy()
            self._take_in(changes)
            self._settle(is_waited_for=is_waited_for)
        is_behind = not self._shown or self._number != self._view.generation
        if is_behind or self._edits or self._index is not index or self._skipped != skipped:
            self._publish_edits()
        for name, found in self._read_files.items():
            self._upkeep.agree(name, found)
        self._read_files.clear()

    def _begin(self) -> None:
        """Start from the newest generation, and the record of the folder if it belongs to this
        store.
        """
        latest, record = self._generations.latest(), read_record(self.folder)
        base = None
        if record is not None:
            is_newest = record.generation == latest.number
            base = latest if is_newest else self._generations.at(record.generation)
        if base is None or record is None or base.hash != record.hash:
            record = None
        self._scan = FolderScan(self.folder, self._clock)
        self._skipped = {}
        self._edits.clear()
        self._read_files.clear()
        self._index = self._stored = SkillIndex().changed(latest.skills)
        self._number = latest.number
        if record is not None and base is not None:
            texts = {skill.name: skill for skill in base.skills}
            changed = {skill.name for skill in latest.skills if texts.get(skill.name) != skill}
            due = names_due(record, {skill.name for skill in latest.skills}, changed)
            self._upkeep.begin(record, {name: self._index.get(name) for name in due})
        else:
            self._upkeep.begin(None, {})
        self._began = True

    def _follow(self) -> None:
        """Take over the generations that other homes published. An edit that is not published yet
        stays, but a file that was removed comes back if its skill has changed."""
        changes = self._generations.since(self._number)
        if changes.number == self._number:
            return
        stored = self._stored.changed(changes.put, changes.gone)
        if changes.number < self._number or stored.hash != changes.hash:
            # The store was replaced by an older one, or a session was forgotten, which leaves no
            # trace of what it taught.
            self._began = False
            return
        self._stored = stored
        edited = {name for name, what in self._edits.items() if what != _REMOVED}
        put = [skill for skill in changes.put if skill.name not in edited]
        gone = [name for name in changes.gone if name not in edited]
        for name in (*(skill.name for skill in put), *gone):
            self._edits.pop(name, None)
            self._read_files.pop(name, None)
        self._index = self._index.changed(put, gone)
        self._number = changes.number
        self._upkeep.owe({skill.name: skill for skill in put} | dict.fromkeys(gone))

    def _settle(self, *, is_waited_for: bool) -> None:
        """Write the files that are due, unless there are too many to wait for."""
        if is_waited_for and self._upkeep.is_behind:
            return
        for name in self._upkeep.settle(self._number, self._stored.hash):
            self._scan.forget(name)
            self._half_written.discard(name)
            self._skipped = {
                path: skipped for path, skipped in self._skipped.items() if path != name
            }

    def _take_in(self, changes: FolderChanges) -> None:
        """Read the changed files and update the index and the skipped files, without changing the
        view.
        """
        put: list[Skill] = []
        removed: list[str] = []
        for name in changes.gone:
            self._skipped.pop(name, None)
            self._half_written.discard(name)
        for name in (*changes.changed, *changes.gone):
            known, skill = self._index.get(name), self._read(name) if name in self._scan else None
            if name in self._half_written:
                continue
            fate = self._upkeep.fate(name, skill)
            if fate is FileFate.REMOVED:
                self._read_files[name] = None
                removed.extend([name] if known is not None else [])
            elif fate is FileFate.WRITE:
                self._upkeep.owe({SkillName(name): known} if known is not None else {})
            elif skill is not None:
                self._read_files[name] = digest_of(skill)
                mine = owned(skill, known)
                if self._upkeep.contested(name) and known is None:
                    mine = replace(skill, author=Authorship.PERSON, state=SkillState.LIVE)
                put.extend([mine] if mine != known else [])
        self._edits |= dict.fromkeys(removed, _REMOVED)
        self._edits |= {
            skill.name: "changed" if self._index.get(skill.name) else "added" for skill in put
        }
        self._index = self._index.changed(put, removed)

    def _read(self, name: str) -> Skill | None:
        """A skill from its file; None if it is unreadable. While it may still be written, the last
        good version.
        """
        is_loose = name.endswith(".md")
        path = self.folder / name if is_loose else self.folder / name / SKILL_FILE
        self._half_written.discard(name)
        try:
            if is_loose:
                raise SkillError(
                    f"{path}: a skill is a folder: move this to"
                    f" {name.removesuffix('.md')}/{SKILL_FILE}"
                )
            skill = read_skill(path)
        except SkillError as error:
            last_good, written_at = self._index.get(name), modified_at(path)
            if (
                last_good is not None
                and written_at is not None
                and 0 <= self._clock() - written_at < _STILL_WRITING_S
            ):
                self._scan.mark_changed(name)
                self._half_written.add(name)
                return last_good
            skipped = SkippedSkill(
                _printable(str(path)), _printable(str(error).removeprefix(f"{path}: "))
            )
            if self._skipped.get(name) != skipped:
                log.warning("skill skipped path=%s reason=%s", skipped.path, skipped.reason)
            self._skipped[name] = skipped
            return None
        self._skipped.pop(name, None)
        return skill

    def _publish_edits(self) -> None:
        """Store the skills as a new generation if their meaning changed, and swap the view."""

        def publish() -> None:
            if any(
                _standing(self._stored.get(name)) != _standing(self._index.get(name))
                for name in self._edits
            ):
                reason = (
                    _edits_in_words(self._edits)
                    if self._shown
                    else f"{FILES} changed while stopped"
                )
                try:
                    self._number = self._generations.publish(
                        self._index.skills(), reason, after=self._number
                    ).number
                except OvertakenError:
                    self._follow()
                    if not self._began:
                        raise StoreError(
                            "the store was replaced meanwhile; it is read again"
                        ) from None
                    raise

        _on_newest(publish)
        self._stored = self._index
        self._edits.clear()
        self._show()

    def _replace(
        self,
        put: Sequence[Skill],
        removed: Sequence[SkillName],
        reason: str,
        *,
        learned: LearnedFrom | None = None,
        reverted_to: int | None = None,
    ) -> LibraryView:
        """Publish a change: first the store, then the files, then the view."""
        before = self._index
        put = [skill for skill in put if skill != before.get(skill.name)]
        index = before.changed(put, removed)
        if index is before and reverted_to is None:
            return self._view
        published = self._generations.publish(
            index.skills(), reason, after=self._number, learned=learned, reverted_to=reverted_to
        )
        self._number = published.number
        self._index = self._stored = index
        self._upkeep.owe(
            {name: index.get(name) for name in (*removed, *(skill.name for skill in put))}
        )
        self._settle(is_waited_for=True)
        self._report(self._upkeep.trouble)
        self._show()
        return self._view

    def _show(self) -> None:
        if self._number != self._view.generation:
            log.info(
                "skills in force generation=%d skills=%d skipped=%d",
                self._number,
                len(self._index),
                len(self._skipped),
            )
        skipped = tuple(self._skipped[name] for name in sorted(self._skipped))
        self._view = LibraryView(self._number, self._index, skipped)
        self._shown = True

    def _check(
        self, name: SkillName, expected: Mapping[SkillName, str | None], *, by_person: bool
    ) -> None:
        self._refuse_unreadable(name)
        known = self._index.get(name)
        if name in expected and expected[name] != (None if known is None else known.content_hash):
            raise SkillError(f"skill {name} has changed since it was read: read it again")
        if known is not None and is_untouchable(known) and not by_person:
            raise SkillError(
                f"skill {name} is {'pinned' if known.pinned else 'a person’s own'}: only a person"
                " may change or retire it"
            )

    def _refuse_stated(self, put: Sequence[Skill], gone: Iterable[SkillName]) -> None:
        """Raise SkillError if rules or facts in force would change."""
        changed = [skill.name for skill in put if skill != self._index.get(skill.name)]
        for rule in map(self._index.get, (*changed, *gone)):
            if isinstance(rule, Rule):
                raise SkillError(
                    f"{rule.name} is a {rule.kind} that a person stated: only they may change or"
                    " retire it"
                )

    def _refuse_unreadable(self, name: str) -> None:
        if name in self._skipped or name in self._half_written:
            raise SkillError(
                f"{self.folder / name / SKILL_FILE} cannot be read now: correct or remove it first"
            )

    def _report(self, trouble: str | None) -> None:
        if trouble != self._trouble:
            log.log(
                logging.INFO if trouble is None else logging.ERROR,
                "skill library %s",
                trouble or "is up to date again",
            )
        self._trouble = trouble


def _on_newest(change: Callable[[], _T]) -> _T:
    """Make a change, and again if another home has published meanwhile."""
    for _ in range(_MOST_TRIES):
        with suppress(OvertakenError):
            return change()
    return change()


def _as_read(skill: Skill) -> Skill:
    """The skill as it will be read from its file, so that the written file does not count as an
    edit.
    """
    return parse_skill(render_skill(skill), f"skill {skill.name}")


def _standing(skill: Skill | None) -> tuple[object, ...]:
    """A change of this makes a new generation; a change of an unknown key of the front matter does
    not.
    """
    return () if skill is None else (skill.state, skill.author, skill.pinned, skill.meaning)


def _edits_in_words(edits: Mapping[str, str]) -> str:
    parts = []
    for what in ("added", "changed", _REMOVED):
        names = sorted(name for name, happened in edits.items() if happened == what)
        if names:
            more = (
                f" and {len(names) - _NAMES_IN_REASON} more"
                if len(names) > _NAMES_IN_REASON
                else ""
            )
            parts.append(f"{what} {', '.join(names[:_NAMES_IN_REASON])}{more}")
    return f"{FILES}: {'; '.join(parts)}" if parts else f"{FILES} changed"


def _printable(text: str) -> str:
    """The text as valid UTF-8, which a file name may not be."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
