"""`metaclaw doctor --bundle`: a zip file for a bug report, without secrets and without the words of
prompts, answers, rules and skills.
"""

import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit
from zipfile import ZIP_DEFLATED, ZipFile

from metaclaw import __version__
from metaclaw.cli.home import reading
from metaclaw.cli.service import service_variables
from metaclaw.errors import MetaClawError
from metaclaw.privacy import KnownSecrets, Redactor, secrets_of

if TYPE_CHECKING:
    from metaclaw.config import Config

_LOG_BYTES: Final = 512 * 1024
_LINE: Final = re.compile(r"([\d-]+ [\d:,]+ [A-Z]+ metaclaw[\w.]* \w[\w.]*)(?: (.*))?")
"""Time, level, logger and event of a line, and what it says of the event."""
_FRAME: Final = re.compile(r'  File "[^"]+", line \d+, in \S+')
_FIELD: Final = re.compile(r"\b(\w+)=([\w.:/%+-]+)(?= \w+=|$)")
_WORDS: Final = frozenset(("error", "reason", "text", "task", "name", "rule", "skill", "what"))
"""Fields of the log that may hold words of people and providers."""
_PRIVATE: Final = ("teams",)


def write_bundle(
    path: Path, home: Path, config: "Config | None", findings: Sequence[object]
) -> list[str]:
    """Write the file, for its owner only; return the names of what it contains."""
    redact = _redaction(home, config)
    parts = {
        "versions.json": _as_json(_versions()),
        "doctor.json": redact(_as_json(findings)),
        "settings.json": redact(_as_json({} if config is None else dict(_settings(config)))),
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


def _settings(config: "Config") -> Iterator[tuple[str, object]]:
    """Every setting; of an address, only scheme and host: the rest may be a secret."""
    from metaclaw.config import Secret, flatten

    for key, value in flatten(config):
        if isinstance(value, Secret):
            yield key, value.masked if value.masked.startswith(("env:", "file:")) else "(set)"
        elif isinstance(value, str) and "://" in value:
            parts = urlsplit(value)
            yield key, f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        elif not key.startswith(_PRIVATE):
            yield key, value


def _counts(config: "Config") -> Mapping[str, object]:
    try:
        with reading(config) as reader:
            return {} if reader is None else asdict(reader.counts())
    except MetaClawError as error:
        return {"unreadable": type(error).__name__}


def _log(home: Path) -> Iterator[str]:
    """The end of the log: events with their fields of one word, and where errors were raised."""
    path = home / "logs" / "metaclaw.log"
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        if (event := _LINE.fullmatch(line)) is not None:
            fields = _FIELD.findall(event[2] or "")
            kept = [f"{name}={value}" for name, value in fields if name not in _WORDS]
            yield " ".join((event[1], *kept))
        elif (frame := _FRAME.match(line)) is not None:
            yield frame[0]
