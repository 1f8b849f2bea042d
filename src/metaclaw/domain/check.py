"""Checks, which test an answer without a model, and the classes of tools that checks name.

Each client has its table of tools here. A tool name means the same in every client that has it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final, TypeAlias

from metaclaw.domain.chat import Json, Message, Tool
from metaclaw.domain.verdict import Outcome

MAX_PATTERN_CHARS = 2_000
MAX_SCHEMA_CHARS = 8_000
MAX_PROGRAM_CHARS = 8_000
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/*-]{1,128}(?:\|[A-Za-z0-9_.:/*-]{1,128}){0,7}")


class Place(StrEnum):
    """The part of an answer that a check reads: its text, or the arguments of its tool calls."""

    ANSWER = "answer"
    CALLS = "calls"


@dataclass(frozen=True, slots=True)
class Where:
    """The part of an answer that a check reads. `tool` limits it to calls of one tool or class of
    tools (`shell`, `edit`, `read`, `web`), or of several, separated by `|`; `*` in a name matches
    anything. `is_as_written`: commands only with what starts them (`uv run pytest`, not `pytest`)."""

    place: Place = Place.ANSWER
    tool: str | None = None
    is_as_written: bool = False

    def __post_init__(self) -> None:
        if self.tool is None:
            if self.is_as_written:
                raise ValueError("only `in calls of TOOL` reads calls as they are written")
            return
        if self.place is not Place.CALLS:
            raise ValueError("only calls have a tool")
        if not _TOOL_NAME.fullmatch(self.tool):
            raise ValueError(f"{self.tool!r} is not the name of a tool")

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools and classes that `tool` names; empty for all calls."""
        return () if self.tool is None else _tools(self.tool)


