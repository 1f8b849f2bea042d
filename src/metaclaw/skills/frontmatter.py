"""The front matter of a skill file: a small YAML mapping, read without tags, anchors, aliases or deep nesting."""

import re

import yaml

from metaclaw.errors import SkillError

_MAX_CHARS = 16_384
_MAX_DEPTH = 8
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
    return plain if plain is not None else _parse_yaml(text, where)


def render_front_matter(fields: dict[str, object]) -> str:
    """The mapping as YAML lines, in the order given."""
    return "".join(_render_line(key, value) for key, value in fields.items())


def _render_line(key: str, value: object) -> str:
    # What reads as plain words is written so; YAML's own writer says the same, ten times slower.
    if isinstance(value, str) and value[:1].isalpha() and value.isascii() and len(value) < _PLAIN_CHARS:
        line = f"{key}: {value}\n"
        if _parse_plain(line) == {key: value}:
            return line
    return yaml.dump({key: value}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000, default_flow_style=False)


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


def _parse_yaml(text: str, where: str) -> dict[str, object]:
    try:
        _refuse_surprises(text, where)
        parsed = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 2 if error.problem_mark else 2
        raise SkillError(f"{where}: line {line}: {error.problem}: put text with `: ` or ` #` in quotes") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise SkillError(
            f"{where}: the front matter is not YAML ({str(error).splitlines()[0]}): write `key: value` lines"
        ) from error
    if not isinstance(parsed, dict) or not all(isinstance(key, str) for key in parsed):
        raise SkillError(f"{where}: the front matter is not a mapping from words: write `key: value` lines")
    return parsed


def _refuse_surprises(text: str, where: str) -> None:
    """Walk the events, which needs no recursion, and refuse what a skill has no use for before anything is built from them."""
    depth, keys, at_key = 0, set[str](), True
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 2
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise SkillError(f"{where}: line {line}: an anchor or alias (`&`, `*`): write the value out, or put it in quotes")
        if getattr(event, "tag", None) is not None:
            raise SkillError(f"{where}: line {line}: a YAML tag (`!`): leave it out, or put the value in quotes")
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth == 1 and isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
            if at_key and isinstance(event, yaml.ScalarEvent):
                if event.value in keys:
                    raise SkillError(f"{where}: line {line}: `{event.value}` is there twice: keep one")
                keys.add(event.value)
            at_key = not at_key if isinstance(event, yaml.ScalarEvent | yaml.CollectionEndEvent) else at_key
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                raise SkillError(f"{where}: line {line}: nested more than {_MAX_DEPTH} deep: keep the front matter flat")


# The C parser where PyYAML was built with it; both refuse Python objects.
_Loader: type[yaml.SafeLoader] | type[yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Dumper(yaml.SafeDumper):
    """Writes every value out, so that what is written never holds the anchors that reading refuses."""

    def ignore_aliases(self, data: object) -> bool:
        return True
