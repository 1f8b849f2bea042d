"""The texts that editors of the command line (`sed`, `perl`, `ed`, `ex`, `patch`) put into files, without what they take away."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

PATCH_BEGIN: Final = "*** Begin Patch"
PATCH_FILE: Final = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$")
_DIFF_FILE: Final = re.compile(r"^(?:\+\+\+|---) (?:[ab]/)?(\S.*?)(?:\t.*)?$")
_ADDRESS: Final = re.compile(r"\s*(?:(?:\d+|\$|%|\.|[+-]\d*|/(?:\\.|[^/\\])*/|\\(.)(?:\\.|(?!\1).)*\1)[I,~+]*\s*){0,3}!?\s*")
_SUBSTITUTION: Final = re.compile(r"s([^\w\s\\])((?:\\.|(?!\1).)*)\1((?:\\.|(?!\1).)*)(?:\1|$)[\w]*", re.DOTALL)
_PERL_SUBSTITUTION: Final = re.compile(
    r"(?<![\w$@%])s(?:([/|#!,~%@])((?:\\.|(?!\1).)*)\1((?:\\.|(?!\1).)*)\1|\{(?:\\.|[^}\\])*\}\s*\{((?:\\.|[^}\\])*)\})", re.DOTALL
)
_PRINTED: Final = re.compile(r"\bprint\S*\s*\(?\s*(?:\"((?:\\.|[^\"\\])*)\"|'([^']*)')|\.?=\s*\"((?:\\.|[^\"\\])*)\"")
_INSERTING: Final = re.compile(r"[aic](?:\\\s*\n?|\s+)?(.*?)(?:(?<!\\)\n|\Z)", re.DOTALL)
_SCRIPT_OPTIONS: Final = ("-e", "--expression")
_MOST_STEPS: Final = 200


def sed_texts(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files that `sed` or `perl` is given by these words, and the texts that it puts into them."""
    scripts: list[str] = []
    operands: list[str] = []
    at = 1
    while at < len(texts):
        text = texts[at]
        if text in _SCRIPT_OPTIONS or re.fullmatch(r"-[a-zA-Z0]*[eE]", text):
            scripts += texts[at + 1 : at + 2]
            at += 1
        elif text.startswith(("--expression=", "-e")):
            scripts.append(text.partition("=")[2] if text.startswith("--") else text[2:])
        elif text in ("-f", "--file"):
            scripts.append("")
            at += 1
        elif text and (not text.startswith("-") or text == "-"):
            operands.append(text)
        at += 1
    if not scripts:
        scripts, operands = operands[:1], operands[1:]
    is_perl = texts[0].endswith("perl")
    return operands, [one for script in scripts for one in (_perl_texts(script) if is_perl else _added_by_sed(script))]


def _perl_texts(script: str) -> Iterator[str]:
    for match in _PERL_SUBSTITUTION.finditer(script):
        yield match[3] or match[4] or ""
    for match in _PRINTED.finditer(script):
        yield match[1] or match[2] or match[3] or ""


def _added_by_sed(script: str) -> Iterator[str]:
    at = 0
    for _ in range(_MOST_STEPS):
        while at < len(script) and script[at] in " \t\n;{}":
            at += 1
        if at >= len(script):
            return
        address = _ADDRESS.match(script, at)
        at = at if address is None else address.end()
        if at >= len(script):
            return
        if script[at] == "{":
            at += 1
            continue
        substitution = _SUBSTITUTION.match(script, at)
        inserting = _INSERTING.match(script, at)
        if substitution is not None:
            yield re.sub(r"\\([^\w\s])", r"\1", substitution[3]).replace("\\n", "\n")
            at = substitution.end()
        elif inserting is not None:
            yield inserting[1]
            at = max(inserting.end(), at + 1)
        else:
            ends = [place for place in (script.find(";", at + 1), script.find("\n", at + 1)) if place >= 0]
            at = min(ends, default=len(script))


def ed_texts(script: str) -> Iterator[str]:
    """The texts that a script for `ed` or `ex` puts into a file."""
    is_inserting = False
    for line in script.splitlines():
        if is_inserting:
            if line == ".":
                is_inserting = False
            else:
                yield line
        elif re.fullmatch(r"[\d$.,/%+-]*(?:/[^/]*/)?\s*[aic]", line.strip()):
            is_inserting = True
        else:
            for part in line.split("|"):
                yield from _added_by_sed(re.sub(r"^:?\s*(?:%|1,\$)?\s*(?:[gv]/(?:\\.|[^/])*/)?\s*,?", "", part))


def patched_files(patch: str) -> Iterator[tuple[str, list[str]]]:
    """The files of a patch, each with the lines that it adds."""
    path, added = "", list[str]()
    for line in patch.splitlines():
        named = PATCH_FILE.match(line) or _DIFF_FILE.match(line)
        if named is not None:
            if path and (added or named[1] != path):
                yield path, added
            if named[1] != "/dev/null":
                path, added = named[1].strip(), []
        elif line.startswith("+"):
            added.append(line[1:])
    if path or added:
        yield path, added
