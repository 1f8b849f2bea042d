"""Tool calls for checks: unwrap calls that contain other calls, and give each its class and the
commands or files in it.

A command is unwrapped (`bash -lc "…"`, an argument list); `cd x && …` stays as it is. A change of a
file is a text with the path on the first line and the new text below, one for each file of a patch.
"""

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from metaclaw.checks.code import literals_of, unescaped
from metaclaw.checks.commands import code_edits, commands_of
from metaclaw.checks.shell import ShellSyntaxError, read_script
from metaclaw.checks.shell_programs import PATCH_BEGIN, PATCH_FILE, patched_files
from metaclaw.domain.chat import Json, ToolCall
from metaclaw.domain.check import ToolClass, is_named, runs_code, tool_class

_MOST_CALLS: Final = 64
_MOST_DEPTH: Final = 4
_MOST_COMMAND_CHARS: Final = 20_000
_NAME_KEYS: Final = ("tool_name", "toolName", "tool", "recipient_name", "name", "id", "function")
_ARGUMENT_KEYS: Final = (
    "args",
    "arguments",
    "parameters",
    "params",
    "input",
    "tool_input",
    "toolInput",
)
_BATCH_KEYS: Final = (
    "tool_uses",
    "tool_calls",
    "calls",
    "invocations",
    "steps",
    "actions",
    "tasks",
    "operations",
    "requests",
)
_COMMAND_KEYS: Final = (
    "command",
    "cmd",
    "commands",
    "shellcommand",
    "commandline",
    "cmdline",
    "argv",
)
_INPUT_KEYS: Final = ("script", "code", "chars", "input", "data", "text")
_STDIN_KEYS: Final = ("stdin", "input", "standardinput")
_STDIN_END: Final = "END-OF-STDIN"
_ENVIRONMENT_KEYS: Final = ("env", "environment", "envvars", "environmentvariables")
_PATH_KEYS: Final = (
    *(
        "file_path",
        "path",
        "filePath",
        "filepath",
        "file",
        "filename",
        "target_file",
        "absolute_path",
        "notebook_path",
        "uri",
    ),
    *("relative_workspace_path", "source", "destination", "new_path", "newPath"),
)
_NEW_TEXT_KEYS: Final = (
    *(
        "content",
        "contents",
        "new_string",
        "newString",
        "new_str",
        "newStr",
        "new_text",
        "newText",
        "file_text",
        "text",
    ),
    *(
        "code_edit",
        "new_source",
        "insert_text",
        "replacement",
        "replace",
        "diff",
        "patch",
        "patch_text",
        "patchText",
        "input",
    ),
)
_EDIT_LIST_KEYS: Final = ("edits", "replacements", "changes", "files")
_SHELLS: Final = frozenset(
    ("bash", "sh", "zsh", "dash", "ksh", "fish", "pwsh", "powershell", "cmd")
)
_STARTS_SHELL: Final = re.compile(
    r"(?i)\s*\S{0,60}(?:sh|powershell|cmd)(?:\.exe)?['\"]?\s+(?:\S+\s+){0,6}?['\"]?[-/]\w*c"
)
_SCRIPT_OPTION: Final = re.compile(r"-\w*c|/c|-command", re.IGNORECASE)
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
            if plain_key(key) not in (*_COMMAND_KEYS, *_INPUT_KEYS)
        }
        return json.dumps(left, ensure_ascii=False)


def seen_calls(call: ToolCall) -> tuple[SeenCall, ...]:
    """The call itself, then the calls that it wraps."""
    return _seen(call.name, call.arguments)


def decoded(arguments: str) -> Json:
    """A call's arguments, encoded once or twice; if they are not JSON, repaired as a client may do,
    else as written. Of a key that occurs twice, both values count, because it is not known which
    one the client takes."""
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
        found[key] = _both(found[key], value) if key in found else value
    return found


