"""YAML front matter that is more than `key: words`: read without tags, anchors or deep nesting.
Loaded only when needed.
"""

import json
import re

import yaml

from metaclaw.errors import SkillError

_MAX_DEPTH = 8
# A value without quotes that YAML misreads: `description: Use when: it rains`, or a value that
# begins with a backtick.
_WORDS_ALONE = re.compile(
    r"""([A-Za-z][\w-]*:[ ]+)((?:[`@]|[^\s"'\[\]{}|>&*!%#,?:-])[^\n]*?)[ \t\r]*"""
)


def parse_yaml(text: str, where: str) -> dict[str, object]:
    """The mapping in a front matter. Raises SkillError that names `where`, the line and the
    remedy.
    """
    try:
        parsed = _load(text, where)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 2 if error.problem_mark else 2
        raise SkillError(
            f"{where}: line {line}: {error.problem}: put text with `: ` or ` #` in quotes"
        ) from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise SkillError(
            f"{where}: the front matter is not YAML ({str(error).splitlines()[0]}): write `key:"
            " value` lines"
        ) from error
    if not isinstance(parsed, dict) or not all(isinstance(key, str) for key in parsed):
        raise SkillError(
            f"{where}: the front matter is not a mapping from words: write `key: value` lines"
        )
    return parsed


def _load(text: str, where: str) -> object:
    try:
        _refuse_surprises(text, where)
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError:
        quoted = "\n".join(_quoted(line) for line in text.split("\n"))
        if quoted == text:
            raise
        try:
            _refuse_surprises(quoted, where)
            return yaml.load(quoted, Loader=_Loader)
        except yaml.MarkedYAMLError:
            pass
        raise  # the error of the text as written


def _quoted(line: str) -> str:
    """The line with its value in quotes, if it is plain words that YAML would misread."""
    found = _WORDS_ALONE.fullmatch(line)
    if found is None or not (": " in found[2] or found[2].endswith(":") or found[2][0] in "`@"):
        return line
    return found[1] + json.dumps(found[2], ensure_ascii=False)


def _refuse_surprises(text: str, where: str) -> None:
    """Refuse anchors, tags, duplicate keys and deep nesting before anything is built."""
    depth, keys, at_key = 0, set[str](), True
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 2
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise SkillError(
                f"{where}: line {line}: an anchor or alias (`&`, `*`): write the value out, or put"
                " it in quotes"
            )
        if getattr(event, "tag", None) is not None:
            raise SkillError(
                f"{where}: line {line}: a YAML tag (`!`): leave it out, or put the value in quotes"
            )
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth == 1 and isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
            if at_key and isinstance(event, yaml.ScalarEvent):
                if event.value in keys:
                    raise SkillError(
                        f"{where}: line {line}: `{event.value}` is there twice: keep one"
                    )
                keys.add(event.value)
            at_key = (
                not at_key
                if isinstance(event, yaml.ScalarEvent | yaml.CollectionEndEvent)
                else at_key
            )
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                raise SkillError(
                    f"{where}: line {line}: nested more than {_MAX_DEPTH} deep: keep the front"
                    " matter flat"
                )


# The C parser if PyYAML was built with it; both refuse Python objects.
_Loader: type[yaml.SafeLoader] | type[yaml.CSafeLoader] = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)


class _Dumper(yaml.SafeDumper):
    """Writes no anchors, which reading refuses."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def write_yaml(fields: dict[str, object]) -> str:
    """The mapping as YAML lines, in the order given."""
    return yaml.dump(
        fields,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=10_000,
        default_flow_style=False,
    )
