"""Tool calls as checks see them: taken out of other calls, with their class, and the command or file text they come down to.

A command is freed from what only starts it (`bash -lc "…"`, an argument list); `cd x && …` stays as it is. A change of a file is
its path on the first line and the new text below, one for each file of a patch.
"""

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from metaclaw.domain.chat import Json, ToolCall
from metaclaw.domain.check import ToolClass, is_named, runs_code, tool_class
from metaclaw.skills.checks.code import literals_of, unescaped
from metaclaw.skills.checks.commands import code_edits, commands_of
from metaclaw.skills.checks.programs import PATCH_BEGIN, PATCH_FILE, patched_files
from metaclaw.skills.checks.shell import read_script
from metaclaw.skills.checks.shell_words import ShellSyntaxError

_MOST_CALLS: Final = 64
_MOST_DEPTH: Final = 4
_MOST_COMMAND_CHARS: Final = 20_000
_NAME_KEYS: Final = ("tool_name", "toolName", "tool", "recipient_name", "name", "id", "function")
_ARGUMENT_KEYS: Final = ("args", "arguments", "parameters", "params", "input", "tool_input", "toolInput")
_BATCH_KEYS: Final = ("tool_uses", "tool_calls", "calls", "invocations", "steps", "actions", "tasks", "operations", "requests")
_COMMAND_KEYS: Final = ("command", "cmd", "commands", "shellcommand", "commandline", "cmdline", "argv")
_INPUT_KEYS: Final = ("script", "code", "chars", "input", "data", "text")
_ENVIRONMENT_KEYS: Final = ("env", "environment", "envvars", "environmentvariables")
_PATH_KEYS: Final = (
    *("file_path", "path", "filePath", "filepath", "file", "filename", "target_file", "absolute_path", "notebook_path", "uri"),
    *("relative_workspace_path", "source", "destination", "new_path", "newPath"),
)
_NEW_TEXT_KEYS: Final = (
    *("content", "contents", "new_string", "newString", "new_str", "newStr", "new_text", "newText", "file_text", "text"),
    *("code_edit", "new_source", "insert_text", "replacement", "replace", "diff", "patch", "patch_text", "patchText", "input"),
)
_EDIT_LIST_KEYS: Final = ("edits", "replacements", "changes", "files")
_SHELLS: Final = frozenset(("bash", "sh", "zsh", "dash", "ksh", "fish", "pwsh", "powershell", "cmd"))
_STARTS_SHELL: Final = re.compile(r"(?i)\s*\S{0,60}(?:sh|powershell|cmd)(?:\.exe)?['\"]?\s+(?:\S+\s+){0,6}?['\"]?[-/]\w*c")
_SCRIPT_OPTION: Final = re.compile(r"-\w*c|/c|-command", re.IGNORECASE)
_PAIR: Final = re.compile(r"""["']?([A-Za-z_]\w*)["']?\s*:\s*(?:"((?:[^"\\]|\\.)*+)"?|'((?:[^'\\]|\\.)*+)'?)""", re.DOTALL)
_JAVASCRIPT_CALL: Final = re.compile(r"\btools\s*\.\s*(\w+)\s*\(")
_NOTEBOOK_CELL: Final = re.compile(r"[^\n]*\.ipynb\n\s*(?:[^\n]*\n)*?\s*[!%]")
_REPLACEMENT_BEGIN: Final = re.compile(r"={5,}\s*")
_REPLACEMENT_END: Final = re.compile(r"[>+]{5,} ?REPLACE\s*")


@dataclass(frozen=True, slots=True)
class SeenCall:
    """A call: its arguments as `written` and decoded (a text if they are not JSON), and `texts`, the commands or the files with
    their new text that it comes down to; empty for a tool of no class."""

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
        """Whether it is of a class among these."""
        return self.kind is not None and self.kind.value in tools

    def other_arguments(self) -> str:
        """The arguments without the command."""
        if not isinstance(self.arguments, dict):
            return ""
        left = {key: value for key, value in self.arguments.items() if plain_key(key) not in (*_COMMAND_KEYS, *_INPUT_KEYS)}
        return json.dumps(left, ensure_ascii=False)


def seen_calls(call: ToolCall) -> tuple[SeenCall, ...]:
    """The call itself, then those that it wraps."""
    return _seen(call.name, call.arguments)


