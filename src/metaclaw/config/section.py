"""What every part of the tree is made of: sections that are frozen and strict, and the kinds of value they share."""

from pathlib import Path
from typing import Annotated, TypeAlias
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from metaclaw.config.home import default_home

# TOML has one kind of list; the tree holds tuples because it is frozen.
Names: TypeAlias = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)]
Seconds: TypeAlias = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Section(BaseModel):
    """What all parts of the tree share: frozen, nothing unknown, no silent conversion, no value in an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


def whole_path(text: str, known: ValidationInfo) -> Path:
    """A path with `{home}` and `~` filled in. A relative one is refused: it would mean something else in every folder."""
    path = Path(text.replace("{home}", str(home_of(known)))).expanduser()
    if not path.is_absolute() or "\0" in text:
        raise PydanticCustomError("relative_path", "is not a whole path; begin it with /, ~ or {home}")
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
