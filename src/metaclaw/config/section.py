"""The home folder, and the building blocks of the tree: strict sections, the value types they
share, and secrets.

A secret is a literal, `env:NAME` or `file:PATH`; it is resolved late and masked in every output.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, LiteralString, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from metaclaw.errors import ConfigError
from metaclaw.home import default_home as default_home

CONFIG_NAME = "config.toml"


def prepare_home(home: Path) -> None:
    """Create the home folder and its subfolders, for their owner only."""
    try:
        for folder in (home, home / "run", home / "logs", home / "skills"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the home folder {home} cannot be used ({error.strerror}): choose another with"
            " METACLAW_HOME"
        ) from error


MASK = "********"
PASSTHROUGH = "passthrough"
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Secret:
    """A secret as written; `resolve` returns the secret itself. No output of this type contains a
    literal.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def resolve(self, env: Mapping[str, str] | None = None) -> str:
        """The secret itself. Raises ConfigError if its variable or file has none."""
        kind, _, rest = self._text.partition(":")
        if kind == "env":
            return self._from_variable(rest, os.environ if env is None else env)
        if kind == "file":
            return self._from_file(Path(rest).expanduser())
        return self._text

    @property
    def is_passthrough(self) -> bool:
        """Whether it stands for the caller's own credentials."""
        return self._text == PASSTHROUGH

    @property
    def is_literal(self) -> bool:
        """Whether the configuration itself contains the secret."""
        return not self.is_passthrough and not self._text.startswith(("env:", "file:"))

    @property
    def masked(self) -> str:
        """What may be shown: where the secret comes from, never the secret."""
        return MASK if self.is_literal else self._text

    def _from_variable(self, name: str, env: Mapping[str, str]) -> str:
        value = env.get(name, "").strip()
        if not value:
            raise ConfigError(
                f"the secret {self.masked} is missing: set the environment variable {name}, or"
                " write the secret itself"
            )
        return value

    def _from_file(self, path: Path) -> str:
        try:
            value = path.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the secret {self.masked} cannot be read ({error}): make {path} a readable text"
                " file"
            ) from error
        if not value:
            raise ConfigError(f"the secret {self.masked} is empty: write the secret into {path}")
        return value

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash((type(self), self._text))

    def __str__(self) -> str:
        return self.masked

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.masked!r})"

    @classmethod
    def __get_pydantic_core_schema__(
        cls, _source: object, _handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._read, serialization=core_schema.to_string_ser_schema(when_used="always")
        )

    @classmethod
    def _read(cls, value: object) -> "Secret":
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            raise PydanticCustomError("secret_type", "is not a text")
        problem = _problem(value)
        if problem is not None:
            raise PydanticCustomError("secret_value", problem)
        return cls(value)


class SecretUrl(Secret):
    """An address that may hold a password: shown without it."""

    __slots__ = ()

    @property
    def masked(self) -> str:
        return without_password(self._text) if self.is_literal else self._text


def without_password(url: str) -> str:
    """The same address with its password, if it has one, masked."""
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError:
        return MASK
    if password is None:
        return url
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:{MASK}@{place}"))


def _problem(text: str) -> LiteralString | None:
    if not text or text != text.strip() or not text.isprintable():
        return "is empty, or has spaces around it or unprintable characters in it"
    kind, separator, rest = text.partition(":")
    if not separator or kind not in ("env", "file"):
        return None
    if kind == "env" and not _ENV_NAME.fullmatch(rest):
        return "does not name an environment variable after env:"
    if kind == "file" and not rest.startswith(("/", "~")):
        return "does not name a file by its whole path (or from ~) after file:"
    return None


# TOML has one kind of list; the tree holds tuples because it is frozen.
Names: TypeAlias = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)]
Seconds: TypeAlias = Annotated[float, Field(gt=0, le=86_400)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """Base of all sections: frozen, no unknown keys, no silent conversion, no values in errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, allow_inf_nan=False
    )


def whole_path(text: str, known: ValidationInfo) -> Path:
    """A path with `{home}` and `~` filled in. Relative paths are refused, since their meaning
    depends on the current folder.
    """
    path = Path(text.replace("{home}", str(home_of(known)))).expanduser()
    if not path.is_absolute() or "\0" in text:
        raise PydanticCustomError(
            "relative_path", "is not a whole path; begin it with /, ~ or {home}"
        )
    return path


def home_of(known: ValidationInfo) -> Path:
    """The home folder the tree is read for."""
    home = known.context.get("home") if isinstance(known.context, dict) else None
    return home if isinstance(home, Path) else default_home()


def is_http(url: str) -> bool:
    """Whether a text is an address without query or fragment."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    plain = url.isascii() and url.isprintable() and " " not in url
    return (
        plain
        and parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and port != 0
        and not parts.query
        and not parts.fragment
    )