def _both(first: Json, second: Json) -> Json:
    match first, second:
        case str(), str():
            return f"{first}\n{second}"
        case dict(), dict():
            return _merged([*first.items(), *second.items()])
        case list(), list():
            return [*first, *second]
        case _:
            return "\n".join([*strings_in(first), *strings_in(second)]) or second


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
        yield from _javascript_calls(name, source)
        return
    call = SeenCall(
        name,
        written,
        arguments,
        kind,
        () if kind is None else tuple(filter(str.strip, _texts(kind, arguments))),
    )
    yield call
    if call.takes_script and (
        edits := tuple(edit for text in call.texts for edit in _shell_edits(text))
    ):
        yield SeenCall("", "", None, ToolClass.EDIT, edits)
    elif (
        kind is ToolClass.SHELL
        and not call.takes_script
        and (files := [file for text in call.texts for file in code_edits(text)])
    ):
        yield SeenCall(
            "",
            "",
            None,
            ToolClass.EDIT,
            tuple("\n".join((_normal_path(path), text, "")) for path, text in files),
        )
    elif kind is ToolClass.EDIT and (
        cells := tuple(text for text in call.texts if _NOTEBOOK_CELL.match(text))
    ):
        yield SeenCall(
            "python", "", None, ToolClass.SHELL, tuple(cell.partition("\n")[2] for cell in cells)
        )
    if kind is None and isinstance(arguments, dict) and depth < _MOST_DEPTH:
        wrapped = [*_wrapped(arguments)]
        known = [inner for _, inner in wrapped]
        nested = [
            (_NAMES_OF[kind], inner)
            for inner in _nested(arguments)
            if (kind := tool_class(name, inner)) in _NAMES_OF
        ]
        for inner_name, inner in (
            *wrapped,
            *((inner_name, inner) for inner_name, inner in nested if inner not in known),
        ):
            yield from _walk(inner_name, json.dumps(inner, ensure_ascii=False), inner, depth + 1)


_NAMES_OF: Final = {ToolClass.SHELL: "shell", ToolClass.EDIT: "edit"}


def _nested(value: Json, depth: int = 0) -> Iterator[dict[str, Json]]:
    """The objects inside a value, also those that are written as text."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = decoded(value)
        value = [value] if isinstance(value, dict) else None
    inner = (
        list(value.values())
        if isinstance(value, dict)
        else value
        if isinstance(value, list)
        else []
    )
    for one in inner if depth < _MOST_DEPTH else ():
        if isinstance(one, dict):
            yield one
        yield from _nested(one, depth + 1)


def _wrapped(arguments: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    """The calls in the arguments of another call: a name with arguments, or a list of these."""
    batches = [value for key in _BATCH_KEYS if isinstance(value := arguments.get(key), list)]
    for call in [arguments, *(call for batch in batches for call in batch[:_MOST_CALLS])]:
        if not isinstance(call, dict):
            continue
        name = next((value for key in _NAME_KEYS if isinstance(value := call.get(key), str)), None)
        inner = next(
            (call[key] for key in _ARGUMENT_KEYS if isinstance(call.get(key), dict | str)), None
        )
        if name and inner is not None:
            yield name, decoded(inner) if isinstance(inner, str) else inner
        elif call is not arguments and any(plain_key(key) in _COMMAND_KEYS for key in call):
            yield "shell", call


def _javascript(arguments: Json) -> str | None:
    """A JavaScript program in a call's arguments that calls tools, or None."""
    values = (
        [arguments]
        if isinstance(arguments, str)
        else list(arguments.values())
        if isinstance(arguments, dict)
        else []
    )
    return next(
        (value for value in values if isinstance(value, str) and _JAVASCRIPT_CALL.search(value)),
        None,
    )


