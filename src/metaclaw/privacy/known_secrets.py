"""The user's own secrets, from the environment and dotfiles, kept only as salted hashes."""

import base64
import binascii
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from metaclaw.config import Config, Secret, flatten
from metaclaw.errors import ConfigError
from metaclaw.privacy.secret_tokens import Certainty, SecretMatch, is_mixed, is_random, wordiness

_RUN = re.compile(r"[A-Za-z0-9]+")
_PATH = re.compile(r"(?:https?:/|[~.])?(?:/[\w.@-]+){1,30}/?")
_MIN_CHARS = 8
_FAIR_CHARS = 10
_LONG_CHARS = 16
_PREFIX = 4


@dataclass(frozen=True, slots=True)
class _Mark:
    """Position and length of a secret relative to its longest run of letters and digits, and its hash."""

    before: int
    length: int
    digest: bytes


class KnownSecrets:
    """A set of secrets that can be found in a text but not read from this object.

    Of each secret there are: a salted hash of the whole, one of its longest run of letters and digits, and one of that run's
    first characters, by which text is passed over quickly. The salt is drawn anew in every process and never stored.
    """

    __slots__ = ("_count", "_lengths", "_prefixes", "_runs", "_salt")

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._salt = os.urandom(16)
        self._runs: dict[bytes, list[_Mark]] = {}
        self._prefixes: dict[int, set[int]] = {}
        """Lengths of runs by the hash of their first characters."""
        self._count = 0
        for secret in {secret.strip() for secret in secrets}:
            if is_worth_knowing(secret):
                self._learn(secret)
        self._lengths = tuple(sorted({length for lengths in self._prefixes.values() for length in lengths}))

    @classmethod
    def collect(cls, environ: Mapping[str, str], home: Path, config: Config | None = None) -> "KnownSecrets":
        """The secrets in the environment, in the dotfiles of a home folder and in our own configuration."""
        return cls(secrets_of(environ, home, config))

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"KnownSecrets({self._count})"

    @property
    def min_chars(self) -> int | None:
        """Length of the shortest run; None without secrets. Shorter words cannot contain one."""
        return self._lengths[0] if self._lengths else None

    def find(self, text: str, words: list[str]) -> list[SecretMatch]:
        """Find the secrets in a text, also inside longer words. `words` are the distinct words of the text."""
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

    def _whole(self, text: str, start: int, digest: bytes) -> Iterator[SecretMatch]:
        for mark in self._runs[digest]:
            begin = start - mark.before
            if begin >= 0 and self._hash(text[begin : begin + mark.length]) == mark.digest:
                yield SecretMatch(begin, begin + mark.length, "SECRET:known", Certainty.KNOWN)

    def _hash(self, text: str) -> bytes:
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, salt=self._salt).digest()


def is_worth_knowing(secret: str) -> bool:
    """Whether to search texts for this value: with `postgres` as a password, every mention of the database would be redacted."""
    if len(secret) < _MIN_CHARS or not _RUN.search(secret) or ("\n" in secret and len(secret) > 20_000):
        return False
    if _PATH.fullmatch(secret) and not is_random(secret):
        return False
    if is_mixed(secret) and (len(secret) >= _LONG_CHARS or (len(secret) >= _FAIR_CHARS and any(map(str.isdigit, secret)))):
        return True
    oddly_written = not (secret.islower() or secret.isupper() or secret.istitle())
    return wordiness(secret) < 0.7 or (len(secret) >= _FAIR_CHARS and oddly_written)


