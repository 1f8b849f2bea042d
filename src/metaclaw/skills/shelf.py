"""The shelf: the skills in force, as one immutable view that readers take once, and its one writer.

`Shelf.view` is replaced, never changed: whoever took it keeps a consistent generation, hash and index for as long as they hold it,
without a lock. The writer (`sync`, by hand or from `watch`) reads what changed on disk, derives the next index from the last by
copying only the postings concerned, has the generation store number it, and only then swaps the view.

A skill that becomes unreadable is withdrawn and shown among `skipped`: what the owner broke on purpose must stop being placed, and
what was broken by accident must be seen. Only while the file is less than a moment old does its last good version stay, since an
editor may still be writing.

Hand edits are found by polling, not by a file-system notifier: it works on every platform and network mount, needs no dependency
and no kernel watch per folder (100,000 of those take two seconds to set up). One look costs about 5 µs a skill; `watch` looks at no
more than 5,000 files every 0.4 s, about 6 % of a core, so with up to 10,000 skills every change is noticed within a second. With
100,000 a new or removed skill still is, while a change inside an existing file may take some eight seconds.
"""

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import anyio
import anyio.to_thread

from metaclaw.domain.skill import Skill, combined_hash
from metaclaw.domain.status import SkippedSkill
from metaclaw.domain.turn import Scope
from metaclaw.errors import SkillError, StoreError
from metaclaw.ports import GenerationStore
from metaclaw.skills.files import SKILL_FILE, read_skill
from metaclaw.skills.index import SkillIndex, Wanted
from metaclaw.skills.scan import Changes, FolderScan, modified_at

log = logging.getLogger(__name__)

_CACHED_QUERIES = 256
_FILES_A_TICK = 5_000
_STILL_WRITING_S = 0.3
_NAMES_IN_REASON = 5


class ShelfView:
    """One generation of skills, ready to be searched. Never changes."""

    __slots__ = ("_index", "_search", "generation", "hash", "skipped")

    def __init__(self, generation: int, content_hash: str, index: SkillIndex, skipped: tuple[SkippedSkill, ...] = ()) -> None:
        self.generation = generation
        self.hash = content_hash
        self.skipped = skipped
        self._index = index
        self._search = lru_cache(_CACHED_QUERIES)(partial(_search, index))

    @property
    def count(self) -> int:
        """How many skills there are."""
        return len(self._index)

    @property
    def skills(self) -> tuple[Skill, ...]:
        """Every skill, by name."""
        return tuple(sorted(self._index.skills(), key=lambda skill: skill.name))

    def get(self, name: str) -> Skill | None:
        """The skill of this name."""
        return self._index.get(name)

    def retrieve(self, query: str, limit: int, scope: Scope | None = None) -> tuple[Skill, ...]:
        """The skills to place for a request, best first, or none. Scoped skills are for their user or workspace only."""
        # Requests that differ only in words no skill knows (a ticket's number, today's date) are the same request here.
        return self._search(self._index.read(query), limit, _scopes(scope)) if limit > 0 else ()


def _search(index: SkillIndex, wanted: Wanted, limit: int, scopes: frozenset[str]) -> tuple[Skill, ...]:
    return tuple(found.skill for found in index.find(wanted, limit, scopes))


def _scopes(scope: Scope | None) -> frozenset[str]:
    """What a skill's `scope` may say to be placed here: an id by itself, or which kind of id it is."""
    if scope is None:
        return frozenset()
    named = (("user", scope.user), ("workspace", scope.workspace))
    return frozenset(text for kind, value in named if value is not None for text in (value, f"{kind}:{value}"))


