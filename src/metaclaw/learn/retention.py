"""Deletion from the store: turns older than the configured days, turns beyond the size limit, and
sessions that are forgotten.

A deletion cannot be undone, and a wall clock can be wrong. If the clock is more than a day ahead of
the last run of retention, nothing is deleted until it has stayed ahead for a day. A clock that goes
back is accepted at once, because an earlier time deletes less. Each step of forgetting a session
can be repeated: an interrupted deletion is finished at the next start."""

import logging
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw.clock import utc_now
from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.skill import Skill
from metaclaw.errors import SkillError, StoreError
from metaclaw.skills import SkillLibrary, remove_script
from metaclaw.store import (
    Database,
    DerivedData,
    LedgerReader,
    SqlBackups,
    SqlBatches,
    SqlCursors,
    SqlForgetting,
    SqlGenerations,
    SqlPolicies,
    SqlUpkeep,
)

log = logging.getLogger(__name__)

TRUSTED_CURSOR: Final = "retention"
"""When retention last ran, in microseconds since 1970."""
DOUBTED_CURSOR: Final = "retention doubts"
"""When retention first saw the clock that it doubts; 0 while it trusts the clock."""
_EVERY_S: Final = 3_600.0
_EVERY_DOUBTED_S: Final = 60.0
_DAY: Final = timedelta(days=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_FIRST_UPKEEP_S: Final = 2.0
_UPKEEP_EVERY_S: Final = 60.0
_CHECK_EVERY_S: Final = 86_400.0
TRAINED_ON: Final = "it was trained on a session that was forgotten"
_PURGE_LIMIT_S: Final = 30.0
_COMPACT_BELOW_BYTES: Final = 256 << 20
_MOST_TRIES: Final = 5
_PAGE: Final = 200


def microseconds(at: datetime) -> int:
    """A time as a cursor keeps it: microseconds since 1970."""
    return (at - _EPOCH) // timedelta(microseconds=1)


@dataclass(eq=False)
class Retention:
    """Runs once an hour, and once a minute while the clock is doubted."""

    forgetting: SqlForgetting
    cursors: SqlCursors
    reader: LedgerReader
    days: int
    now: Callable[[], datetime] = utc_now

    def __post_init__(self) -> None:
        self.trouble: str | None = None
        """Why nothing is deleted at present, for `status`; None if nothing is wrong."""

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self.run_once()
            await anyio.sleep(_EVERY_S if self.trouble is None else _EVERY_DOUBTED_S)

    async def run_once(self) -> None:
        """Delete the turns that are too old, unless the clock may be wrong."""
        now = self.now()
        trouble = await run_sync(self._doubt, now)
        if trouble is not None and self.trouble is None:
            log.warning("retention_waits reason=%s", trouble)
        self.trouble = trouble
        if trouble is not None:
            return
        gone = await run_sync(self.forgetting.forget_before, now - timedelta(days=self.days))
        if gone:
            log.info("forgotten turns=%d older_than_days=%d", gone, self.days)

    def _doubt(self, now: datetime) -> str | None:
        """Why the clock is doubted, or None. Blocks."""
        trusted, doubted = self._time(TRUSTED_CURSOR), self._time(DOUBTED_CURSOR)
        if trusted is None:
            # Saved now, because later turns may have the time of a wrong clock.
            trusted = self.reader.last_received() or now
            self._keep(TRUSTED_CURSOR, trusted)
        if now > trusted + _DAY and (doubted is None or now < doubted + _DAY):
            if doubted is None or now < doubted:
                doubted = now
                self._keep(DOUBTED_CURSOR, now)
            return (
                f"deletes nothing until {doubted + _DAY:%Y-%m-%d %H:%M} UTC: the clock is"
                f" {(now - trusted).days} days ahead of when retention last ran, so it may be"
                " wrong. If it is right, do nothing; else set the clock"
            )
        self._keep(TRUSTED_CURSOR, now)
        if doubted is not None:
            self._keep(DOUBTED_CURSOR, _EPOCH)
        return None

    def _time(self, cursor: str) -> datetime | None:
        at_us = self.cursors.cursor(cursor)
        return _EPOCH + timedelta(microseconds=at_us) if at_us else None

    def _keep(self, cursor: str, at: datetime) -> None:
        self.cursors.move_cursor(cursor, microseconds(at))


class StoreUpkeep:
    """Checks the size of the store once a minute, and its integrity once a day, in a thread."""

    def __init__(self, store: SqlUpkeep) -> None:
        self._store = store
        self._check_due_s = 0.0

    async def run(self) -> None:
        """Run until cancelled."""
        await anyio.sleep(_FIRST_UPKEEP_S)
        while True:
            if time.monotonic() >= self._check_due_s:
                self._check_due_s = time.monotonic() + _CHECK_EVERY_S
                await run_sync(self._store.check)
            await self.run_once()
            await anyio.sleep(_UPKEEP_EVERY_S)

    async def run_once(self) -> None:
        """Delete turns beyond the size limit, then shrink the file."""
        await run_sync(self._store.make_room)
        if freed_bytes := await run_sync(self._store.give_back):
            log.info("unused space given back bytes=%d", freed_bytes)


@dataclass(frozen=True, slots=True)
class Erased:
    """The report of forgetting a session: what was deleted with it.

    Skills that a person has rewritten since stay. The texts of deleted skills are removed from the
    recorded prompts of other sessions; their answers stay. `backups` still contain the session.
    `is_purged` says that the files of the database no longer do."""

    session: SessionId
    turns: int
    found: DerivedData
    since: datetime | None
    began_s: float
    backups: tuple[str, ...] = ()
    is_purged: bool = False

    def as_json(self) -> dict[str, Json]:
        """The report as JSON."""
        found = self.found
        return {
            "session": self.session,
            "turns": self.turns,
            "candidates": len(found.candidates),
            "skills": [*found.skills],
            "edited": [*found.edited],
            "sessions": [*found.sessions],
            "batches": [*found.batches],
            "versions": [*found.versions],
            "backups": [*self.backups],
            "purged": self.is_purged,
            "seconds": round(time.monotonic() - self.began_s, 3),
        }


class SessionErasure:
    """Forgets sessions. `policies` is the folder of trained weights. Blocks.

    Unless `is_alone`, only a small database is compacted, because all writes wait meanwhile.
    """

    def __init__(
        self, database: Database, library: SkillLibrary, policies: Path, *, is_alone: bool = False
    ) -> None:
        self._database = database
        self._library = library
        self._policies = policies
        self._compact_below_bytes = None if is_alone else _COMPACT_BELOW_BYTES
        self._forgetting = SqlForgetting(database)

    def forget(self, session: SessionId) -> Erased | None:
        """Delete the session's turns and what was learned from them; None if there is no trace of
        such a session.
        """
        began_s = time.monotonic()
        self._forgetting.begin(session)
        known = LedgerReader(self._database).session(session)
        turns = self._forgetting.forget_session(session)
        found = self._forgetting.derived_data(session)
        if known is None and not (
            turns or found.candidates or found.batches or self._forgetting.is_unpurged(session)
        ):
            return None
        self._take_back()
        return Erased(session, turns, found, None if known is None else known.began_at, began_s)

    def forget_again(self, report: Erased) -> Erased:
        """Delete what a running request or the learner wrote of the session meanwhile."""
        self._forgetting.drop_late_turns(report.session)
        turns = self._forgetting.forget_session(report.session)
        if turns:
            self._take_back()
        self._forgetting.erase_traces(report.found)
        return replace(report, turns=report.turns + turns)

    def remove_weights(self) -> None:
        """Delete the weights of deleted versions, and the files that runs of ended batches have
        left.
        """
        batch = SqlBatches(self._database).open_batch_now()
        running = "" if batch is None else f"{batch.number:06d}"
        versions = SqlPolicies(self._database).thrown_away()
        folders = {folder for version in versions for folder in (version.adapter, version.training)}
        ours = [
            Path(folder)
            for folder in folders
            if folder is not None and Path(folder).parent == self._policies
        ]
        runs = self._policies / "runs"
        ours += [run for run in runs.iterdir() if run.name != running] if runs.is_dir() else []
        for folder in ours:
            shutil.rmtree(folder, ignore_errors=True)

    def purge(self, report: Erased) -> Erased:
        """Remove deleted text from the files of the database, and list the backups that still
        contain it.
        """
        self._forgetting.end([report.session])
        purged = self._purge()
        known = SqlBackups(self._database).known()
        old = [
            backup
            for backup in known
            if backup.path.exists() and (report.since is None or backup.made_at >= report.since)
        ]
        log.info(
            "session forgotten session=%s turns=%d purged=%s", report.session, report.turns, purged
        )
        return replace(report, backups=tuple(str(backup.path) for backup in old), is_purged=purged)

    def finish(self) -> bool:
        """Finish the deletions that were interrupted; return whether there were any."""
        if not self._forgetting.is_unfinished():
            return False
        begun = self._forgetting.begun()
        self._forgetting.delete_begun()
        self._take_back()
        self._forgetting.end(begun)
        self._purge()
        return True

    def _purge(self) -> bool:
        try:
            return self._forgetting.purge(
                compact_below_bytes=self._compact_below_bytes, within_s=_PURGE_LIMIT_S
            )
        except StoreError as error:
            log.warning("deleted text is still in the database's files reason=%s", error)
            return False

    def _take_back(self) -> None:
        """Retire the skills, delete their files, then their history. Repeat if a skill was
        published meanwhile.
        """
        for _ in range(_MOST_TRIES):
            descent = self._forgetting.derived_data()
            names = [name for name in descent.skills if self._library.view.get(name) is not None]
            if names:
                restored = self._replaced_by(names, descent.names)
                changed = [
                    _without_overrides(skill, names)
                    for skill in self._library.view.skills
                    if skill.name not in names and not set(names).isdisjoint(skill.overrides)
                ]
                self._library.publish(
                    [*changed, *restored], names, "forgot a session", by_person=True
                )
            self._library.sync()
            for name in descent.names.difference(descent.edited):
                remove_script(self._library.folder, name)
            if self._forgetting.erase(TRAINED_ON):
                return
        raise SkillError("skills that the session taught are published again and again")

    def _replaced_by(self, names: Sequence[SkillName], forgotten: Collection[str]) -> list[Skill]:
        """The rules that these rules replaced, as they were before, unless they are forgotten,
        too.
        """
        before: dict[SkillName, list[Skill]] = {}
        generations, page = SqlGenerations(self._database), None
        while changes := generations.changes(page, _PAGE):
            for change in changes:
                gone = [skill for name, skill in change.before.items() if name not in change.after]
                if change.reason.startswith("replaced "):
                    before |= {
                        name: gone
                        for name in change.after.keys() - change.before.keys()
                        if name not in before
                    }
            page = changes[-1].number
        restored: dict[SkillName, Skill] = {}
        left = list(names)
        while left:
            for skill in before.pop(left.pop(), []):
                if skill.name in forgotten:
                    left.append(skill.name)
                elif self._library.view.get(skill.name) is None:
                    restored[skill.name] = skill
        return list(restored.values())


def _without_overrides(skill: Skill, names: list[SkillName]) -> Skill:
    return replace(
        skill,
        overrides=tuple(name for name in skill.overrides if name not in names),
    )