def decoded(arguments: str) -> Json:
    """A call's arguments, encoded once or twice; if they are not JSON, repaired as a client may do, else as written."""
    try:
        found: Json = json.loads(arguments, strict=False)
    except RecursionError:
        return arguments
    except ValueError:
        return _repaired(arguments)
    return decoded(found) if isinstance(found, str) and found.lstrip().startswith("{") else found


def _repaired(arguments: str) -> Json:
    """The texts by key of an object that is cut off, or has other quotes or escapes than JSON."""
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


@lru_cache(128)  # every rule looks at the same calls
def _seen(name: str, written: str) -> tuple[SeenCall, ...]:
    return tuple(_walk(name, written, decoded(written), 0))[:_MOST_CALLS]


def _walk(name: str, written: str, arguments: Json, depth: int) -> Iterator[SeenCall]:
    kind = tool_class(name, arguments)
    source = _javascript(arguments) if kind is ToolClass.SHELL else None
    if source is not None:
        yield SeenCall(name, written, arguments, None, ())
        yield from _javascript_calls(name, source)
        return
    call = SeenCall(name, written, arguments, kind, () if kind is None else tuple(filter(str.strip, _texts(kind, arguments))))
    yield call
    if call.takes_script and (edits := tuple(edit for text in call.texts for edit in _shell_edits(text))):
        yield SeenCall("", "", None, ToolClass.EDIT, edits)
    elif (
        kind is ToolClass.SHELL and not call.takes_script and (files := [file for text in call.texts for file in code_edits(text)])
    ):
        yield SeenCall("", "", None, ToolClass.EDIT, tuple("\n".join((_normal_path(path), text, "")) for path, text in files))
    elif kind is ToolClass.EDIT and (cells := tuple(text for text in call.texts if _NOTEBOOK_CELL.match(text))):
        yield SeenCall("python", "", None, ToolClass.SHELL, tuple(cell.partition("\n")[2] for cell in cells))
    if kind is None and isinstance(arguments, dict) and depth < _MOST_DEPTH:
        for inner_name, inner in _wrapped(arguments):
            yield from _walk(inner_name, json.dumps(inner, ensure_ascii=False), inner, depth + 1)


