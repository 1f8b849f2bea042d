"""Where a user's own secrets lie: the environment, and the files that programs keep them in."""

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from metaclaw.config import Config, Secret, flatten
from metaclaw.errors import ConfigError

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
    """Everything secret in the environment, a home folder's dotfiles and our own configuration; to be hashed, never to be kept."""
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
    """The file's text; nothing where there is none or it cannot be read. A file that is not there holds no secret to know."""
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
                continue  # A secret that is not there cannot leak.
            yield from _URL_PASSWORD.findall(text) if "://" in text else (text,)
