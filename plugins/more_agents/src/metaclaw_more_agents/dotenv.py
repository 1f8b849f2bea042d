"""Change `.env` files in place."""

import re

from metaclaw.agents import KeyPath, newline_of

_DOTENV_LINE = re.compile(
    r"^[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*([^\r\n]*)", re.MULTILINE
)
_DOTENV_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+,~-]*")


class DotenvFormat:
    """NAME=value lines. Other lines do not change."""

    name = ".env"
    is_appending = False

    def read(self, text: str) -> object:
        """The values by name; of several lines with the same name the last counts."""
        return {found[1]: _bare(found[2]) for found in _DOTENV_LINE.finditer(text)}

    def put(self, text: str, path: KeyPath, value: object) -> str:
        """Set a variable."""
        shown = str(value) if _DOTENV_PLAIN.fullmatch(str(value)) else f'"{value}"'
        found = self._last(text, path)
        if found is not None:
            return text[: found.start(2)] + shown + text[found.end(2) :]
        newline = newline_of(text)
        gap = newline if text and not text.endswith("\n") else ""
        return f"{text}{gap}{path[0]}={shown}{newline}"

    def remove(self, text: str, path: KeyPath) -> str:
        """Remove the line of a variable."""
        found = self._last(text, path)
        if found is None:
            return text
        begin = text.rfind("\n", 0, found.start(1)) + 1
        stop = text.find("\n", found.end())
        return text[:begin] + (text[stop + 1 :] if stop >= 0 else "")

    def _last(self, text: str, path: KeyPath) -> "re.Match[str] | None":
        return next(
            (found for found in reversed(list(_DOTENV_LINE.finditer(text))) if found[1] == path[0]),
            None,
        )


def _bare(value: str) -> str:
    value = value.strip()
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value
