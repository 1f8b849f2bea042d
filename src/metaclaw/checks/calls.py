"""Tool calls for checks: unwrap calls that contain other calls, and give each its class and the
commands or files in it.

A change of a file is a text with the path on the first line and the new text below, one for each file of a patch.
"""

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from metaclaw.checks.code import literals_of
from metaclaw.checks.commands import code_edits, commands_of
from metaclaw.checks.shell import unescaped
from metaclaw.checks.shell_programs import (
    PATCH_BEGIN,
    PATCH_FILE,
    TABLES,
    patched_files,
)
from metaclaw.domain.chat import Json, ToolCall
from metaclaw.domain.check import ToolClass, is_named, runs_code, tool_class

_MOST_CALLS: Final = 64
_MOST_DEPTH: Final = 4
# Keys of arguments by their meaning, as `plain_key` spells them; the first that a call has counts.
_KEYS: Final = {meaning: keys.split() for meaning, keys in TABLES["call_keys"].items()}
_STDIN_END: Final = "END-OF-STDIN"
_PAIR: Final = re.compile(
    r"""["']?([A-Za-z_]\w*)["']?\s*:\s*(?:"((?:[^"\\]|\\.)*+)"?|'((?:[^'\\]|\\.)*+)'?)""", re.DOTALL
)
_JAVASCRIPT_CALL: Final = re.compile(r"\btools\s*\.\s*(\w+)\s*\(")
_NOTEBOOK_CELL: Final = re.compile(r"[^\n]*\.ipynb\n\s*(?:[^\n]*\n)*?\s*[!%]")
_REPLACEMENT_BEGIN: Final = re.compile(r"={5,}\s*")
_REPLACEMENT_END: Final = re.compile(r"[>+]{5,} ?REPLACE\s*")


@dataclass(frozen=True, slots=True)
class SeenCall:
    """A call: its arguments as `written` and decoded (a text if they are not JSON), and `texts`,
    its commands or its files with their new text; empty for a tool of no class."""

    name: str
    written: str
    arguments: Json
    kind: ToolClass | None
    texts: tuple[str, ...]

    @property
    def takes_script(self) -> bool:
        """Whether its texts are scripts for a shell."""
        return self.kind is ToolClass.SHELL and not runs_code(self.name)

    def is_of(self, tools: Sequence[str]) -> bool:
        """Whether it is a call of one of these tools or classes."""
        return self.is_of_class(tools) or any(is_named(self.name, tool) for tool in tools)

    def is_of_class(self, tools: Sequence[str]) -> bool:
        """Whether its class is one of these."""
        return self.kind is not None and self.kind.value in tools

    def other_arguments(self) -> str:
        """The arguments without the command."""
        if not isinstance(self.arguments, dict):
            return ""
        left = {
            key: value
            for key, value in self.arguments.items()
            if plain_key(key) not in (*_KEYS["command"], *_KEYS["input"])
        }
        return json.dumps(left, ensure_ascii=False)


def seen_calls(call: ToolCall) -> tuple[SeenCall, ...]:
    """The call itself, then the calls that it wraps."""
    return _seen(call.name, call.arguments)


def decoded(arguments: str) -> Json:
    """A call's arguments, encoded once or twice; if they are not JSON, repaired as a client may do,
    else as written. Of a key that occurs twice, both values count, because it is not known which one
    the client takes."""
    try:
        found: Json = json.loads(arguments, strict=False, object_pairs_hook=_merged)
    except RecursionError:
        return arguments
    except ValueError:
        return _repaired(arguments)
    return decoded(found) if isinstance(found, str) and found.lstrip().startswith("{") else found


def _merged(pairs: list[tuple[str, Json]]) -> Json:
    found: dict[str, Json] = {}
    for key, value in pairs:
        if key in found:
            before = found[key]
            is_text = isinstance(before, str) and isinstance(value, str)
            value = f"{before}\n{value}" if is_text else [before, value]
        found[key] = value
    return found


def _repaired(arguments: str) -> Json:
    """The texts by key of an object that is incomplete, or has quotes or escapes that are not
    JSON.
    """
    if not arguments.lstrip().startswith(("{", "```")):
        return arguments
    found: dict[str, list[str]] = {}
    for match in _PAIR.finditer(arguments):
        found.setdefault(match[1], []).append(unescaped(match[2] or match[3] or ""))
    return {key: "\n".join(texts) for key, texts in found.items()} or arguments


def strings_in(value: Json) -> Iterator[str]:
    """Every text in a JSON value."""
    match value:
        case str():
            yield value
        case list():
            for inner in value:
                yield from strings_in(inner)
        case dict():
            for inner in value.values():
                yield from strings_in(inner)
        case _:
            return


