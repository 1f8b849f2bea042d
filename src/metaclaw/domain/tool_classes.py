"""Classes of tools: what agents call the tools that run commands, change files, read files or fetch from the web.

Each client has its table here, so that the proxy and the checks share it. A name means the same in every client that has it.
"""

import re
from enum import StrEnum
from typing import Final


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
        ToolClass.SHELL: "exec_command shell shell_command local_shell write_stdin exec unified_exec container.exec",
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
        ToolClass.READ: "read_file read_many_files list_directory glob grep_search search_file_content",
        ToolClass.WEB: "web_fetch web_search google_web_search",
    },
    "copaw": {
        ToolClass.SHELL: "execute_shell_command execute_python_code",
        ToolClass.EDIT: "write_file edit_file append_file",
        ToolClass.READ: "read_file grep_search glob_search",
        ToolClass.WEB: "browser_use",
    },
    "mini-swe-agent": {ToolClass.SHELL: "bash"},
    # Names that are common elsewhere: Cursor, Cline, Roo, Windsurf, OpenHands, SWE-agent, LangChain, MCP servers, providers' own.
    "other": {
        ToolClass.SHELL: "run_terminal_cmd run_terminal_command run_in_terminal execute_command execute_bash execute_shell"
        " run_command run_bash run_shell bash_tool shell_tool shell_exec exec_shell sh zsh powershell cmd command"
        " terminal_exec run_script execute_ipython_cell code_interpreter python run_python start_process",
        ToolClass.EDIT: "str_replace_editor str_replace_based_edit_tool str_replace text_editor file_editor edit_file edit_block"
        " write_to_file replace_in_file create_file create_new_file insert_edit_into_file replace_string_in_file search_replace"
        " apply_diff apply_edit insert_content delete_file update_file file_write move_file rename_file reapply write_files",
        ToolClass.READ: "view_file open_file view file_read list_files read_files get_file_contents search_code codebase_search"
        " file_search read_multiple_files cat",
        ToolClass.WEB: "fetch fetch_url web_browse http_request http_get open_url browse browser_action url_fetch visit_page"
        " fetch_webpage search_web navigate",
    },
}
_NAMESPACE: Final = re.compile(r".*(?:__|[./:])")
_VIEWING: Final = frozenset(("view", "read"))
_EDITORS: Final = frozenset(("strreplaceeditor", "strreplacebasededittool", "texteditor", "fileeditor"))


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()


CLIENT_TOOLS: Final = {
    client: {name: kind for kind, names in table.items() for name in names.split()} for client, table in _TABLES.items()
}
"""The tools of each client by name; `other` are names that are common among clients without a table."""
_CLASSES: Final = {_plain(name): kind for table in CLIENT_TOOLS.values() for name, kind in table.items()}


def tool_class(name: str, command: object = None) -> ToolClass | None:
    """The class of a tool, whatever its spelling and the server or namespace before its name; None for a tool of no class.

    `command` is the argument of this name: editors that also show files say there which of both they do.
    """
    last = _plain(_NAMESPACE.sub("", name))
    if last in _EDITORS and command in _VIEWING:
        return ToolClass.READ
    return _CLASSES.get(_plain(name)) or _CLASSES.get(last)
