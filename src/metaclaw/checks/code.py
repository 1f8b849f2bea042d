"""Programs in other languages for checks: one scan for calls of well-known functions by their
names, with the texts among their arguments.

A call that starts a program gives the command that it starts. A file operation is given as the
shell command that does the same, a request as `request METHOD URL`. A name that the program sets to
a text or a list of texts stands for it; any other value stays a name, as in `rm $path`."""

import re
import shlex
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

from metaclaw.checks.shell import unescaped
from metaclaw.checks.shell_programs import TABLES, words

_MOST_CHARS: Final = 20_000
_MOST_CALLS: Final = 100
_MOST_ARGUMENT_CHARS: Final = 600
_LITERAL: Final = (
    r"[rbfuRBFU]{0,2}(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''"
    r"|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`)"
)
_TEXT: Final = re.compile(_LITERAL, re.DOTALL)
_NAMED: Final = re.compile(
    r"(?:^|[;\n{(,]|\b(?:const|let|var|my)\s)["
    r" \t]*[$@]?(\w+)(?:\s*:\s*\w+)?\s*:?=(?![=>])\s*(?=(?:[\w.]+\()*\(?\[?\s*[\"'`rbfu\w])"
)
_TOKEN: Final = re.compile(
    rf"({_LITERAL})|(sys\.executable)|[$@]?([A-Za-z_]\w*)(\s*[.(])?|([+/,\[])", re.DOTALL
)
_IN_TEMPLATE: Final = re.compile(r"[$#]?\{([A-Za-z_]\w*)\}")
_CALL: Final = re.compile(
    r"(?:(?P<path>\(?(?:pathlib\.)?Path\([^()\n]{1,200}\)[^()\n]{0,100}?\)?)\.|(?P<owner>(?:[A-Za-z_]\w*(?:\(\))?\.){1,4}|\)\s*\.|(?<![\w.])))"
    r"(?P<name>\w+)\s*\("
)
_MAGIC: Final = re.compile(
    r"^\s*(?:[!%]|(?=(?:pip|conda|git|npm|sudo)\s))(?:%?(?:sh|bash|system|script"
    r" bash)\b)?\s*(\S.*)$",
    re.MULTILINE,
)
_HIDDEN: Final = re.compile(
    r"\b(?:exec|eval|execfile|Function|compile|runInThisContext|instance_eval|system|popen|run|call|check_output|execSync|spawn)\s*\("
    r"[^;\n]{0,300}?(?:b64decode|a85decode|b32decode|fromhex|unhexlify|decompress|rot_?13|atob\s*\(|['\"]base64['\"]|decode64|unpack\s*\("
    r"|base64_decode|urlopen|requests\.get|httpx\.get|fetch\s*\()"
)
_OPTION: Final = re.compile(r"\s*(\w+)\s*[=:](?!=)\s*(.*)", re.DOTALL)
_WRITES: Final = re.compile(r"[\"'](?:r\+|[rbt]*[wax][bt+]*|>{1,2}|\+[<>])[^\"']{0,10}[\"']")
_MODE: Final = re.compile(r"(?<![\w.])0o?([0-7]{3,4})\b|\b(?:511|438|S_IRWXO|S_IWOTH)\b")
_HOST: Final = re.compile(
    r"https?://[^/\s\"'`]+|HTTPS?Connection\(\s*[\"']([\w.]+)[\"'],\s*(?:port=)?(\d+)"
)
_LOOKED_FOR: Final = re.compile(
    r"(?:\b(?:replace|replaceAll|sub|subn|gsub|index|find|rfind|startswith|endswith|startsWith|endsWith|split|count|compile|search|match"
    r"|findall|includes|indexOf|test|removeprefix|removesuffix|strip|RegExp|assert|print|log)\s*\(\s*|\bassert\s+)\Z"
)
_TABLE: Final = TABLES["code"]
_STARTING, _MODULES, _REQUESTING, _WRITING = (
    words(_TABLE[key]) for key in ("start", "modules", "request", "write")
)
_REQUESTING_ALONE: Final = words("urlopen Request fetch")
_ORDINARY: Final = words(_TABLE["ordinary"])
_OF_FILES: Final = {
    name: program for program, names in _TABLE["files"].items() for name in names.split()
}