@lru_cache(128)  # every rule reads the same calls
def _seen(name: str, written: str) -> tuple[SeenCall, ...]:
    return tuple(_walk(name, written, decoded(written), 0))[:_MOST_CALLS]


def _walk(name: str, written: str, arguments: Json, depth: int) -> Iterator[SeenCall]:
    kind = tool_class(name, arguments)
    source = _javascript(arguments) if kind is ToolClass.SHELL else None
    if source is not None:
        yield SeenCall(name, written, arguments, None, ())
        yield from _javascript_calls(source)
        return
    texts = () if kind is None else tuple(filter(str.strip, _texts(kind, arguments)))
    yield from _with_effects(SeenCall(name, written, arguments, kind, texts))
    if kind is None and isinstance(arguments, dict) and depth < _MOST_DEPTH:
        wrapped = [*_wrapped(arguments)]
        known = [inner for _, inner in wrapped]
        wrapped += [
            (_NAMES_OF[kind], inner)
            for inner in _nested(arguments)
            if (kind := tool_class(name, inner)) in _NAMES_OF and inner not in known
        ]
        for inner_name, inner in wrapped:
            yield from _walk(inner_name, json.dumps(inner, ensure_ascii=False), inner, depth + 1)


def _with_effects(call: SeenCall) -> Iterator[SeenCall]:
    """A call, and as another one the files that its commands write, or the commands in the notebook
    that it changes."""
    yield call
    files: list[tuple[str, str]] = []
    if call.kind is ToolClass.SHELL:
        read = _script_files if call.takes_script else code_edits
        files = [file for text in call.texts for file in read(text)]
    if files:
        edits = tuple("\n".join((_normal_path(path), text, "")) for path, text in files)
        yield SeenCall("", "", None, ToolClass.EDIT, edits)
    cells = [text.partition("\n")[2] for text in call.texts if _NOTEBOOK_CELL.match(text)]
    if cells and call.kind is ToolClass.EDIT:
        yield SeenCall("python", "", None, ToolClass.SHELL, tuple(cells))


def _script_files(script: str) -> tuple[tuple[str, str], ...]:
    return commands_of(script).files


_NAMES_OF: Final = {ToolClass.SHELL: "shell", ToolClass.EDIT: "edit"}


def _nested(value: Json, depth: int = 0) -> Iterator[dict[str, Json]]:
    """The objects inside a value, also those that are written as text."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = [decoded(value)]
    if isinstance(value, dict):
        value = list(value.values())
    for one in value if isinstance(value, list) and depth < _MOST_DEPTH else ():
        if isinstance(one, dict):
            yield one
        yield from _nested(one, depth + 1)


def _by_key(arguments: Mapping[str, Json]) -> dict[str, Json]:
    return {plain_key(key): value for key, value in arguments.items() if value}


def _wrapped(arguments: dict[str, Json]) -> Iterator[tuple[str, Json]]:
    """The calls in the arguments of another call: a name with arguments, or a list of these."""
    by_key = _by_key(arguments)
    batches = [value for key in _KEYS["batch"] if isinstance(value := by_key.get(key), list)]
    for call in [arguments, *(call for batch in batches for call in batch[:_MOST_CALLS])]:
        inside = _by_key(call) if isinstance(call, dict) else {}
        name = next((one for key in _KEYS["name"] if isinstance(one := inside.get(key), str)), None)
        inner = next((inside[key] for key in _KEYS["arguments"] if key in inside), None)
        if name and isinstance(inner, dict | str):
            yield name, decoded(inner) if isinstance(inner, str) else inner
        elif call is not arguments and not inside.keys().isdisjoint(_KEYS["command"]):
            yield "shell", call


def _javascript(arguments: Json) -> str | None:
    """A JavaScript program in a call's arguments that calls tools, or None."""
    values = arguments.values() if isinstance(arguments, dict) else [arguments]
    return next(
        (value for value in values if isinstance(value, str) and _JAVASCRIPT_CALL.search(value)),
        None,
    )


def _javascript_calls(source: str) -> Iterator[SeenCall]:
    literals = literals_of(source)
    patches = [literal for literal in literals if PATCH_BEGIN in literal]
    rest = [literal for literal in literals if PATCH_BEGIN not in literal]
    for name in dict.fromkeys(_JAVASCRIPT_CALL.findall(source)):
        kind = tool_class(name)
        texts = ["\n".join(rest)]
        if kind is ToolClass.EDIT and patches:
            texts = [text for patch in patches for text in _patched(patch)]
        elif kind is ToolClass.SHELL:
            texts = [line for literal in rest for line in _lines(literal)]
        yield from _with_effects(
            SeenCall(name, source, source, kind, tuple(filter(str.strip, texts)))
        )


