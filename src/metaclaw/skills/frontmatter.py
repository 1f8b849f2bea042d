"""The front matter of a skill file: a small YAML mapping, read without tags, anchors, aliases or deep nesting."""

import re

from metaclaw.errors import SkillError

_MAX_CHARS = 16_384
_PLAIN_CHARS = 8_000
# `key: plain words` needs no YAML parser where it begins with a letter, holds no ": " or " #" and is no YAML word for another type;
# nor does a quoted line without escapes in it.
_PLAIN_LINE = re.compile(
    r"([a-z][a-z_-]*): +(?:([A-Za-z][^\n#:\t]*(?:(?::|(?<! )#)[^\s#:][^\n#:\t]*)*)|'([^'\n\t]+)' *|\"([^\"\\\n\t]+)\" *)\n"
)
_NOT_TEXT = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")


def parse_front_matter(text: str, where: str) -> dict[str, object]:
    """The mapping in a front matter. Raises SkillError that names `where`, the line and the remedy."""
    if len(text) > _MAX_CHARS:
        raise SkillError(
            f"{where}: the front matter has {len(text)} characters: keep it below {_MAX_CHARS}; text belongs below the second `---`"
        )
    plain = _parse_plain(text)
    if plain is not None:
        return plain
    # Imported by those whose skills need it: nearly none do, and everybody waits for the start.
    from metaclaw.skills.fullyaml import parse_yaml

    return parse_yaml(text, where)


def render_front_matter(fields: dict[str, object]) -> str:
    """The mapping as YAML lines, in the order given."""
    return "".join(_render_line(key, value) for key, value in fields.items())


def _render_line(key: str, value: object) -> str:
    # What reads as plain words is written so; YAML's own writer says the same, ten times slower.
    if isinstance(value, str) and value[:1].isalpha() and value.isascii() and len(value) < _PLAIN_CHARS:
        line = f"{key}: {value}\n"
        if _parse_plain(line) == {key: value}:
            return line
    from metaclaw.skills.fullyaml import write_yaml

    return write_yaml({key: value})


def _parse_plain(text: str) -> dict[str, object] | None:
    """The common case by itself, some ten times faster than YAML: only lines of `key: words`. None where there is more."""
    fields: dict[str, object] = {}
    at = 0
    while at < len(text):
        line = _PLAIN_LINE.match(text, at)
        if line is None or line[1] in fields or line[1] in _NOT_TEXT:
            return None
        key, plain, single, double = line.groups()
        value = plain.rstrip(" ") if plain else single or double
        if _CONTROL.search(value) or (plain and value.lower() in _NOT_TEXT):
            return None
        fields[key] = value
        at = line.end()
    return fields
