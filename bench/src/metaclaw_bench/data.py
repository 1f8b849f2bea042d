"""Reading a benchmark in the published layout: the index, each day's questions, workspace and
seeded transcript; and its digest.
"""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from metaclaw.plugin import ConfigError
from metaclaw_bench import published
from metaclaw_bench.published import ChoiceRound, CommandEval, FileRound, Index, IndexedDay
from metaclaw_bench.questions import Benchmark, ChoiceCheck, Day, Feedback, FileCheck, Round, Said

INDEX: Final = "all_tests.json"
# Deep enough for the whole public repository, shallow enough not to search a disk.
_DEPTH: Final = 4
_LETTER: Final = re.compile(r"[A-Z]")
_DAY_FOLDER: Final = re.compile(r"day\d+")


def read_benchmark(root: Path, only: Collection[str] | None = None) -> Benchmark:
    """The benchmark in `root` (or in the one folder below it that has an index); with `only`, of
    its days only these.

    Raises ConfigError, which names file and field. What the index names must be there: a folder
    with a part of the days has an index of that part, or `only` names them."""
    path = _find_index(root)
    index = published.read(path, Index)
    listed = _chosen(path, index, only)
    evals = _part(path, "eval", index.eval_dir, "eval_dir")
    workspaces = _part(path, "workspaces/shared", index.workspace_src, "workspace_src")
    absent = [day.id for day in listed if not (evals / day.eval / "questions.json").is_file()]
    if absent:
        raise ConfigError(
            f"{path}: test: no questions for {', '.join(absent)} under {evals}; "
            "get these days, or choose days that are there, or use an index that names only those"
        )
    sessions = (
        _part(path, "openclaw_state", index.openclaw_state_dir, "openclaw_state_dir")
        if index.openclaw_state_dir
        else None
    )
    days = tuple(_day(entry, evals, workspaces, sessions) for entry in listed)
    folders = {entry.id for entry in index.test}
    checkers = evals / "scripts"
    return Benchmark(
        name=index.name,
        root=path.parent,
        days=days,
        shared=dict(_shared(workspaces, folders)),
        checkers=checkers if any(checkers.glob("*.py")) else None,
    )


def digest(root: Path) -> str:
    """One hash over every file's name and bytes: equal before and after a run, or the data was not
    read unchanged.

    The same as `find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum`, run inside `root`.
    """
    names = {b"./" + os.fsencode(path.relative_to(root)): path for path in _files(root)}
    lines = (
        hashlib.sha256(names[name].read_bytes()).hexdigest().encode() + b"  " + name + b"\n"
        for name in sorted(names)
    )
    return hashlib.sha256(b"".join(lines)).hexdigest()


