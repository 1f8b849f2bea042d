"""Agents that know every rule and what each check looks at: one pads, one does what was asked, one
errs once.

oracle  as many files and log entries as the check counts, every element of a list complete; tries contents out where it must
honest  one artefact a round: what was asked for, and no more
late    like honest, but the first time it meets a rule it breaks it, and never goes back
"""

import re
from pathlib import Path
from typing import Final, assert_never

from metaclaw_bench.checking import Checked, run_check
from metaclaw_bench.questions import ChoiceCheck, Day, FileCheck, Round
from metaclaw_bench.simulated import file_contents
from metaclaw_bench.simulated.attempts import attempts
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
    Want,
    wants,
)

_ANY_DATE: Final = "20260316"
_DIGITS: Final = re.compile(r"(\[0-9\])+\*?")


class Oracle:
    """Makes the files that a check's command asks for, and ticks what the data says is right."""

    def __init__(self, *, pads: bool = True, errs_once: bool = False) -> None:
        self._pads = pads
        self._errs_once = errs_once
        self._met: set[str] = set()

    def act(self, day: Day, asked: Round, workspace: Path) -> str:
        """Do the round's work in the workspace, and answer."""
        if isinstance(asked.check, ChoiceCheck):
            return tick(asked.check.answer)
        broken = self._broken(asked.check.command)
        _Work(asked.id, workspace, wants(asked.check.command), self._pads, broken).do()
        if self._pads:
            _try_out(asked.check, workspace)
        return "Done."

    def _broken(self, command: str) -> frozenset[str]:
        """The rules met for the first time, if those are to be broken."""
        rules = {rule_of(want) for want in wants(command)} - {None} if self._errs_once else set()
        fresh = frozenset(rule for rule in rules if rule is not None and rule not in self._met)
        self._met |= fresh
        return fresh


def _try_out(check: FileCheck, workspace: Path) -> None:
    """Where the check fails and opens files itself, try other contents for them; without success
    they stay as they were.
    """
    tried = attempts(check.command, workspace)
    first = next(tried, None)
    if first is None or not _fails(check, workspace):
        return
    before = {path: path.read_bytes() if path.exists() else None for path in first}
    for contents in (first, *tried):
        for path, text in contents.items():
            before.setdefault(path, path.read_bytes() if path.exists() else None)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        if not _fails(check, workspace):
            return
    for path, content in before.items():
        if content is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(content)


def _fails(check: FileCheck, workspace: Path) -> bool:
    outcome = run_check(check, workspace)
    return isinstance(outcome, Checked) and not outcome.passed


def tick(letters: frozenset[str]) -> str:
    """An answer with these letters in its box."""
    return rf"My answer: \bbox{{{','.join(sorted(letters))}}}"


def rule_of(want: Want) -> str | None:
    """Which of the house's rules a check of this kind is about. Metadata are a rule of their own in
    every kind of file.
    """
    match want:
        case Times() | Text():
            return "times"
        case Names() | Files():
            return "names"
        case Metadata(target):
            return f"metadata in {Path(target.path).suffix}"
        case Backup():
            return "backup"
        case Log():
            return "log"
        case Member():
            return None
        case _:
            assert_never(want)


def _filled(pattern: str, stem: str) -> str:
    """A name that the pattern matches, with a date in front where it leaves that open."""
    dated = _DIGITS.sub(_ANY_DATE, pattern, count=1)
    before, star, after = dated.partition("*")
    if not star:
        return dated
    joint = "_" if after[:1].isalnum() else ""
    return f"{'' if before else _ANY_DATE + '_'}{before}{stem}{joint}{after.replace('*', '')}"


