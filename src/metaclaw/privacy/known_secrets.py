"""The user's own secrets, from the environment, dotfiles and our configuration, kept only as keyed
hashes.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from metaclaw.config import Config, Secret, flatten
from metaclaw.errors import ConfigError
from metaclaw.privacy.secret_values import TABLE, is_mixed, is_random, wordiness
from metaclaw.text import from_base64

_RUN = re.compile(r"[A-Za-z0-9]+")
_PATH = re.compile(r"(?:https?:/|[~.])?(?:/[\w.@-]+){1,30}/?")
_HEAD = 4


class KnownSecrets:
    """A set of secrets that can be found in a text but not read from this object.

    For each secret it keeps a keyed hash of the whole, and one of the first characters of its
    longest run of letters and digits, which rules out most text quickly. Each process draws a new
    key and never stores it."""

    __slots__ = ("_count", "_heads", "_key", "min_chars")

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._key = os.urandom(16)
        self._heads: dict[int, list[tuple[int, int, bytes]]] = {}
        """By the hash of a run's first characters: the characters before the run, the length of the
        secret, its hash.
        """
        wanted = {secret.strip() for secret in secrets}
        runs = [
            (secret, max(_RUN.finditer(secret), key=lambda run: len(run[0])))
            for secret in wanted
            if is_worth_knowing(secret)
        ]
        for secret, run in runs:
            self._heads.setdefault(hash((self._key, run[0][:_HEAD])), []).append(
                (run.start(), len(secret), self._hash(secret))
            )
        self._count = len(runs)
        self.min_chars = min((len(run[0]) for _, run in runs), default=0)

    def __len__(self) -> int:
        return self._count

    def find(self, text: str, words: Iterable[str]) -> Iterator[tuple[int, int]]:
        """Find the secrets in a text, also inside longer words. `words` are the distinct words of
        the text.
        """
        if not self._count:
            return
        runs = re.compile(rf"[A-Za-z0-9]{{{self.min_chars},}}")
        heads = {
            run: marks
            for run in set(runs.findall("\n".join(words)))
            if (marks := [*self._marks(run)])
        }
        for run in runs.finditer(text) if heads else ():
            for begin, length, digest in heads.get(run[0], ()):
                start = run.start() + begin
                if start >= 0 and self._hash(text[start : start + length]) == digest:
                    yield start, start + length

    def _marks(self, run: str) -> Iterator[tuple[int, int, bytes]]:
        key, heads = self._key, self._heads
        for at in range(len(run) - self.min_chars + 1):
            for before, length, digest in heads.get(hash((key, run[at : at + _HEAD])), ()):
                yield at - before, length, digest

    def _hash(self, text: str) -> bytes:
        return hashlib.blake2b(
            text.encode("utf-8", "surrogatepass"), digest_size=16, key=self._key
        ).digest()


def is_worth_knowing(secret: str) -> bool:
    """Whether to search texts for this value: with `postgres` as a password, every mention of the
    database would be redacted.
    """
    if (
        not 8 <= len(secret) <= 20_000
        or not _RUN.search(secret)
        or (_PATH.fullmatch(secret) and not is_random(secret))
    ):
        return False
    has_digit, oddly_written = (
        any(map(str.isdigit, secret)),
        not (secret.islower() or secret.isupper() or secret.istitle()),
    )
    if is_mixed(secret) and (len(secret) >= 16 or (len(secret) >= 10 and has_digit)):
        return True
    return wordiness(secret) < 0.7 or (len(secret) >= 10 and oddly_written)


_SECRET_NAME = re.compile(TABLE["known"]["name"], re.IGNORECASE)
_INNOCENT_NAME = re.compile(TABLE["known"]["innocent"])
_URL_PASSWORD = re.compile(r"://[^\s/:@]{0,100}:([^\s@/]{1,300})@")
# `name = value` in any notation, the password of a .netrc or .pgpass file, a file that is one token
_ASSIGNED = re.compile(
    r"([\w.-]{1,200})[\"']?[ \t]*[=:][ \t]*(?:\"([^\"\n]*)\"|'([^'\n]*)'|([^\s\"'{\[][^\n]*))"
)
_ALONE = re.compile(
    r"\b(?:password|account)\s+(\S+)|^(?:[^:\s]*:){4}(\S+)$|\A\s*(\S+)\s*\Z", re.MULTILINE
)


def secrets_of(
    environ: Mapping[str, str], home: Path, config: Config | None = None
) -> Iterator[str]:
    """Secrets in the environment, a home folder's dotfiles and our own configuration. Callers must
    keep only hashes of them.
    """
    named = list(environ.items())
    for text in (_read(home / name) for name in TABLE["known"]["files"]):
        named += ((name, "".join(value)) for name, *value in _ASSIGNED.findall(text))
        yield from ("".join(value) for value in _ALONE.findall(text))
        yield from _URL_PASSWORD.findall(text)
    for name, value in named:
        yield from _URL_PASSWORD.findall(value)
        if _SECRET_NAME.search(name) and not _INNOCENT_NAME.match(name):
            yield value
            yield from_base64(value).partition(":")[2]  # as Docker keeps `user:password`
    for _, setting in flatten(config) if config is not None else ():
        if isinstance(setting, Secret) and not setting.is_passthrough:
            try:
                text = setting.resolve(environ)
            except ConfigError:
                continue  # an unset secret cannot leak
            yield from _URL_PASSWORD.findall(text) if "://" in text else (text,)


def _read(path: Path) -> str:
    """The file's text; empty if it is missing or unreadable."""
    try:
        with path.open("rb") as file:
            return file.read(1_000_000).decode("utf-8", "replace")
    except OSError:
        return ""