@lru_cache(1024)  # called for every answer
def _tools(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


@dataclass(frozen=True, slots=True)
class PatternCheck:
    """A regular expression that must, or must not, be found."""

    pattern: str
    must_match: bool = True
    where: Where = Where()

    def __post_init__(self) -> None:
        if not self.pattern or len(self.pattern) > MAX_PATTERN_CHARS:
            raise ValueError(
                f"a pattern has 1 to {MAX_PATTERN_CHARS} characters, not {len(self.pattern)}"
            )
        if self.pattern != self.pattern.strip() or len(self.pattern.splitlines()) != 1:
            raise ValueError(
                r"a pattern is one line without space around it; write [ ] and \n instead"
            )
        try:
            re.compile(self.pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"not a regular expression: {error}") from error


@dataclass(frozen=True, slots=True)
class SchemaCheck:
    """A JSON Schema that JSON in the answer, or the arguments of its calls, must satisfy."""

    schema: Mapping[str, Json]
    where: Where = Where()


@dataclass(frozen=True, slots=True)
class ProgramCheck:
    """Python source that reads an answer and the conversation before it as JSON from standard
    input. It exits with 0 (pass) or 1 (fail), or prints a score. It is run only if `approved`: a
    person wrote it or has agreed to it."""

    source: str
    approved: bool = False

    def __post_init__(self) -> None:
        if not self.source.strip() or len(self.source) > MAX_PROGRAM_CHARS:
            raise ValueError(
                f"a program has 1 to {MAX_PROGRAM_CHARS} characters, not {len(self.source)}"
            )
        if "\0" in self.source:
            raise ValueError("a program holds no NUL character")


Check: TypeAlias = PatternCheck | SchemaCheck | ProgramCheck


@dataclass(frozen=True, slots=True)
class Conversation:
    """The conversation before an answer, for checks that depend on the request. `task` is the
    person's last request.
    """

    messages: tuple[Message, ...] = ()
    task: str = ""
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found in an answer, and why. The outcome is unknown if the answer has nothing to
    check or the check could not run. `score` is the reward in training: 1 for a pass, below 0.5 for
    a failure, None if nothing is known. A program may also give a score from 0.5 up to 1: the
    outcome is unknown then. `has_failed`: the check itself broke, took too long, or could not be
    started. `is_undecided`: the answer has something to check, but the check cannot read it."""

    outcome: Outcome
    reason: str
    score: float | None = None
    has_failed: bool = False
    is_undecided: bool = False

    def __post_init__(self) -> None:
        if self.score is not None and not 0.0 <= self.score <= 1.0:
            raise ValueError(f"the score {self.score} is not between 0 and 1")


def scored(score: float, reason: str) -> Finding:
    """The finding for a score: 1 is a pass, below 0.5 a failure, between them unknown."""
    if score == 1.0:
        return Finding(Outcome.PASS, reason, score)
    return Finding(Outcome.FAIL if score < 0.5 else Outcome.UNKNOWN, reason, score)


class ToolClass(StrEnum):
    """What a tool is for."""

    SHELL = "shell"
    EDIT = "edit"
    READ = "read"
    WEB = "web"


_TABLES: Final[dict[str, dict[ToolClass, str]]] = {
    "claude-code": {
        ToolClass.SHELL: "Bash PowerShell REPL",
        ToolClass.EDIT: "Edit MultiEdit Write NotebookEdit",
        ToolClass.READ: "Read Glob Grep LS NotebookRead",
        ToolClass.WEB: "WebFetch WebSearch",
    },
    # With newer models `exec` takes JavaScript that calls the other tools.
    "codex": {
        ToolClass.SHELL: (
            "exec_command shell shell_command local_shell write_stdin exec unified_exec"
            " container.exec"
        ),
        ToolClass.EDIT: "apply_patch",
        ToolClass.READ: "view_image read_file list_dir grep_files",
        ToolClass.WEB: "web_search",
    },
    "opencode": {
        ToolClass.SHELL: "bash shell",
        ToolClass.EDIT: "edit write patch multiedit apply_patch",
        ToolClass.READ: "read glob grep list",
        ToolClass.WEB: "webfetch websearch codesearch",
    },
    "openclaw": {
        ToolClass.SHELL: "exec bash",
        ToolClass.EDIT: "edit write apply_patch",
        ToolClass.READ: "read ls",
        ToolClass.WEB: "web_fetch web_search browser",
    },
    "hermes": {
        ToolClass.SHELL: "terminal execute_code",
        ToolClass.EDIT: "patch write_file",
        ToolClass.READ: "read_file search_files",
        ToolClass.WEB: "web_search web_extract browser_navigate",
    },
    "qwen-code": {
        ToolClass.SHELL: "run_shell_command",
        ToolClass.EDIT: "edit write_file replace",
        ToolClass.READ: (
            "read_file read_many_files list_directory glob grep_search search_file_content"
        ),
        ToolClass.WEB: "web_fetch web_search google_web_search",
    },
    "copaw": {
        ToolClass.SHELL: "execute_shell_command execute_python_code",
        ToolClass.EDIT: "write_file edit_file append_file",
        ToolClass.READ: "read_file grep_search glob_search",
        ToolClass.WEB: "browser_use",
    },
    "mini-swe-agent": {ToolClass.SHELL: "bash"},
    # Common names of Cursor, Cline, Roo, Windsurf, OpenHands, SWE-agent, LangChain, MCP servers and
    # the providers' own tools.
    "other": {
        ToolClass.SHELL: (
            "run_terminal_cmd run_terminal_command run_in_terminal execute_command execute_bash"
            " execute_shell run_command run_bash run_shell bash_tool shell_tool shell_exec"
            " exec_shell sh zsh powershell cmd command terminal_exec run_script"
            " execute_ipython_cell code_interpreter python run_python start_process"
        ),
        ToolClass.EDIT: (
            "str_replace_editor str_replace_based_edit_tool str_replace text_editor file_editor"
            " edit_file edit_block write_to_file replace_in_file create_file create_new_file"
            " insert_edit_into_file replace_string_in_file search_replace apply_diff apply_edit"
            " insert_content delete_file update_file file_write move_file rename_file reapply"
            " write_files save_file create_or_update_file fs_write write_text_file"
        ),
        ToolClass.READ: (
            "view_file open_file view file_read list_files read_files get_file_contents search_code"
            " codebase_search file_search read_multiple_files cat"
        ),
        ToolClass.WEB: (
            "fetch fetch_url web_browse http_request http_get open_url browse browser_action"
            " url_fetch visit_page fetch_webpage search_web navigate"
        ),
    },
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NAMESPACE: Final = re.compile(r".*(?:__|[./:])")
_VIEWING: Final = _words("view read")
_EDITORS: Final = _words("strreplaceeditor strreplacebasededittool texteditor fileeditor")
_CODE_TOOLS: Final = _words(
    "repl executecode executepythoncode executeipythoncell codeinterpreter python runpython"
)
_COMMAND_KEYS: Final = _words("command cmd commands shellcommand commandline cmdline argv script")
_PATH_KEYS: Final = _words("path filepath file filename targetfile absolutepath notebookpath uri")
_TEXT_KEYS: Final = _words(
    "content contents newstring newstr newtext filetext text codeedit replacement diff patch edits"
)
_CHANGING: Final = _words(
    "write edit save create update patch replace insert append modify overwrite put upsert change"
)
_NAME_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_RUNNING: Final = _words(
    "run runner exec execute executor process shell bash sh zsh terminal tty console command cmd"
    " commands spawn invoke ssh script sandbox container subprocess system"
)


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()


CLIENT_TOOLS: Final = {
    client: {name: kind for kind, names in table.items() for name in names.split()}
    for client, table in _TABLES.items()
}
"""For each client, the class of each of its tools; `other` has common names of clients without a
table.
"""
_CLASSES: Final = {
    _plain(name): kind for table in CLIENT_TOOLS.values() for name, kind in table.items()
}


def tool_class(name: str, arguments: object = None) -> ToolClass | None:
    """The class of a tool, or None. Case, separators and the server or namespace before the name do
    not matter.

    An editor that is called to show a file is READ. A tool of unknown name is SHELL if its
    arguments have a command and its name has a word such as `run`, the command has several words,
    or there is an input for it; it is EDIT if its arguments have a path and a text and its name has
    a word such as `write`."""
    arguments = arguments if isinstance(arguments, dict) else {}
    bare = _plain(_NAMESPACE.sub("", name))
    if bare in _EDITORS and arguments.get("command") in _VIEWING:
        return ToolClass.READ
    known = _CLASSES.get(_plain(name)) or _CLASSES.get(bare)
    if known is not None or not arguments:
        return known
    values = {_plain(key): value for key, value in arguments.items() if isinstance(key, str)}
    if _takes_command(name, values):
        return ToolClass.SHELL
    return ToolClass.EDIT if _changes_file(name, values) else None


@lru_cache(1024)
def runs_code(name: str) -> bool:
    """Whether a tool of the class shell takes a program in a language such as Python."""
    return _plain(_NAMESPACE.sub("", name)) in _CODE_TOOLS


def is_named(name: str, wanted: str) -> bool:
    """Whether the tool name `wanted` of a check means the tool `name`. Case, separators and the
    server or namespace before the name do not matter; `*` matches anything."""
    if "*" in wanted:
        return fnmatchcase(name.lower(), wanted.lower())
    plain = _plain(wanted)
    return bool(plain) and (plain == _plain(name) or plain == _plain(_NAMESPACE.sub("", name)))


def _takes_command(name: str, arguments: Mapping[str, object]) -> bool:
    commands = [arguments[key] for key in _COMMAND_KEYS if arguments.get(key)]
    if not commands:
        return False
    words = {word.lower() for word in _NAME_WORDS.findall(name)}
    return (
        not words.isdisjoint(_RUNNING)
        or "stdin" in arguments
        or any(isinstance(command, str) and " " in command.strip() for command in commands)
    )


def _changes_file(name: str, arguments: Mapping[str, object]) -> bool:
    words = {word.lower() for word in _NAME_WORDS.findall(name)}
    return not (
        words.isdisjoint(_CHANGING)
        or _PATH_KEYS.isdisjoint(arguments)
        or _TEXT_KEYS.isdisjoint(arguments)
    )