class _Work:
    """One round's work."""

    def __init__(
        self, name: str, workspace: Path, wanted: list[Want], pads: bool, broken: frozenset[str]
    ) -> None:
        self._name = name
        self._workspace = workspace
        self._wanted = wanted
        self._pads = pads
        self._broken = broken
        self._made: dict[str, Path] = {}

    def do(self) -> None:
        # Backups first, since everything else may change the file; counts last, when what was asked
        # for is there.
        for kind in (Backup, Files, Names, Member, Text, Times, Metadata, Log):
            for want in self._wanted:
                if isinstance(want, kind):
                    self._meet(want)

    def _meet(self, want: Want) -> None:
        match want:
            case Backup(path):
                self._back_up(self._workspace / path)
            case Files(target, at_least):
                self._make(target.path, self._keyword(target), at_least)
            case Names(folder, ending, at_least):
                self._make(f"{folder.rstrip('/')}/{_ANY_DATE}_*.{ending}", "task", at_least)
            case Member(path, name, key, value, fields):
                self._add_member(
                    self._workspace / path,
                    name,
                    {key: value} | dict.fromkeys(fields, file_contents.TIME),
                )
            case Text(path, phrases):
                self._write_text(self._workspace / path, phrases)
            case Times(target, fields):
                self._set_times(target, fields)
            case Metadata(target):
                for file in self._files(target) if rule_of(want) not in self._broken else ():
                    file_contents.add_metadata(file)
            case Log(path, at_least, prefix):
                self._log(self._workspace / path, at_least, prefix)
            case _:
                assert_never(want)

    def _back_up(self, path: Path) -> None:
        backup = path.with_name(path.name + ".bak")
        if not path.exists():
            file_contents.write_new(path, with_metadata=False)
        if "backup" not in self._broken and not backup.exists():
            backup.write_bytes(path.read_bytes())
        file_contents.change(path)

    def _keyword(self, target: Target) -> str:
        """What the new file is called: something that every part of the check looks for in it."""
        same = [
            want.target
            for want in self._wanted
            if isinstance(want, Files | Times | Metadata) and want.target.path == target.path
        ]
        sought = [word for known in (target, *same) for word in known.keywords]
        return sought[0] if sought else "task"

    def _make(self, pattern: str, word: str, at_least: int) -> None:
        """One new file of this pattern, and more of them if the check counts more and counts are to
        be met.
        """
        folder, _, name = pattern.rpartition("/")
        # An exact name that a round asks for twice is one file.
        if f"{folder}/{Path(name).suffix}" not in self._made:
            stem = f"{word}_{self._name}"
            self._made[f"{folder}/{Path(name).suffix}"] = self._new(folder, name, stem)
        matching = pattern.replace(_ANY_DATE, "[0-9]" * 8) if _ANY_DATE in pattern else pattern
        missing = at_least - len(list(self._workspace.glob(matching))) if self._pads else 0
        for number in range(missing):
            self._new(folder, name, f"more_{self._name}_{number}")

    def _new(self, folder: str, name: str, stem: str) -> Path:
        path = (
            self._workspace
            / folder
            / (f"New {stem}{Path(name).suffix}" if "names" in self._broken else _filled(name, stem))
        )
        file_contents.write_new(
            path, with_metadata=f"metadata in {path.suffix}" not in self._broken
        )
        return path

    def _files(self, target: Target) -> list[Path]:
        """The files a check may pick: what was just made, and with padding every other one it could
        mean.
        """
        if not target.is_pattern:
            return [self._workspace / target.path]
        folder = target.path.rpartition("/")[0]
        made = self._made.get(f"{folder}/{Path(target.path).suffix}")
        others = sorted(self._workspace.glob(target.path)) if self._pads else []
        return [*([made] if made else []), *(path for path in others if path != made)]

    def _set_times(self, target: Target, fields: tuple[str, ...]) -> None:
        value = file_contents.NOT_A_TIME if "times" in self._broken else file_contents.TIME
        for path in self._files(target):
            content = file_contents.read_object(path)
            for field in fields:
                file_contents.set_field(content, field, value, everywhere=self._pads)
            file_contents.write_object(path, content)

    def _write_text(self, path: Path, phrases: tuple[str, ...]) -> None:
        time = file_contents.NOT_A_TIME if "times" in self._broken else file_contents.TIME
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([time, time, *phrases]) + "\n", encoding="utf-8")

    def _add_member(self, path: Path, name: str, member: dict[str, str]) -> None:
        content = file_contents.read_object(path)
        present = content.get(name)
        write = [*(present if isinstance(present, list) else []), member]
        file_contents.write_object(path, {**content, name: write})

    def _log(self, path: Path, at_least: int, prefix: str) -> None:
        if "log" in self._broken:
            file_contents.append_line(path, f"done with {self._name}")
            return
        entry = (
            f"[DONE] {file_contents.TIME} | {prefix or 'task'}_{self._name} | did what was asked"
        )
        file_contents.append_line(path, entry)
        missing = at_least - len(path.read_text(encoding="utf-8").splitlines()) if self._pads else 0
        for _ in range(missing):
            file_contents.append_line(path, entry)
