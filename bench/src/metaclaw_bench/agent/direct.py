"""Files inside an answer's text, for models that cannot call tools.

An answer of this form is words, then files:

    Here is the report.
    FILE out/report.json
    {"status": "done"}
    FILE notes.md
    # Notes

A line `FILE <path>` begins a file; its contents are the lines below, up to the next such line or
the end. A path with blanks stands in backticks or quotes. A code fence around the contents is not
part of them, and what follows such a fence is words again. Empty lines around contents without a
fence are not kept, and every file that is not empty ends with a newline."""

import posixpath
import re
from collections.abc import Iterator, Mapping

_FILE = re.compile(
    r"FILE[ \t]+(?:`(?P<ticked>[^`]+)`|\"(?P<quoted>[^\"]+)\"|(?P<plain>[^\s`\"]+?)):?[ \t]*"
)
_FENCE = re.compile(r"[ ]{0,3}(?P<marks>`{3,}|~{3,})(?P<info>[^`]*)")


def files_in(answer: str) -> tuple[str, Mapping[str, str]]:
    """The words of an answer and the files in it, by path as it was written (`./` left out). The
    last of a path counts.

    Nothing is said about where a path leads: whoever writes the files must refuse what is not in
    the workspace."""
    words, blocks = _blocks(answer)
    files: dict[str, str] = {}
    for path, lines in blocks:
        contents, after = _contents(lines)
        files[path] = contents
        words += after
    return "\n".join(words).strip(), files


def with_files(text: str, files: Mapping[str, str]) -> str:
    """An answer in this form. `files_in` gives text and files back, where no content has a `FILE`
    line of its own.
    """
    blocks = [f"FILE {_written(path)}\n{_fenced(contents)}" for path, contents in files.items()]
    return "\n".join(([text] if text else []) + blocks)


def _blocks(answer: str) -> tuple[list[str], list[tuple[str, list[str]]]]:
    words: list[str] = []
    blocks: list[tuple[str, list[str]]] = []
    for line in answer.replace("\r\n", "\n").split("\n"):
        head = _FILE.fullmatch(line)
        if head is not None:
            blocks.append(
                (posixpath.normpath(head["ticked"] or head["quoted"] or head["plain"]), [])
            )
        else:
            (blocks[-1][1] if blocks else words).append(line)
    return words, blocks


def _contents(lines: list[str]) -> tuple[str, list[str]]:
    """The contents in the lines below a path, and the lines behind them that are words."""
    body = _trimmed(lines)
    opening = _FENCE.fullmatch(body[0]) if body else None
    if opening is None:
        return _joined(_without_stray(body)), []
    closings = list(_closings(body, opening["marks"]))
    if not closings:
        return _joined(body[1:]), []
    # A file may have fences in it: the last line is the closing one if it looks like it.
    end = closings[-1] if closings[-1] == len(body) - 1 else closings[0]
    return _joined(body[1:end]), body[end + 1 :]


def _closings(body: list[str], marks: str) -> Iterator[int]:
    for at, line in enumerate(body[1:], start=1):
        fence = _FENCE.fullmatch(line)
        if fence is not None and fence["marks"].startswith(marks) and not fence["info"].strip():
            yield at


def _without_stray(body: list[str]) -> list[str]:
    """Without a fence that closes what was opened before the path, or never."""
    fences = [line for line in body if _FENCE.fullmatch(line)]
    return body[:-1] if len(fences) % 2 and body[-1] == fences[-1] else body


def _trimmed(lines: list[str]) -> list[str]:
    full = [at for at, line in enumerate(lines) if line.strip()]
    return lines[full[0] : full[-1] + 1] if full else []


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _written(path: str) -> str:
    if not re.search(r"[\s`\"]|:$", path):
        return path
    return f'"{path}"' if "`" in path else f"`{path}`"


def _fenced(contents: str) -> str:
    marks = max((len(run) for run in re.findall(r"`{3,}", contents)), default=2) + 1
    body = contents if not contents or contents.endswith("\n") else f"{contents}\n"
    return f"{'`' * marks}\n{body}{'`' * marks}"