def _files(root: Path) -> Iterator[Path]:
    return (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def _find_index(root: Path) -> Path:
    if (root / INDEX).is_file():
        return root / INDEX
    found = sorted(
        path for depth in range(1, _DEPTH + 1) for path in root.glob("*/" * depth + INDEX)
    )
    match found:
        case [path]:
            return path
        case []:
            raise ConfigError(
                f"{root}: no {INDEX} here or below; point to the folder of the benchmark that"
                " holds it"
            )
    raise ConfigError(
        f"{root}: several benchmarks ({', '.join(str(path.parent) for path in found)}); point to"
        " one of them"
    )


def _chosen(path: Path, index: Index, only: Collection[str] | None) -> list[IndexedDay]:
    _unique(path, "test[].id", (day.id for day in index.test))
    unknown = sorted(set(only or ()) - {day.id for day in index.test})
    if unknown:
        raise ConfigError(
            f"{path}: test: does not name {', '.join(unknown)}; choose among its days"
        )
    chosen = [day for day in index.test if only is None or day.id in only]
    if not chosen:
        raise ConfigError(f"{path}: test: no days; there is nothing to run")
    return chosen


def _part(index: Path, beside: str, literal: str, field: str) -> Path:
    """A folder of the data: beside the index wherever the copy lies, or where the index says, seen
    from a folder above it.
    """
    here = index.parent / beside
    if here.is_dir():
        return here
    said = (
        literal.removeprefix("${METACLAW_ROOT}").lstrip("/")
        if literal.startswith("${METACLAW_ROOT}")
        else literal
    )
    for above in index.resolve().parents:
        if said and (above / said).is_dir():
            return above / said
    raise ConfigError(
        f"{index}: {field}: neither {here} nor {literal or 'anything'} is a folder; get the"
        " benchmark's data again"
    )


def _day(entry: IndexedDay, evals: Path, workspaces: Path, sessions: Path | None) -> Day:
    path = evals / entry.eval / "questions.json"
    group = published.read(path, published.Group)
    _unique(path, "rounds[].id", (record.id for record in group.rounds))
    if not group.rounds:
        raise ConfigError(f"{path}: rounds: none; a day needs a question")
    folder = workspaces / entry.id
    return Day(
        id=entry.id,
        title=entry.desc or group.desc,
        session=entry.session,
        opening=(
            ()
            if sessions is None
            else _opening(sessions / "agents" / entry.agent / "sessions" / f"{entry.session}.jsonl")
        ),
        rounds=tuple(
            _round(f"{path}: rounds[{place}] ({record.id})", record)
            for place, record in enumerate(group.rounds)
        ),
        folder=folder if folder.is_dir() else None,
        tags=(*((f"arc {entry.arc}",) if entry.arc else ()), *entry.preference_tags),
    )


def _round(where: str, record: FileRound | ChoiceRound) -> Round:
    if record.update:
        raise ConfigError(
            f"{where}: update: changes of the day before a round are not supported, and ignoring"
            " them would be another test"
        )
    if isinstance(record, FileRound):
        check: FileCheck | ChoiceCheck = _file_check(where, record.eval)
    else:
        check = _choice_check(where, record)
    said = record.feedback
    return Round(
        record.id, record.question, check, Feedback(said.correct, said.incorrect, said.options)
    )


def _file_check(where: str, record: CommandEval) -> FileCheck:
    if not record.command.strip():
        raise ConfigError(f"{where}: eval.command: empty; a file check needs one")
    if record.timeout <= 0:
        raise ConfigError(
            f"{where}: eval.timeout: {record.timeout} is not a time; write seconds above 0"
        )
    if record.expect_stdout_regex and record.expect_stdout is not None:
        try:
            re.compile(record.expect_stdout)
        except re.error as error:
            raise ConfigError(
                f"{where}: eval.expect_stdout: not a regular expression ({error})"
            ) from None
    return FileCheck(
        record.command,
        record.expect_exit,
        record.timeout,
        record.expect_stdout,
        record.expect_stdout_regex,
    )


def _choice_check(where: str, record: ChoiceRound) -> ChoiceCheck:
    options = tuple(record.eval.options)
    if not options:
        raise ConfigError(f"{where}: eval.options: none; a score is a share of the options")
    odd = [letter for letter in options if not _LETTER.fullmatch(letter)]
    if odd:
        raise ConfigError(
            f"{where}: eval.options: {', '.join(odd)} cannot be ticked; options are called A to Z"
        )
    given = record.eval.answer
    answer = frozenset(
        letter.strip().upper()
        for letter in (given if isinstance(given, list) else given.split(","))
    )
    if not answer or not answer <= set(options):
        raise ConfigError(
            f"{where}: eval.answer: {', '.join(sorted(answer)) or 'nothing'} is not among the"
            " options"
        )
    return ChoiceCheck(options, answer)


def _opening(path: Path) -> tuple[Said, ...]:
    said = []
    for number, raw in enumerate(published.content(path).splitlines(), start=1):
        if not raw.strip():
            continue
        line = published.decode(raw, published.Line, f"{path}:{number}")
        if line.type == "message" and line.message is not None:
            said.append(Said(line.message.role, _text(line.message)))
    return tuple(said)


def _text(message: published.Message) -> str:
    if isinstance(message.content, str):
        return message.content
    return "\n".join(piece.text for piece in message.content if piece.type == "text")


def _shared(workspaces: Path, days: Collection[str]) -> Iterator[tuple[str, Path]]:
    """What every day's workspace holds: all files that do not lie in the folder of a day."""
    for path in sorted(_files(workspaces)):
        inside = path.relative_to(workspaces)
        if len(inside.parts) == 1 or not (
            inside.parts[0] in days or _DAY_FOLDER.fullmatch(inside.parts[0])
        ):
            yield inside.as_posix(), path


def _unique(path: Path, field: str, names: Iterable[str]) -> None:
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise ConfigError(
            f"{path}: {field}: {', '.join(twice)} more than once; every score needs a place of"
            " its own"
        )
