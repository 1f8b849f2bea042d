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

from metaclaw.checks.shell_programs import TABLES, words

_MOST_CHARS: Final = 20_000
_MOST_CALLS: Final = 100
_MOST_ARGUMENT_CHARS: Final = 600
_LITERAL: Final = (
    r"[rbfuRBFU]{0,2}(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''"
    r"|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`)"
)
_TEXT: Final = re.compile(_LITERAL, re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "\n": ""}
_NAMED: Final = re.compile(
    r"(?:^|[;\n{(,]|\b(?:const|let|var|my)\s)["
    r" \t]*[$@]?(\w+)(?:\s*:\s*\w+)?\s*:?=(?![=>])\s*(?=(?:[\w.]+\()*\(?\[?\s*[\"'`rbfu\w])"
)
_TOKEN: Final = re.compile(
    rf"({_LITERAL})|(sys\.executable)|[$@]?([A-Za-z_]\w*)(\s*[.(])?|([+/,\[])", re.DOTALL
)
_IN_TEMPLATE: Final = re.compile(r"[$#]?\{([A-Za-z_]\w*)\}")
_RENAMED: Final = re.compile(
    r"\bimport ([\w.]+) as"
    r" (\w+)|\b(\w+)\s*=\s*(?:require|__import__)\(\s*['\"](?:node:)?([\w/]+)['\"]\s*\)"
)
_REQUIRED: Final = re.compile(
    r"(?:require|__import__|import_module)\(\s*['\"](?:node:)?(\w+)(?:/promises)?['\"]\s*\)"
)
_IMPORTED: Final = re.compile(
    r"\bfrom (os|shutil|requests|httpx) import ((?:\w+\s*,\s*)*\w+)"
    r"|\{([^{}]*)\}\s*=\s*(?:require\(['\"])?(?:node:)?(child_process|fs)\b"
)
_STATEMENT: Final = re.compile(
    r"\b(unlink|chmod|rename|system|exec)\s+(?=[\"'0$])([^;\n]{1,200})|\b(do shell"
    r" script)\s+(?=[\"'])([^;\n]{1,200})"
)
_CALL: Final = re.compile(
    r"(?:(?P<path>\(?(?:pathlib\.)?Path\([^()\n]{1,200}\)[^()\n]{0,100}?\)?)\.|(?P<owner>(?:[A-Za-z_]\w*(?:\(\))?\.){1,4}|\)\s*\.|(?<![\w.])))"
    r"(?P<name>\w+)\s*\("
)
_MAGIC: Final = re.compile(
    r"^\s*(?:[!%]|(?=(?:pip|conda|git|npm|sudo)\s))(?:%?(?:sh|bash|system|script"
    r" bash)\b)?\s*(\S.*)$",
    re.MULTILINE,
)
_QUOTED_BY_PERL: Final = re.compile(r"(?:qx|%x)\s*[{(\[/]([^})\]/\n]*)|(?<!['\"])`([^`\n]+)`")
_HIDDEN: Final = re.compile(
    r"\b(?:exec|eval|execfile|Function|compile|runInThisContext|instance_eval|system|popen|run|call|check_output|execSync|spawn)\s*\("
    r"[^;\n]{0,300}?(?:b64decode|a85decode|b32decode|fromhex|unhexlify|decompress|rot_?13|atob\s*\(|['\"]base64['\"]|decode64|unpack\s*\("
    r"|base64_decode|urlopen|requests\.get|httpx\.get|fetch\s*\()"
)
_BETWEEN: Final = re.compile(r"\s*,\s*\[?\s*(?:[\w.]+\s*,\s*)*")
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
    scripts += [
        match[1] or match[2] for match in islice(_QUOTED_BY_PERL.finditer(code), _MOST_CALLS)
    ]
    text = _plain(code)
    names = _names(text)
    scripts += _rows(text) if any(name in text for name in _STARTING) else ()
    paths: dict[str, None] = {}
    for call in islice(_CALL.finditer(text), 4 * _MOST_CALLS):
        arguments = list(_arguments(text, call.end()))
        if _is_write(call, arguments):
            named = next((one for one in arguments if re.search(r"[\"']\S*[<>]", one) is None), "")
            first = call["path"] or (
                call["owner"][:-1] if call["name"].startswith("write_") else named
            )
            paths[_value(first, names)] = None
        scripts += _started(call, arguments, names, text)
    written = "\n".join(_written_texts(text)) if paths else ""
    return Code(
        list(dict.fromkeys(script for script in scripts if script.strip())),
        [(path, written) for path in paths if path and not path.startswith("$")],
    )


