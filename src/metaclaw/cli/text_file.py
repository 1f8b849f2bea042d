"""Text files of a project that rules are read from and written to."""

from pathlib import Path
from typing import Final

from metaclaw.durable_files import BY_UMASK, replace_file
from metaclaw.errors import SkillError

_MOST_BYTES: Final = 1 << 20


def read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SkillError(f"{path} cannot be read ({error}): give a text file in UTF-8") from error
    if len(raw) > _MOST_BYTES or "\0" in text:
        raise SkillError(
            f"{path} is larger than {_MOST_BYTES} bytes or not text: give a Markdown or text file"
        )
    return text


def with_section(text: str, section: str) -> str:
    """A file's text with the section in the place of an earlier one, or at the end. A section
    begins and ends with a comment that marks it; no other byte changes. Raises SkillError if the
    marks do not tell where it is."""
    first, *_, last = section.strip().splitlines()
    marks = text.count(first), text.count(last)
    if marks not in ((0, 0), (1, 1)) or text.find(last) < text.find(first):
        raise SkillError(
            f"the file has {marks[0]} of the marks {first} and {marks[1]} of {last}: leave one of"
            " each, in this order, or none"
        )
    if "\r\n" in text:
        section = section.replace("\n", "\r\n")
    if all(marks):
        return text[: text.find(first)] + section.rstrip() + text[text.find(last) + len(last) :]
    newline = "\r\n" if "\r\n" in text else "\n"
    missing = 2 - min(2, len(text) - len(text.rstrip("\r\n"))) if text.strip() else 0
    return text + newline * missing + section


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one step, keeping its mode. Raises SkillError."""
    try:
        mode = path.stat().st_mode & 0o777 if path.exists() else None
        replace_file(path, text.encode(), mode=BY_UMASK if mode is None else mode)
        if mode is not None:
            path.chmod(mode)
    except OSError as error:
        raise SkillError(f"{path} cannot be written: {error.strerror or error}") from error
