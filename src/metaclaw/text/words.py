"""Word lists, from `words.json`: stop words, common words, product names, and verbs of command."""

import json
from importlib.resources import files
from typing import Final

_LISTS: dict[str, list[str]] = json.loads((files("metaclaw.text") / "words.json").read_text(encoding="utf-8"))


def _words(name: str) -> tuple[str, ...]:
    return tuple(" ".join(_LISTS[name]).split())


STOP_WORDS = frozenset(_words("stop"))
"""Words that are no search terms."""
VERY_COMMON_WORDS, COMMON_WORDS = _words("very_common"), _words("common")
# Written with a capital inside, yet one word: splitting them would make JavaScript a kind of Java.
BRANDS = frozenset(_words("brands"))
FUNCTION_WORDS = frozenset(_words("function"))
"""Words that do not count when two sentences are compared. Fewer verbs than STOP_WORDS: these may be what an instruction orders."""
GENERIC_WORDS = frozenset(_words("generic"))
"""Words that fit every task, so that sharing them shows nothing."""
VERBS = frozenset(_words("verbs"))
"""Verbs that begin a command in English, and forms of command in French, German, Spanish, Portuguese, Italian and Dutch."""

CLIENT_TAGS: Final = (
    "system-reminder|environment_context|environment_details|user_instructions|permissions instructions|skills_instructions"
    "|house_rules|relevant-memories|user-persona|scene-navigation|memory-tools-guide|conversation_context|channel_metadata"
    "|system_context|command-name|command-message|local-command-caveat|task-notification|subagent_notification|user_info"
    "|project_layout|git_status|turn_aborted"
)
"""Tags around what a client adds to a person's message, as alternatives of a pattern."""
CLIENT_OUTPUT_TAGS: Final = (
    "local-command-stdout|local-command-stderr|bash-stdout|bash-stderr|ide_opened_file|ide_selection|attached_files"
)
"""Tags around files and output of programs that a client adds to a person's message."""