def _plain(code: str) -> str:
    """The source with the functions of its modules under their full names: `require('fs').rmSync`
    is `fs.rmSync`.
    """
    code = _STATEMENT.sub(lambda match: f"{match[1] or 'system'}({match[2] or match[4]})", code)
    for module, name, other, required in _RENAMED.findall(code)[:16]:
        code = re.sub(
            rf"(?<![\w.]){name or other}\.", f"{(module or required).partition('/')[0]}.", code
        )
    code = _REQUIRED.sub(r"\1", code)
    for module, listed, destructured, required in _IMPORTED.findall(code)[:16]:
        for one in (listed or destructured).split(","):
            name, _, renamed = one.replace(":", " ").strip().partition(" ")
            if name.isidentifier():
                code = re.sub(
                    rf"(?<![\w.]){renamed.strip() or name}\(", f"{module or required}.{name}(", code
                )
    return code


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
    is_of_files = owner in _MODULES or call["path"] is not None
    program = _OF_FILES.get(name)
    if name in _STARTING and plain:
        listed = plain[0].lstrip().startswith(("[", "("))
        texts = [_value(one, names) for argument in plain for one in _listed(argument)]
        one = (
            texts[0]
            if len(texts) == 1 or (" " in texts[0] and not listed)
            else shlex.join(text for text in texts if text)
        )
        yield one
    elif name == "main" and owner and plain:
        yield shlex.join(
            [owner.partition(".")[0], *(_value(one, names) for one in _listed(plain[0]))]
        )
    elif (owner.rpartition(".")[2] == "git" and name.islower()) or (
        name == "push" and "force=True" in "".join(arguments)
    ):
        options = [
            f"--{found[1]}"
            for one in arguments
            if (found := _OPTION.fullmatch(one)) and found[2].strip() == "True"
        ]
        yield shlex.join(
            ["git", name.replace("_", "-"), *options, *(_value(one, names) for one in plain)]
        )
    elif program == "chmod" and (
        is_of_files or not owner or plain[1:] or _MODE.search("".join(arguments))
    ):
        mode = _MODE.search(" ".join(arguments))
        path = call["path"] or next((one for one in plain if _TEXT.search(one)), "")
        if mode is not None:
            yield shlex.join(["chmod", mode[1] or "777", _value(path, names) or "path"])
    elif name == "umask" and is_of_files and re.fullmatch(r"\s*(?:0o?)?0+\s*", arguments[0]):
        yield "umask 000"
    elif program and (
        is_of_files
        or (not owner and name in ("rmtree", "unlink", "removedirs", "rmSync", "unlinkSync"))
    ):
        values = [_value(one, names) for one in ([call["path"]] if call["path"] else []) + plain]
        if len(values) > (program in ("mv", "cp")):
            yield (
                f"{program}"
                f" {' '.join(map(_quoted, values[:2] if program in ('mv', 'cp') else values[:1]))}"
            )
    elif name in ("unlink", "rmdir") and owner in names:
        yield f"rm {_quoted(names[owner])}"
    elif (
        name in _REQUESTING
        and plain
        and (owner or name not in ("get", "post", "put", "patch", "delete"))
    ):
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
    method = stated[1] if stated else values[0] if values[0].isalpha() and len(values) > 1 else name
    if method in ("urlopen", "Request", "fetch"):
        method = "POST" if re.search(r"data=|body", " ".join(arguments)) else "GET"
    host = _HOST.search(code) if address.startswith("/") else None
    base = "" if host is None else f"http://{host[1]}:{host[2]}" if host[1] else host[0]
    yield f"request {method.upper()} {base}{address}"


def _rows(code: str) -> Iterator[str]:
    """Texts with commas between them, which may be the words of a command, wherever they stand."""
    row, last = list[str](), 0
    for match in islice(_TEXT.finditer(code), 2 * _MOST_CALLS):
        if not _BETWEEN.fullmatch(code, last, match.start()):
            yield shlex.join(row) if len(row) > 1 else ""
            row = []
        row.append(_unquoted(match[0]))
        last = match.end()
    yield shlex.join(row) if len(row) > 1 else ""


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


def unescaped(text: str) -> str:
    """A text without the escapes of Python and JavaScript."""
    return _ESCAPE.sub(
        lambda match: (
            chr(int(match[1][1:], 16)) if len(match[1]) > 1 else _ESCAPED.get(match[1], match[1])
        ),
        text,
    )


def _unquoted(literal: str) -> str:
    text = literal.lstrip("rbfuRBFU")
    width = 3 if text[:3] in ('"""', "'''") and len(text) > 5 else 1
    return unescaped(text[width:-width])


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"\$?[\w./:=@%+,-]+", word) else shlex.quote(word or "$path")