class Code(NamedTuple):
    """What a program does: the scripts and commands that it starts, and the files that it writes
    with their texts.
    """

    scripts: list[str]
    files: list[tuple[str, str]]


def hides_code(code: str) -> bool:
    """Whether a program runs code that it decodes or downloads."""
    return _HIDDEN.search(code, 0, _MOST_CHARS) is not None


def literals_of(code: str) -> list[str]:
    return [
        _unquoted(match[0]) for match in islice(_TEXT.finditer(code[:_MOST_CHARS]), 2 * _MOST_CALLS)
    ]


@lru_cache(128)
def scan(code: str) -> Code:
    """Search a program for calls of programs, file operations and requests."""
    code = code[:_MOST_CHARS]
    scripts = [match[1] for match in _MAGIC.finditer(code)]
    if code.lstrip().startswith("%%"):
        scripts.append(code.partition("\n")[2])
    names = _names(code)
    paths: dict[str, None] = {}
    for call in islice(_CALL.finditer(code), 4 * _MOST_CALLS):
        arguments = list(_arguments(code, call.end()))
        if _is_write(call, arguments):
            named = next((one for one in arguments if re.search(r"[\"']\S*[<>]", one) is None), "")
            first = call["path"] or (
                call["owner"][:-1] if call["name"].startswith("write_") else named
            )
            paths[_value(first, names)] = None
        scripts += _started(call, arguments, names, code)
    written = "\n".join(_written_texts(code)) if paths else ""
    return Code(
        list(dict.fromkeys(script for script in scripts if script.strip())),
        [(path, written) for path in paths if path and not path.startswith("$")],
    )


def _names(code: str) -> dict[str, str]:
    names: dict[str, str] = {}
    for match in islice(_NAMED.finditer(code), _MOST_CALLS):
        listed = code[match.end() : match.end() + 1] == "["
        values = (
            list(_arguments(code, match.end() + 1))
            if listed
            else [next(iter(_arguments(code, match.end(), ";\n")), "")]
        )
        if any(_TEXT.search(value) for value in values):
            names[match[1]] = (
                shlex.join(_value(value, names) for value in values)
                if listed
                else _value(values[0], names)
            )
    return names


def _arguments(code: str, at: int, ends: str = "") -> Iterator[str]:
    """The arguments of a call as written, with those of a list one by one."""
    depth, begin, limit = 0, at, min(len(code), at + _MOST_ARGUMENT_CHARS)
    while at < limit:
        sign = code[at]
        if sign in "\"'`" and (literal := _TEXT.match(code, at)) is not None:
            at = literal.end()
            continue
        depth += (sign in "([{") - (sign in ")]}")
        if depth < 0 or (sign in (ends or ",") and depth == 0):
            yield code[begin:at]
            begin = at + 1
            if depth < 0 or ends:
                return
        at += 1
    yield code[begin:at]


def _value(expression: str, names: dict[str, str]) -> str:
    """The text of an expression, with `$name` for unknown values."""
    pieces: list[str] = []
    is_path = "Path" in expression or "path.join" in expression
    for match in _TOKEN.finditer(expression[:_MOST_ARGUMENT_CHARS]):
        literal, executable, name, call, sign = match.groups()
        if literal is not None:
            pieces.append(
                _IN_TEMPLATE.sub(
                    lambda found: names.get(found[1], f"${found[1]}"), _unquoted(literal)
                )
            )
        elif executable:
            pieces.append("python")
        elif name is not None and not call:
            pieces.append(names.get(name, f"${name}"))
        elif sign in ("/", ",") and is_path and pieces and not pieces[-1].endswith("/"):
            pieces.append("/")
        elif sign == "[" and pieces:
            pieces.append(" ")  # as in `command + ["--force"]`
    return "".join(pieces).rstrip("/") if is_path else "".join(pieces)