_SECRET_NAME = re.compile(
    r"pass(?:word|wd|phrase|code)?(?:_|$)|pwd$|secret|token|api_?key|access_?key|private_?key|_key$|auth|credential|session"
    r"|cookie|jwt|dsn$"
    r"|webhook|connection_?string",
    re.IGNORECASE,
)
_INNOCENT_NAME = re.compile(
    r"^(?:PWD|OLDPWD|SSH_AUTH_SOCK|XAUTHORITY|SESSION_MANAGER|DBUS_SESSION\w*|XDG_SESSION\w*|DESKTOP_SESSION|GDMSESSION"
    r"|TERM_SESSION_ID|\w*_(?:FILE|PATH|DIR|SOCK|URL|ENDPOINT|ID_FILE))$"
)
_URL_PASSWORD = re.compile(r"://[^\s/:@]{0,100}:([^\s@/]{1,300})@")
_ASSIGNMENT = re.compile(
    r"^[ \t]*(?:export[ \t]+|set[ \t]+)?([\w.:/-]{1,200})[ \t]*[=:][ \t]*(?:[\"'](.*)[\"']|(\S.*?))[ \t\r]*$", re.MULTILINE
)
_NETRC = re.compile(r"\b(?:password|account)\s+(\S+)")
_MAX_BYTES = 1_000_000
_ASSIGNING = (
    ".env", ".envrc", ".npmrc", ".yarnrc", ".yarnrc.yml", ".pypirc", ".my.cnf", ".s3cfg", ".boto", ".wakatime.cfg",
        ".aws/credentials",
    ".config/gh/hosts.yml", ".config/hub", ".config/glab-cli/config.yml", ".config/pip/pip.conf", ".cargo/credentials.toml",
    ".cargo/credentials", ".gem/credentials", ".bundle/config", ".kaggle/kaggle.json", ".config/stripe/config.toml", ".terraformrc",
    ".databrickscfg", ".config/doctl/config.yaml", ".config/openai/config", ".bashrc", ".zshrc", ".profile", ".bash_profile",
        ".zshenv",
)  # fmt: skip
_WHOLE = (
    ".cache/huggingface/token",
    ".huggingface/token",
    ".vault-token",
    ".config/openai.token",
    ".anthropic/api_key",
    ".tinker/api_key",
)
_JSON = (
    ".docker/config.json",
    ".config/gcloud/application_default_credentials.json",
    ".claude/.credentials.json",
    ".codex/auth.json",
)


def secrets_of(environ: Mapping[str, str], home: Path, config: Config | None) -> Iterator[str]:
    """Secrets in the environment, a home folder's dotfiles and our own configuration. Callers hash them and keep none."""
    yield from _from_environment(environ)
    for name in _ASSIGNING:
        yield from _from_assignments(_read(home / name))
    for name in _WHOLE:
        yield _read(home / name)
    for name in _JSON:
        yield from _from_json(_read(home / name))
    for name in (".netrc", "_netrc"):
        yield from _NETRC.findall(_read(home / name))
    for line in _read(home / ".pgpass").splitlines():
        yield line.rpartition(":")[2]
    for line in _read(home / ".git-credentials").splitlines():
        yield from _URL_PASSWORD.findall(line)
    if config is not None:
        yield from _from_config(config, environ)


def _read(path: Path) -> str:
    """The file's text; empty if it is missing or unreadable."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None and not _INNOCENT_NAME.match(name)


def _from_environment(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in environ.items():
        if is_secret_name(name):
            yield value
        yield from _URL_PASSWORD.findall(value)


def _from_assignments(text: str) -> Iterator[str]:
    for name, quoted, bare in _ASSIGNMENT.findall(text):
        if is_secret_name(name.rpartition(":")[2]) or name.endswith(":_password"):
            yield quoted or bare
    yield from _URL_PASSWORD.findall(text)


def _from_json(text: str) -> Iterator[str]:
    try:
        yield from _strings(json.loads(text), is_secret=False)
    except (ValueError, RecursionError):
        return


def _strings(value: object, *, is_secret: bool) -> Iterator[str]:
    match value:
        case dict():
            for key, inner in value.items():
                yield from _strings(inner, is_secret=is_secret_name(str(key)) or (is_secret and isinstance(inner, dict | list)))
        case list():
            for inner in value:
                yield from _strings(inner, is_secret=is_secret)
        case str() if is_secret:
            yield value
            yield from _basic(value)


def _basic(value: str) -> Iterator[str]:
    """The password in `user:password` in base64, as Docker keeps it."""
    try:
        user, separator, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return
    if separator and user.isprintable():
        yield password


def _from_config(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    for _, value in flatten(config):
        if isinstance(value, Secret) and not value.is_passthrough:
            try:
                text = value.resolve(environ)
            except ConfigError:
                continue  # an unset secret cannot leak
            yield from _URL_PASSWORD.findall(text) if "://" in text else (text,)
