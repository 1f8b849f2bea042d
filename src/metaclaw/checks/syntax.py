"""Parse and render the text of a check in a skill's front matter.

    pattern: \\d{4}-\\d{2}-\\d{2}               the answer's words must match
    not: (?i)as an ai                        they must not match
    not in calls: git push .*\\bmain\\b        the arguments of any tool call must not match
    pattern in calls of bash: ^set -e        the arguments of calls of `bash` must match
    not in calls of shell as written: ^pip   a command with what starts it (`uv run pip` passes)
    schema: {"type": "object"}               JSON in the answer must satisfy this JSON Schema
    schema in calls of save: {…}             the arguments of those calls must satisfy it
    program: |                               Python; reads the answer and the conversation as JSON from standard input, and prints
      import json, sys                       {"score": 0 to 1, "reason": "…"}, or exits with 0 (pass) or 1 (fail)
      …

An answer that does not pass may still earn a part of the reward: by the named groups of a pattern,
the required properties of a schema, or the score of a program.

In YAML, put a text with `: ` in quotes or below a `|`.
"""

import ast
import json
import re
import textwrap
from functools import lru_cache
from typing import cast

from metaclaw.domain.chat import Json
from metaclaw.domain.check import (
    MAX_SCHEMA_CHARS,
    Check,
    PatternCheck,
    Place,
    ProgramCheck,
    SchemaCheck,
    Where,
)
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.errors import SkillError

_HEAD = re.compile(
    r"\s*(?P<kind>pattern|not|schema|program)(?:[ \t]+in[ \t]+(?P<place>[a-z]+)(?:[ \t]+of["
    r" \t]+(?P<tool>\S+?)(?P<written>[ \t]+as[ \t]+written)?)?)?[ \t]*:"
)
_BLOCK_SIGN = re.compile(r"[ \t]*[|>][+-]?[ \t]*(?:\n|\Z)")
# Nothing is fetched.
_FAR_REFERENCE = re.compile(r"\"\$(?:ref|dynamicRef|recursiveRef)\"\s*:\s*\"[^#\"][^\"]*\"")


def parse_check(text: str, *, approved: bool = True) -> Check:
    """A check from its text. `approved` says that a person wrote it or agreed to it. Raises
    SkillError with the remedy.
    """
    return _parsed(text, approved)


@lru_cache(1024)  # the checks of rules are parsed for every answer
def _parsed(text: str, approved: bool) -> Check:
    head = _HEAD.match(text)
    if head is None:
        raise SkillError(
            "a check begins with `pattern:`, `not:`, `schema:` or `program:`, each but the last"
            " with `in calls` if wanted"
        )
    rest = text[head.end() :]
    try:
        where = _where(head)
        match head["kind"]:
            case "schema":
                return SchemaCheck(_schema(_text(rest).strip()), where)
            case "program" if where == Where():
                return ProgramCheck(_python(_text(rest)), approved)
            case "program":
                raise SkillError("a program sees the whole answer: leave out `in …`")
            case kind:
                return PatternCheck(_text(rest).strip(), kind == "pattern", where)
    except ValueError as error:
        raise SkillError(f"check: {error}") from error


def _python(source: str) -> str:
    """The source of a program. Raises ValueError if it is not Python."""
    try:
        ast.parse(source)
    except SyntaxError as error:
        raise ValueError(f"its program is not Python: line {error.lineno}: {error.msg}") from error
    except (RecursionError, MemoryError) as error:
        raise ValueError("its program is nested too deeply") from error
    return source


def check_of(skill: Skill) -> Check | None:
    """The check of a skill, or None. Raises SkillError if it cannot be read. A program that the
    evolver wrote counts as approved only once the skill is in force, which needs a person's
    approval."""
    if skill.check is None:
        return None
    is_in_force = skill.state is SkillState.LIVE
    return parse_check(skill.check, approved=skill.author is not Authorship.EVOLVER or is_in_force)


def check_trouble(skill: Skill) -> str | None:
    """Why the check of a skill cannot be read, so that it is not run; None if it can be, or if
    there is none.
    """
    return None if skill.check is None else _text_trouble(skill.check)


@lru_cache(1024)
def _text_trouble(text: str) -> str | None:
    try:
        parse_check(text)
    except SkillError as error:
        return str(error)
    return None


def waits_for_person(skill: Skill) -> str | None:
    """Why a person must agree before this skill's check may be run, or None."""
    check = check_of(skill)
    if isinstance(check, ProgramCheck) and skill.author is Authorship.EVOLVER:
        return "its check is a program that a model wrote"
    return None


def _where(head: re.Match[str]) -> Where:
    if head["place"] is None:
        return Where()
    try:
        return Where(Place(head["place"]), head["tool"], head["written"] is not None)
    except ValueError as error:
        raise SkillError(
            f"check: write `in answer`, `in calls` or `in calls of TOOL`: {error}"
        ) from error


def _text(rest: str) -> str:
    """The text after the colon: the rest of the line, or the indented lines below a `|`."""
    block = _BLOCK_SIGN.match(rest)
    if block is None:
        return rest.removeprefix(" ") if rest.strip() else ""
    return textwrap.dedent(rest[block.end() :])


def _schema(text: str) -> dict[str, Json]:
    if len(text) > MAX_SCHEMA_CHARS:
        raise ValueError(f"a schema has at most {MAX_SCHEMA_CHARS} characters, not {len(text)}")
    try:
        parsed = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the schema is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ValueError("the schema is not a JSON object")
    if far := _FAR_REFERENCE.search(text):
        raise ValueError(f"{far[0]} points outside the schema")
    _refuse_bad_schema(parsed)
    return cast("dict[str, Json]", parsed)


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _refuse_bad_schema(schema: dict[str, object]) -> None:
    # Imported here, because most skills have no schema, and the library takes a sixth of a second
    # to load.
    import jsonschema

    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ValueError(f"not a JSON Schema: {error.message}") from error
    except RecursionError as error:
        raise ValueError("the schema is nested too deeply") from error