def _started(
    call: re.Match[str], arguments: list[str], names: dict[str, str], code: str
) -> Iterator[str]:
    """The command that a call stands for."""
    name, owner = call["name"], (call["owner"] or "").rstrip(". ")
    plain = [
        one
        for one in arguments
        if one.strip() and not _OPTION.fullmatch(one) and not one.lstrip().startswith("{")
    ]
    program = _OF_FILES.get(name, "")
    is_of_files = owner in _MODULES or call["path"] or (name not in _ORDINARY and name != "chmod")
    if name in _STARTING and plain:
        listed = plain[0].lstrip().startswith(("[", "("))
        texts = [_value(one, names) for argument in plain for one in _listed(argument)]
        is_script = len(texts) == 1 or (" " in texts[0] and not listed)
        yield texts[0] if is_script else shlex.join(text for text in texts if text)
    elif program == "chmod":
        mode = _MODE.search(" ".join(arguments))
        path = call["path"] or next((one for one in plain if _TEXT.search(one)), "")
        if mode is not None:
            yield shlex.join(["chmod", mode[1] or "777", _value(path, names) or "path"])
    elif program and (is_of_files or owner in names):
        first = [call["path"]] if call["path"] else []
        values = [_value(one, names) for one in (*first, *plain)] or [names.get(owner, "")]
        most = 2 if program in ("mv", "cp") else 1
        if len(values) >= most:
            yield " ".join((program, *map(_quoted, values[:most])))
    elif name in _REQUESTING and plain and (owner or name in _REQUESTING_ALONE):
        yield from _request(name, arguments, [_value(one, names) for one in plain], code)


def _request(name: str, arguments: list[str], values: list[str], code: str) -> Iterator[str]:
    address = next(
        (
            value
            for value in values[:2]
            if "://" in value or (value.startswith(("/", "$", ":")) and "/" in value)
        ),
        None,
    )
    if address is None:
        return
    stated = re.search(r"method[\"']?\s*[=:]\s*[\"'](\w+)", " ".join(arguments))
    method = name
    if stated or (values[0].isalpha() and len(values) > 1):
        method = stated[1] if stated else values[0]
    if method in _REQUESTING_ALONE:
        method = "POST" if re.search(r"data=|body", " ".join(arguments)) else "GET"
    host = _HOST.search(code) if address.startswith("/") else None
    base = "" if host is None else host[0]
    if host is not None and host[1]:
        base = f"http://{host[1]}:{host[2]}"
    yield f"request {method.upper()} {base}{address}"


def _listed(argument: str) -> list[str]:
    text = argument.strip()
    return list(_arguments(text, 1)) if text.startswith(("[", "(")) else [argument]


def _is_write(call: re.Match[str], arguments: list[str]) -> bool:
    name, owner = call["name"], call["owner"] or ""
    if name in ("open", "fopen"):
        modes = arguments if call["path"] else arguments[1:]
        return owner in ("", "io.", "codecs.", "File.", "fs.") and any(map(_WRITES.search, modes))
    return (
        name in _WRITING
        or (name == "write" and owner in ("File.", "IO.", "Bun."))
        or (name == "input" and "inplace" in "".join(arguments[1:]))
    )


def _written_texts(code: str) -> Iterator[str]:
    """The texts of a program, without those that it only searches for."""
    for match in islice(_TEXT.finditer(code), _MOST_CALLS):
        is_searched = (
            _LOOKED_FOR.search(code, max(0, match.start() - 40), match.start()) is not None
        )
        if not is_searched and not re.match(
            r"\s+(?:not\s+)?in\b", code[match.end() : match.end() + 12]
        ):
            yield _unquoted(match[0])


def _unquoted(literal: str) -> str:
    text = literal.lstrip("rbfuRBFU")
    width = 3 if text[:3] in ('"""', "'''") and len(text) > 5 else 1
    return unescaped(text[width:-width])


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"\$?[\w./:=@%+,-]+", word) else shlex.quote(word or "$path")