class Shelf:
    """The skills folder as a sequence of views. Any thread may read `view`; writing is serialised."""

    def __init__(self, folder: Path, generations: GenerationStore, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._generations = generations
        self._clock = clock
        self._writing = threading.Lock()
        self._scan = FolderScan(folder, clock)
        self._index = SkillIndex()
        self._hashes: list[str] = []
        self._skipped: dict[str, SkippedSkill] = {}
        self._unpublished: dict[str, str] = {}
        self._began = False
        self._trouble: str | None = None
        self._view = ShelfView(0, combined_hash(()), self._index)

    @property
    def view(self) -> ShelfView:
        """The skills in force now. Take it once a request."""
        return self._view

    @property
    def trouble(self) -> str | None:
        """Why the view is behind the folder, or None where it is not."""
        return self._trouble

    def load(self) -> ShelfView:
        """Read the whole folder for the first time; before that the view is the empty generation 0."""
        return self._sync(None)

    def sync(self) -> ShelfView:
        """Take in whatever changed on disk; give the view in force afterwards."""
        return self._sync(None)

    async def watch(self, interval_s: float = 0.4) -> None:
        """Keep the view in step with the folder until cancelled."""
        while True:
            await anyio.to_thread.run_sync(self._sync, _FILES_A_TICK)
            await anyio.sleep(interval_s)

    def _sync(self, most: int | None) -> ShelfView:
        with self._writing:
            try:
                changes = self._scan.look(most)
            except OSError as error:
                self._report(f"{self.folder} cannot be read: {error.strerror}")
                return self._view
            skipped_before = self._skipped.copy() if changes.changed or changes.gone else self._skipped
            index_before = self._index
            self._take_in(changes)
            self._publish(shown_anew=self._index is not index_before or self._skipped != skipped_before)
            return self._view

    def _take_in(self, changes: Changes) -> None:
        """Read the changed files; bring index, hashes and skipped files up to date. Nobody sees it yet."""
        put: list[Skill] = []
        removed = [name for name in changes.gone if self._index.get(name) is not None]
        for name in changes.gone:
            self._skipped.pop(name, None)
        for name in changes.changed:
            skill = self._read(name)
            if skill is None:
                removed.extend([name] if self._index.get(name) is not None else [])
            elif skill != self._index.get(name):
                put.append(skill)
        if put or removed:
            self._note(put, removed)
            self._index = self._index.changed(put, removed)

    def _read(self, name: str) -> Skill | None:
        """A skill from its file; where that is unreadable none, or for a moment what it was before."""
        is_loose = name.endswith(".md")
        path = self.folder / name if is_loose else self.folder / name / SKILL_FILE
        try:
            if is_loose:
                raise SkillError(f"{path}: a skill is a folder: move this to {name.removesuffix('.md')}/{SKILL_FILE}")
            skill = read_skill(path)
        except SkillError as error:
            last_good, written_at = self._index.get(name), modified_at(path)
            if last_good is not None and written_at is not None and 0 <= self._clock() - written_at < _STILL_WRITING_S:
                self._scan.look_again(name)
                return last_good
            self._skip(name, SkippedSkill(_printable(str(path)), _printable(str(error))))
            return None
        self._skipped.pop(name, None)
        return skill

    def _skip(self, name: str, skipped: SkippedSkill) -> None:
        if self._skipped.get(name) != skipped:
            log.warning("skill skipped reason=%s", skipped.reason)
        self._skipped[name] = skipped

    def _note(self, put: list[Skill], removed: list[str]) -> None:
        """Keep the content hashes, and what to say of the change."""
        self._unpublished |= dict.fromkeys(removed, "removed")
        self._unpublished |= {skill.name: "changed" if self._index.get(skill.name) else "added" for skill in put}
        for name in (*removed, *(skill.name for skill in put)):
            outdated = self._index.get(name)
            if outdated is not None:
                del self._hashes[bisect_left(self._hashes, outdated.content_hash)]
        self._hashes += [skill.content_hash for skill in put]
        self._hashes.sort()  # all but the last few are in order already, which makes this a single pass

    def _publish(self, *, shown_anew: bool) -> None:
        """Have the store number the set of skills if it is a new one, and swap the view."""
        if self._began and not shown_anew and not self._unpublished:
            self._report(None)
            return
        content_hash = combined_hash(self._hashes)
        try:
            number = self._number(content_hash)
        except StoreError as error:
            self._report(f"a new skill generation could not be stored: {error}")
            return
        self._began = True
        self._unpublished.clear()
        self._report(None)
        if number != self._view.generation:
            log.info("skills in force generation=%d skills=%d skipped=%d", number, len(self._index), len(self._skipped))
        self._view = ShelfView(number, content_hash, self._index, tuple(self._skipped[name] for name in sorted(self._skipped)))

    def _number(self, content_hash: str) -> int:
        if self._began:
            if content_hash == self._view.hash:
                return self._view.generation
            return self._generations.publish(self._index.skills(), self._reason()).number
        latest = self._generations.latest()
        if latest.hash == content_hash or (not latest.skills and not self._hashes):
            return latest.number
        return self._generations.publish(self._index.skills(), "files changed while stopped").number

    def _reason(self) -> str:
        parts = []
        for what in ("added", "changed", "removed"):
            names = sorted(name for name, happened in self._unpublished.items() if happened == what)
            if names:
                more = f" and {len(names) - _NAMES_IN_REASON} more" if len(names) > _NAMES_IN_REASON else ""
                parts.append(f"{what} {', '.join(names[:_NAMES_IN_REASON])}{more}")
        return "; ".join(parts) or "files changed"

    def _report(self, trouble: str | None) -> None:
        if trouble != self._trouble:
            log.log(logging.INFO if trouble is None else logging.ERROR, "skill shelf %s", trouble or "is in step again")
        self._trouble = trouble


def _printable(text: str) -> str:
    """A file name need not be UTF-8, but what is shown must be."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