def _wrapped(arguments: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    """The calls in the arguments of another: one by name and arguments, or a list of such."""
    batches = [value for key in _BATCH_KEYS if isinstance(value := arguments.get(key), list)]
    for one in [arguments, *(one for batch in batches for one in batch[:_MOST_CALLS])]:
        if not isinstance(one, dict):
            continue
        name = next((value for key in _NAME_KEYS if isinstance(value := one.get(key), str)), None)
        inner = next((one[key] for key in _ARGUMENT_KEYS if isinstance(one.get(key), dict | str)), None)
        if name and inner is not None:
            yield name, decoded(inner) if isinstance(inner, str) else inner
        elif one is not arguments and any(plain_key(key) in _COMMAND_KEYS for key in one):
            yield "shell", one


def _javascript(arguments: Json) -> str | None:
    """The JavaScript program in a call's arguments that calls tools itself, or None."""
    values = [arguments] if isinstance(arguments, str) else list(arguments.values()) if isinstance(arguments, dict) else []
    return next((one for one in values if isinstance(one, str) and _JAVASCRIPT_CALL.search(one)), None)


def _javascript_calls(name: str, source: str) -> Iterator[SeenCall]:
    literals = literals_of(source)
    called = dict.fromkeys(_JAVASCRIPT_CALL.findall(source))
    patches = [one for one in literals if PATCH_BEGIN in one]
    rest = [one for one in literals if PATCH_BEGIN not in one]
    for inner in called:
        kind = tool_class(inner)
        if kind is ToolClass.EDIT and patches:
            texts = tuple(text for patch in patches for text in _patched(patch))
        elif kind is ToolClass.SHELL:
            texts = tuple(line for one in rest for line in _lines(one))
        else:
            texts = ("\n".join(rest),)
        call = SeenCall(inner, source, source, kind, tuple(filter(str.strip, texts)))
        yield call
        if call.takes_script and (edits := tuple(edit for text in call.texts for edit in _shell_edits(text))):
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
    given = {plain_key(key): value for key, value in arguments.items() if value}
    values = [given[key] for key in _COMMAND_KEYS if key in given] or [given[key] for key in _INPUT_KEYS if key in given][:1]
    more = given.get("args")
    if values and isinstance(values[0], str) and isinstance(more, list):
        values[0] = [values[0], *more]
    found = [line for value in values for line in _lines(value)] or _lines(list(strings_in(arguments)), is_argv=False)
    variables = next((value for key in _ENVIRONMENT_KEYS if isinstance(value := given.get(key), dict)), {})
    return [
        *(f"{key}={shlex.quote(value)}" for key, value in variables.items() if isinstance(value, str) and key.isidentifier()),
        *found,
    ]


@lru_cache(1024)
def plain_key(key: str) -> str:
    """A key in lower case without separators: `CommandLine` and `command_line` are the same."""
    return "".join(filter(str.isalnum, key)).lower()


def _lines(value: Json, *, is_argv: bool = True) -> list[str]:
    if isinstance(value, str):
        listed = decoded(value) if value.lstrip().startswith("[") else None
        return _lines(listed) if isinstance(listed, list) and listed else [_unwrapped(value)]
    words = [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
    if not words:
        return []
    # A list of whole commands, or the words of one.
    if not is_argv or (" " in words[0].strip() and not words[0].startswith("/")):
        return [_unwrapped(word) for word in words]
    return [_unwrapped(shlex.join(words))]


def _unwrapped(command: str) -> str:
    """The script that a command passes to a shell, if it does nothing else."""
    for _ in range(_MOST_DEPTH):
        if len(command) > _MOST_COMMAND_CHARS or not _STARTS_SHELL.match(command):
            break
        try:
            commands = read_script(command).commands
        except ShellSyntaxError:
            break
        texts = [word.text for word in commands[0].words] if len(commands) == 1 else []
        is_plain = bool(texts) and not (commands[0].assignments or commands[0].given or commands[0].writes or commands[0].reads)
        if not is_plain or re.split(r"[/\\]", texts[0])[-1].lower().removesuffix(".exe") not in _SHELLS:
            break
        if len(texts) < 3 or not _SCRIPT_OPTION.fullmatch(texts[-2]) or not all(one.startswith(("-", "/")) for one in texts[1:-2]):
            break
        command = texts[-1]
    return command


def _shell_edits(script: str) -> Iterator[str]:
    """The files that a script writes by redirection, changes in place, or patches."""
    commands = commands_of(script)
    if PATCH_BEGIN in script:
        patches = [one.text for one in commands.texts if one.text.lstrip().startswith(PATCH_BEGIN)]
        yield from (edit for patch in patches or [script] for edit in _patched(patch))
    elif "\n+++ " in script:
        yield from (edit for one in commands.texts if re.match(r"(?:diff |--- )", one.text) for edit in _patched(one.text))
    for path, text in commands.files:
        yield "\n".join((_normal_path(path), text, ""))


def _normal_path(path: str) -> str:
    """A path without `.` and `..`; one with a scheme stays."""
    is_plain = "://" not in path and (path.startswith("./") or "/./" in path or "../" in path or "//" in path)
    return posixpath.normpath(path) if is_plain else path


def _edits(arguments: Json) -> Iterator[str]:
    """For each file its path on the first line, and the new text below."""
    if not isinstance(arguments, dict):
        yield from _patched(arguments) if isinstance(arguments, str) else ("\n" + "\n".join(strings_in(arguments)),)
        return
    paths = [value for key in _PATH_KEYS if isinstance(value := arguments.get(key), str)]
    texts = [value for key in _NEW_TEXT_KEYS if isinstance(value := arguments.get(key), str)]
    listed = [one for key in _EDIT_LIST_KEYS if isinstance(value := arguments.get(key), list) for one in value]
    for text in texts:
        if PATCH_BEGIN in text or "\n@@" in f"\n{text}" or PATCH_FILE.match(text):
            yield from _patched(text)
            texts = [one for one in texts if one is not text]
    for one in listed:
        if isinstance(one, dict) and any(isinstance(one.get(key), str) for key in _PATH_KEYS):
            yield from _edits(one)
        elif isinstance(one, dict):
            texts += [value for key in _NEW_TEXT_KEYS if isinstance(value := one.get(key), str)]
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
    """The files of a patch, each with the lines that it adds; the patch itself where no file is found."""
    found = False
    for path, added in patched_files(patch):
        found = True
        yield "\n".join((_normal_path(path), *added, ""))
    if not found:
        yield f"\n{patch}"
