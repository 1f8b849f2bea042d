"""aider: no tools, examples and files as user messages, a reminder glued to the prompt, commit messages on the side."""

from typing import Final

from metaclaw.proxy.sessions.clients.client import AgentClient, Request
from metaclaw.proxy.sessions.conversation import without_reminder

_MAIN: Final = (
    "Act as an expert software developer",
    "Act as an expert code analyst",
    "Act as an expert software engineer",
    "Act as an expert architect",
)
_COMMIT: Final = "one-line Git commit messages"
_SUMMARY: Final = ("*Briefly* summarize this partial conversation", "I spoke to you previously about a number of things")
# What aider says in the user's place: examples, and files that it keeps moving.
_NOT_THE_USER: Final = (
    "Change the greeting to be more casual",
    "Change get_factorial() to use math.factorial",
    "Refactor hello() into its own file",
    "I switched to a new code base",
    "Here are summaries of some files present in my git repository",
    "I have *added these files to the chat*",
    "Here are some READ ONLY files",
    "I am not sharing any files that you can edit yet",
)


def _system(text: str) -> bool:
    return text.startswith((*_MAIN, *_SUMMARY)) or _COMMIT in text[:400]


def _side(request: Request) -> str | None:
    if request.has_tools:
        return None
    if _COMMIT in request.system[:400]:
        return "aider-commit-message"
    return "aider-summary" if request.system.startswith(_SUMMARY) else None


def _words(text: str) -> str:
    return "" if text.startswith(_NOT_THE_USER) else without_reminder(text)


CLIENT: Final = AgentClient("aider", system=_system, side=_side, words=_words)
