"""The user's own secrets, known only by salted hashes: enough to recognise them in a text, not enough to tell them."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from metaclaw.config import Config
from metaclaw.privacy.dotfiles import secrets_of
from metaclaw.privacy.hits import Certainty, Hit
from metaclaw.privacy.randomness import is_mixed, is_random, wordiness

_RUN = re.compile(r"[A-Za-z0-9]+")
_PATH = re.compile(r"(?:https?:/|[~.])?(?:/[\w.@-]+){1,30}/?")
_MIN_CHARS = 8
_FAIR_CHARS = 10
_LONG_CHARS = 16
_PREFIX = 4


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where the secret lies around its longest run of letters and digits, and the hash of the whole."""

    before: int
    length: int
    digest: bytes


class KnownSecrets:
    """A set of secrets that can be found in text and cannot be read out.

    Of each secret there are: a salted hash of the whole, one of its longest run of letters and digits, and one of that run's
    first characters, by which text is passed over quickly. The salt is drawn anew in every process and never stored.
    """

    __slots__ = ("_count", "_lengths", "_prefixes", "_runs", "_salt")

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._salt = os.urandom(16)
        self._runs: dict[bytes, list[_Mark]] = {}
        self._prefixes: dict[int, set[int]] = {}
        """The lengths of the runs that begin with these characters, by their hash."""
        self._count = 0
        for secret in {secret.strip() for secret in secrets}:
            if is_worth_knowing(secret):
                self._learn(secret)
        self._lengths = tuple(sorted({length for lengths in self._prefixes.values() for length in lengths}))

    @classmethod
    def collect(cls, environ: Mapping[str, str], home: Path, config: Config | None = None) -> "KnownSecrets":
        """What the environment, the dotfiles of a home folder and our own configuration hold, as hashes."""
        return cls(secrets_of(environ, home, config))

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"KnownSecrets({self._count})"

    @property
    def min_chars(self) -> int | None:
        """How long a word must be to hold a known secret's longest run; None where no secret is known."""
        return self._lengths[0] if self._lengths else None

    def find(self, text: str, words: list[str]) -> list[Hit]:
        """Every place where one of the secrets stands, also glued to other letters. `words` are the text's words, each once."""
        if not self._count:
            return []
        runs = re.compile(rf"[A-Za-z0-9]{{{self._lengths[0]},}}")
        present = {word: marks for word in set(runs.findall("\n".join(words))) if (marks := tuple(self._runs_in(word)))}
        if not present:
            return []
        return [
            hit
            for run in runs.finditer(text)
            for offset, digest in present.get(run[0], ())
            for hit in self._whole(text, run.start() + offset, digest)
        ]

    def _learn(self, secret: str) -> None:
        run = max(_RUN.finditer(secret), key=lambda run: run.end() - run.start())
        mark = _Mark(run.start(), len(secret), self._hash(secret))
        self._runs.setdefault(self._hash(run[0]), []).append(mark)
        self._prefixes.setdefault(hash((self._salt, run[0][:_PREFIX])), set()).add(len(run[0]))
        self._count += 1

    def _runs_in(self, word: str) -> Iterator[tuple[int, bytes]]:
        salt, prefixes = self._salt, self._prefixes
        for offset in range(len(word) - self._lengths[0] + 1):
            for length in prefixes.get(hash((salt, word[offset : offset + _PREFIX])), ()):
                digest = self._hash(word[offset : offset + length])
                if digest in self._runs:
                    yield offset, digest

    def _whole(self, text: str, start: int, digest: bytes) -> Iterator[Hit]:
        for mark in self._runs[digest]:
            begin = start - mark.before
            if begin >= 0 and self._hash(text[begin : begin + mark.length]) == mark.digest:
                yield Hit(begin, begin + mark.length, "SECRET:known", Certainty.KNOWN)

    def _hash(self, text: str) -> bytes:
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, salt=self._salt).digest()


collect = KnownSecrets.collect


def is_worth_knowing(secret: str) -> bool:
    """Whether a value can be looked for everywhere: `postgres` as a password would blacken every mention of the database."""
    if len(secret) < _MIN_CHARS or not _RUN.search(secret) or ("\n" in secret and len(secret) > 20_000):
        return False
    if _PATH.fullmatch(secret) and not is_random(secret):
        return False
    if is_mixed(secret) and (len(secret) >= _LONG_CHARS or (len(secret) >= _FAIR_CHARS and any(map(str.isdigit, secret)))):
        return True
    oddly_written = not (secret.islower() or secret.isupper() or secret.istitle())
    return wordiness(secret) < 0.7 or (len(secret) >= _FAIR_CHARS and oddly_written)