def _texts(kind: ToolClass, arguments: Json) -> Iterator[str]:
    match kind:
        case ToolClass.SHELL:
            yield "\n".join(_commands(arguments))
        case ToolClass.EDIT:
            yield from _edits(arguments)
        case ToolClass.READ | ToolClass.WEB:
            yield "\n".join(strings_in(arguments))


def _commands(arguments: Json) -> list[str]:
    """The commands that a call runs, after the variables that it sets for them."""
    if not isinstance(arguments, dict):
        return _lines(arguments)
    by_key = _by_key(arguments)
    values = [by_key[key] for key in _KEYS["command"] if key in by_key] or [
        by_key[key] for key in _KEYS["input"] if key in by_key
    ][:1]
    more = by_key.get("args")
    if values and isinstance(values[0], str) and isinstance(more, list):
        values[0] = [values[0], *more]
    commands = [line for value in values for line in _lines(value)] or _lines(
        list(strings_in(arguments)), is_argv=False
    )
    fed = next((by_key[key] for key in _KEYS["stdin"] if key in by_key), None)
    if isinstance(fed, str) and values and fed not in values:
        commands[-1] += f" <<'{_STDIN_END}'\n{fed}\n{_STDIN_END}"
    variables = next((by_key[key] for key in _KEYS["environment"] if key in by_key), {})
    return [
        *(
            f"{key}={shlex.quote(value)}"
            for key, value in (variables if isinstance(variables, dict) else {}).items()
            if isinstance(value, str) and key.isidentifier()
        ),
        *commands,
    ]


@lru_cache(1024)
def plain_key(key: str) -> str:
    """A key in lower case without separators: `CommandLine` and `command_line` are the same."""
    return "".join(filter(str.isalnum, key)).lower()


def _lines(value: Json, *, is_argv: bool = True) -> list[str]:
    if isinstance(value, str):
        inner = decoded(value) if value.lstrip().startswith(("[", '{"')) else None
        if isinstance(inner, dict):
            return _commands(inner) or [value]
        return _lines(inner) if isinstance(inner, list) and inner else [value]
    words = [word for word in value if isinstance(word, str)] if isinstance(value, list) else []
    if not words:
        return []
    # A list of whole commands, or the words of one command.
    if not is_argv or (" " in words[0].strip() and not words[0].startswith("/")):
        return words
    return [shlex.join(words)]


def _normal_path(path: str) -> str:
    """A path without `.` and `..`; a path with a scheme stays."""
    is_plain = "://" not in path and (
        path.startswith("./") or "/./" in path or "../" in path or "//" in path
    )
    return posixpath.normpath(path) if is_plain else path


def _edits(arguments: Json) -> Iterator[str]:
    """For each file its path on the first line, and the new text below."""
    if not isinstance(arguments, dict):
        yield from (
            _patched(arguments)
            if isinstance(arguments, str)
            else ("\n" + "\n".join(strings_in(arguments)),)
        )
        return
    by_key = _by_key(arguments)
    paths = [value for key in _KEYS["path"] if isinstance(value := by_key.get(key), str)]
    texts = [value for key in _KEYS["new_text"] if isinstance(value := by_key.get(key), str)]
    lists = [value for key in _KEYS["edit_list"] if isinstance(value := by_key.get(key), list)]
    for text in texts:
        if PATCH_BEGIN in text or "\n@@" in f"\n{text}" or PATCH_FILE.match(text):
            yield from _patched(text)
            texts = [other for other in texts if other is not text]
    for edit in (edit for listed in lists for edit in listed if isinstance(edit, dict)):
        inside = _by_key(edit)
        if inside.keys().isdisjoint(_KEYS["path"]):
            texts += [
                value for key in _KEYS["new_text"] if isinstance(value := inside.get(key), str)
            ]
        else:
            yield from _edits(edit)
    replaced = [piece for text in texts for piece in (_replacements(text) or [text])]
    for path in paths:
        yield "\n".join((_normal_path(path), *replaced, ""))
    if not paths and replaced:
        yield "\n".join(("", *replaced))


def _replacements(text: str) -> list[str]:
    """The texts between `=====` and `REPLACE` in search-and-replace blocks."""
    found: list[str] = []
    begun: list[str] | None = None
    for line in text.splitlines() if "REPLACE" in text else ():
        if _REPLACEMENT_END.fullmatch(line):
            found += ["\n".join(begun)] if begun is not None else []
            begun = None
        elif begun is None and _REPLACEMENT_BEGIN.fullmatch(line):
            begun = []
        elif begun is not None:
            begun.append(line)
    return found


def _patched(patch: str) -> Iterator[str]:
    """The files of a patch, each with the lines that it adds; the patch itself if it names no
    file.
    """
    edits = ["\n".join((_normal_path(path), *added, "")) for path, added in patched_files(patch)]
    yield from edits or [f"\n{patch}"]