def _javascript_calls(name: str, source: str) -> Iterator[SeenCall]:
    literals = literals_of(source)
    called = dict.fromkeys(_JAVASCRIPT_CALL.findall(source))
    patches = [literal for literal in literals if PATCH_BEGIN in literal]
    rest = [literal for literal in literals if PATCH_BEGIN not in literal]
    for inner in called:
        kind = tool_class(inner)
        if kind is ToolClass.EDIT and patches:
            texts = tuple(text for patch in patches for text in _patched(patch))
        elif kind is ToolClass.SHELL:
            texts = tuple(line for literal in rest for line in _lines(literal))
        else:
            texts = ("\n".join(rest),)
        call = SeenCall(inner, source, source, kind, tuple(filter(str.strip, texts)))
        yield call
        if call.takes_script and (
            edits := tuple(edit for text in call.texts for edit in _shell_edits(text))
        ):
            yield SeenCall("", "", None, ToolClass.EDIT, edits)


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
    by_key = {plain_key(key): value for key, value in arguments.items() if value}
    values = [by_key[key] for key in _COMMAND_KEYS if key in by_key] or [
        by_key[key] for key in _INPUT_KEYS if key in by_key
    ][:1]
    more = by_key.get("args")
    if values and isinstance(values[0], str) and isinstance(more, list):
        values[0] = [values[0], *more]
    commands = [line for value in values for line in _lines(value)] or _lines(
        list(strings_in(arguments)), is_argv=False
    )
    fed = (
        next(
            (text for key in _STDIN_KEYS if key in by_key and isinstance(text := by_key[key], str)),
            "",
        )
        if values
        else ""
    )
    if fed and fed not in values:
        commands[-1] += f" <<'{_STDIN_END}'\n{fed}\n{_STDIN_END}"
    variables = next(
        (value for key in _ENVIRONMENT_KEYS if isinstance(value := by_key.get(key), dict)), {}
    )
    return [
        *(
            f"{key}={shlex.quote(value)}"
            for key, value in variables.items()
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
        return _lines(inner) if isinstance(inner, list) and inner else [_unwrapped(value)]
    words = [word for word in value if isinstance(word, str)] if isinstance(value, list) else []
    if not words:
        return []
    # A list of whole commands, or the words of one command.
    if not is_argv or (" " in words[0].strip() and not words[0].startswith("/")):
        return [_unwrapped(word) for word in words]
    return [_unwrapped(shlex.join(words))]


def _unwrapped(command: str) -> str:
    """The script in a command that only passes it to a shell, or else the command."""
    for _ in range(_MOST_DEPTH):
        if len(command) > _MOST_COMMAND_CHARS or not _STARTS_SHELL.match(command):
            break
        try:
            commands = read_script(command).commands
        except ShellSyntaxError:
            break
        texts = [word.text for word in commands[0].words] if len(commands) == 1 else []
        is_plain = bool(texts) and not (
            commands[0].assignments or commands[0].inputs or commands[0].writes or commands[0].reads
        )
        if (
            not is_plain
            or re.split(r"[/\\]", texts[0])[-1].lower().removesuffix(".exe") not in _SHELLS
        ):
            break
        if (
            len(texts) < 3
            or not _SCRIPT_OPTION.fullmatch(texts[-2])
            or not all(word.startswith(("-", "/")) for word in texts[1:-2])
        ):
            break
        command = texts[-1]
    return command


def _shell_edits(script: str) -> Iterator[str]:
    """The files that a script writes by redirection, changes in place, or patches."""
    commands = commands_of(script)
    if PATCH_BEGIN in script:
        patches = [
            seen.text for seen in commands.texts if seen.text.lstrip().startswith(PATCH_BEGIN)
        ]
        yield from (edit for patch in patches or [script] for edit in _patched(patch))
    elif "\n+++ " in script:
        yield from (
            edit
            for seen in commands.texts
            if re.match(r"(?:diff |--- )", seen.text)
            for edit in _patched(seen.text)
        )
    for path, text in commands.files:
        yield "\n".join((_normal_path(path), text, ""))


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
    paths = [value for key in _PATH_KEYS if isinstance(value := arguments.get(key), str)]
    texts = [value for key in _NEW_TEXT_KEYS if isinstance(value := arguments.get(key), str)]
    listed = [
        edit
        for key in _EDIT_LIST_KEYS
        if isinstance(value := arguments.get(key), list)
        for edit in value
    ]
    for text in texts:
        if PATCH_BEGIN in text or "\n@@" in f"\n{text}" or PATCH_FILE.match(text):
            yield from _patched(text)
            texts = [other for other in texts if other is not text]
    for edit in listed:
        if isinstance(edit, dict) and any(isinstance(edit.get(key), str) for key in _PATH_KEYS):
            yield from _edits(edit)
        elif isinstance(edit, dict):
            texts += [value for key in _NEW_TEXT_KEYS if isinstance(value := edit.get(key), str)]
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
