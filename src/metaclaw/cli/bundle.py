"""`metaclaw doctor --bundle`: a zip file for a bug report, without secrets and without the words of
prompts, answers, rules and skills.
"""

import json
import os
import platform
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit
from zipfile import ZIP_DEFLATED, ZipFile

import metaclaw
from metaclaw import __version__
from metaclaw.cli.home import reading
from metaclaw.cli.service import service_variables
from metaclaw.domain.candidate import Standing
from metaclaw.domain.chat import Wire
from metaclaw.domain.turn import TurnEnd, TurnKind
from metaclaw.domain.verdict import Outcome, Source
from metaclaw.errors import MetaClawError
from metaclaw.privacy import KnownSecrets, Redactor, secrets_of

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    from metaclaw.config import Config

_LOG_BYTES: Final = 512 * 1024
_LINE: Final = re.compile(r"([\d-]+ [\d:,]+ [A-Z]+) (metaclaw[\w.]*) (\w[\w.]*)(?: (.*))?")
"""Time and level, logger, event, and what the line says of the event."""
_FRAME: Final = re.compile(r'  File "[^"]*/(metaclaw/[^"]+)\.py", line (\d+), in ([\w.<>]+)')
_CALL: Final = re.compile(r"\blog\.\w+\(\s*((?:\"[^\"\n]*\"\s*)+)")
_VALUE: Final = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?|[bcst]_[0-9a-f]{24,40}|True|False|None|-")
_OUR_WORDS: Final = {*Wire, *TurnKind, *TurnEnd, *Outcome, *Source, *Standing}
_PLAIN_FINDINGS: Final = ("clock", "embedded", "workers")
"""What `doctor` says of these is made of words and numbers of this program alone."""


def write_bundle(
    path: Path, home: Path, config: "Config | None", findings: Sequence[Mapping[str, object]]
) -> list[str]:
    """Write the file, for its owner only; return the names of what it contains."""
    redact = _redaction(home, config)
    parts = {
        "versions.json": _as_json(_versions()),
        "doctor.json": redact(_as_json([_finding(one) for one in findings])),
        "settings.json": redact(_as_json({} if config is None else dict(_settings("", config)))),
        "store.json": _as_json({} if config is None else _counts(config)),
        "log.txt": redact("\n".join(_log(home))),
    }
    try:
        with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            with ZipFile(file, "w", ZIP_DEFLATED) as bundle:
                for name, text in parts.items():
                    bundle.writestr(name, text)
    except OSError as error:
        raise MetaClawError(f"{path} cannot be written: {error.strerror}") from error
    return list(parts)


def _redaction(home: Path, config: "Config | None") -> Callable[[str], str]:
    """Replaces every secret that is known here, and what looks like one."""
    env = {**os.environ, **service_variables(home)}
    known = KnownSecrets() if config is None else KnownSecrets(secrets_of(env, Path.home(), config))
    redactor = Redactor(known)
    return lambda text: redactor.text(text).text


def _as_json(facts: object) -> str:
    return json.dumps(facts, indent=2, default=str)


def _versions() -> Mapping[str, object]:
    return {
        "metaclaw": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "installed": {one.name: one.version for one in distributions()},
    }


def _finding(found: Mapping[str, object]) -> Mapping[str, object]:
    """A finding without names, paths and what providers said."""
    subject = str(found["name"]).partition(" ")[0]
    what = {"what": found["what"]} if subject in _PLAIN_FINDINGS else {}
    return {"state": found["state"], "name": subject, **what}


def _settings(place: str, section: "BaseModel") -> Iterator[tuple[str, object]]:
    """Every setting: numbers, switches, what this program offers to choose from, defaults, and of
    an address scheme and host. All else may be a name, a path or a secret.
    """
    for name, value in section:
        inner = value if isinstance(value, tuple) else ()
        if hasattr(value, "model_fields_set"):
            yield from _settings(f"{place}{name}.", value)
        elif inner and hasattr(inner[0], "model_fields_set"):
            for number, one in enumerate(inner):
                yield from _settings(f"{place}{name}.{number}.", one)
        else:
            yield f"{place}{name}", _shown(value, type(section).model_fields[name])


def _shown(value: object, setting: "FieldInfo") -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    is_safe = isinstance(value, str | tuple) and value == setting.default
    if is_safe or "Literal[" in repr(setting.annotation) or isinstance(value, Enum):
        return value
    if isinstance(value, str) and "://" in value:
        parts = urlsplit(value)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    return "(set)" if value else "(empty)"


def _counts(config: "Config") -> Mapping[str, object]:
    try:
        with reading(config) as reader:
            return {} if reader is None else asdict(reader.counts())
    except MetaClawError as error:
        return {"unreadable": type(error).__name__}


def _log(home: Path) -> Iterator[str]:
    """The end of the log: this program's events, of their fields numbers, ids and words that are
    its own, and where in it errors were raised.
    """
    path = home / "logs" / "metaclaw.log"
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return
    modules, events = _own_log()
    for line in lines:
        if (found := _LINE.fullmatch(line)) is not None:
            when, logger, event, said = found.groups()
            if logger in modules and event in events:
                yield " ".join((when, logger, event, *_fields(said or "", events[event])))
        elif (frame := _FRAME.match(line)) is not None:
            module, number, function = frame.groups()
            if module.replace("/", ".") in modules:
                yield f'  File "{module}.py", line {number}, in {function}'


def _fields(said: str, known: Collection[str]) -> Iterator[str]:
    """The fields that are safe, up to where text begins."""
    for word in said.split(" "):
        name, is_field, value = word.partition("=")
        if not is_field:
            return
        if name in known and (_VALUE.fullmatch(value) or value in _OUR_WORDS):
            yield word


def _own_log() -> tuple[set[str], Mapping[str, set[str]]]:
    """The modules of this program, and the events that they log, with the names of their fields."""
    root = Path(metaclaw.__file__).parent
    modules, events = set[str](), dict[str, set[str]]()
    for path in root.rglob("*.py"):
        parts = path.relative_to(root.parent).with_suffix("").parts
        modules |= {".".join(parts), ".".join(parts[:-1])}
        for call in _CALL.findall(path.read_text("utf-8")):
            text = "".join(re.findall('"([^"]*)"', call))
            event = re.match(r"\w[\w.]*", text)
            if event is not None:
                events.setdefault(event[0], set()).update(re.findall(r"(\w+)=%", text))
    return modules, events
