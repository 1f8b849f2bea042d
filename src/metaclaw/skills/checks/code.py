"""Programs in other languages for checks: the commands that they start, the files that they write, delete, move or open to
everyone, and the requests that they send.

A file operation is given as the shell command that does the same, a request as `request METHOD URL`. Only calls of well-known
functions are read, with texts and with names that the program sets to a text; nothing is run. Any other value stays a name, as in
`rm $path`.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from metaclaw.skills.checks.shell_programs import words

_MOST_CHARS: Final = 20_000
_MOST_LITERALS: Final = 200
_STARTS: Final = re.compile(
    r"system|popen|subprocess|\bexec|spawn|\brun\s*\(|check_(?:call|output)|getoutput|shell|qx|%x|\bCommand\b|Deno\.Command|\$`|`",
    re.IGNORECASE,
)
_CAPTURED_LITERAL: Final = re.compile(
    r'[rbfu]?"""(.*?)"""|[rbfu]?\'\'\'(.*?)\'\'\'|"((?:[^"\\\n]|\\.)*)"|\'((?:[^\'\\\n]|\\.)*)\'|`((?:[^`\\]|\\.)*)`', re.DOTALL
)
_QUOTED_BY_PERL: Final = re.compile(r"(?:qx|%x)\s*[{(\[/]([^})\]/\n]*)")
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "\n": ""}
_BETWEEN: Final = re.compile(r"\s*,\s*\[?\s*")
_JOINED: Final = re.compile(r"\s*\+?\s*")
_HIDDEN: Final = re.compile(
    r"\b(?:exec|eval|execfile|Function|compile|runInThisContext|instance_eval|system|popen|run|call|check_output|execSync|spawn)\s*\("
    r"[^;\n]{0,300}?(?:b64decode|a85decode|b32decode|fromhex|unhexlify|decompress|rot_?13|atob\s*\(|['\"]base64['\"]|decode64|unpack\s*\("
    r"|base64_decode|urlopen|requests\.get|httpx\.get|fetch\s*\()"
)
_MAGIC: Final = re.compile(
    r"^\s*(?:[!%]|(?=(?:pip|conda|git|npm|sudo)\s))(?:%?(?:sh|bash|system|script bash)\b)?\s*(\S.*)$", re.MULTILINE
)


def code_scripts(code: str) -> list[str]:
    """The scripts and commands in a program, and the lines of a notebook that a shell runs."""
    text = code[:_MOST_CHARS]
    found = [match[1] for match in _MAGIC.finditer(text)]
    if code.lstrip().startswith("%%"):
        found.append(text.partition("\n")[2])
    found.append("\n".join(code_commands(text)))
    if _STARTS.search(text):
        found += _QUOTED_BY_PERL.findall(text)
        found += _commands(text)
    return list(dict.fromkeys(script for script in found if script.strip()))


def hides_code(code: str) -> bool:
    """Whether a program runs code that it decodes or downloads."""
    return _HIDDEN.search(code, 0, _MOST_CHARS) is not None


def literals_of(code: str) -> list[str]:
    return [text for text, _, _ in _literals(code[:_MOST_CHARS])]


def _literals(code: str) -> Iterator[tuple[str, int, int]]:
    for match in islice(_CAPTURED_LITERAL.finditer(code), _MOST_LITERALS):
        yield unescaped(next(filter(None, match.groups()), "")), match.start(), match.end()


def _commands(code: str) -> Iterator[str]:
    """Texts with several words, and rows of texts with commas between them, which may be the words of a command."""
    row: list[str] = []
    last = -1
    for text, begin, end in _literals(code):
        between = code[last:begin] if last >= 0 else "x"
        if row and _BETWEEN.fullmatch(between):
            row.append(text)
        elif row and _JOINED.fullmatch(between):
            row[-1] += text
        else:
            yield from _row(row)
            row = [text]
        last = end
    yield from _row(row)


def _row(row: list[str]) -> Iterator[str]:
    if row:
        yield from (text for text in row if len(text.split()) > 1)
        yield shlex.join(row) if len(row) > 1 else row[0]


def unescaped(text: str) -> str:
    """A text without the escapes of Python and JavaScript."""

    def plain(match: re.Match[str]) -> str:
        sign = match[1]
        return chr(int(sign[1:], 16)) if len(sign) > 1 else _ESCAPED.get(sign, sign)

    return _ESCAPE.sub(plain, text)


_MOST_CALLS: Final = 60
_MOST_ARGUMENT_CHARS: Final = 400
_MOST_NAMES: Final = 100
_LITERAL: Final = (
    r"[rbfuRBFU]{0,2}(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''"
    r"|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`)"
)
_TEXT: Final = re.compile(_LITERAL, re.DOTALL)
_NAMED: Final = re.compile(
    r"(?:^|[;\n{(,]|\bconst |\blet |\bvar |\bmy )[ \t]*[$@]?(\w+)(?:\s*:\s*\w+)?\s*:?=(?!=)[ \t]*((?:[\w.]+\()*[ \t]*"
    + _LITERAL
    + r"[^;\n]{0,200})",
    re.DOTALL,
)
_TOKEN: Final = re.compile(rf"({_LITERAL})|[$@]?([A-Za-z_]\w*)(\s*[.(])?|([+/,])", re.DOTALL)
_REQUIRED: Final = re.compile(r"(?:require|__import__|import_module)\(\s*['\"](?:node:)?(\w+)(?:/promises)?['\"]\s*\)")
_RENAMED: Final = re.compile(r"\bimport ([\w.]+) as (\w+)")
_IMPORTED: Final = re.compile(r"\bfrom (os|shutil|requests|httpx) import ((?:\w+\s*,\s*)*\w+)")
_MOST_IMPORTS: Final = 16
_IN_TEMPLATE: Final = re.compile(r"\$?\{([A-Za-z_]\w*)\}|#\{([A-Za-z_]\w*)\}")
_CALL: Final = re.compile(
    r"((?:(?<![\w.])|\)\s*\.)(?:[A-Za-z_]\w*\.){0,3})"
    r"(remove|unlink|rmtree|removedirs|rmdir|rm|rm_rf|rm_r|delete|unlinkSync|rmSync|rmdirSync|removeSync|chmod|chmodSync|umask|copy|copy2"
    r"|copyfile|copytree|copyFile|copyFileSync|cp|rename|replace|move|renameSync|mv|truncate|truncateSync|open|fopen|input|write|writeFile"
    r"|writeFileSync|appendFile|appendFileSync|createWriteStream|writeTextFile|writeTextFileSync|file_put_contents|get|post|put|patch|request"
    r"|urlopen|Request|fetch)\s*\("
)
_METHOD: Final = re.compile(
    rf"(?:(?P<path>Path\(\s*{_LITERAL}\s*\)|\((?:pathlib\.)?Path\([^()\n]{{1,200}}\)[^()\n]{{1,200}}\))|(?P<name>[A-Za-z_]\w*))"
    r"\s*\.\s*(?P<method>write_text|write_bytes|unlink|rmdir|chmod|open|rename|replace)\s*\(",
    re.DOTALL,
)
_STARTING: Final = re.compile(
    r"\b(?:system|popen|Popen|run|call|check_call|check_output|getoutput|execSync|exec|spawnSync|shell_exec)\s*\(\s*(?![\[\"'`]|[\w.]+\()"
    r"|\b(?:system|popen|Popen|run|call|check_call|check_output|getoutput|execSync|exec|spawnSync|shell_exec)\s*\((?=[^()]*\+)"
)
_GIT_METHOD: Final = re.compile(r"\.git\.([a-z_]+)\s*\(|\.(push)\s*\((?=[^()\n]*force\s*=\s*True)")
_MODULE_MAIN: Final = re.compile(r"\b(\w+)(?:\.\w+){0,4}\.main\(\s*\[([^\]]{1,200})\]")
_CONNECTION: Final = re.compile(r"HTTPS?Connection\(([^()]{1,200})\)")
_BASE: Final = re.compile(rf"(?:base_?url|prefix_?url)\s*[=:]\s*({_LITERAL}|[A-Za-z_]\w*)", re.IGNORECASE | re.DOTALL)
_STATEMENT: Final = re.compile(r"\b(unlink|chmod|rmtree|rename)\s+(?=[\"'0$])([^;\n]{1,200})")
_WRITES: Final = re.compile(r"[\"'](?:r\+|[rbt]*[wax][bt+]*|>{1,2}|\+[<>])[^\"']{0,10}[\"']")
_MODE: Final = re.compile(r"(?<![\w.])0o?([0-7]{3,4})\b|\b(511|438)\b|\b(S_IRWXO|S_IWOTH)\b")
_LOOKED_FOR: Final = re.compile(
    r"(?:\b(?:replace|replaceAll|sub|subn|gsub|index|find|rfind|startswith|endswith|startsWith|endsWith|split|count|compile|search|match"
    r"|findall|includes|indexOf|test|removeprefix|removesuffix|strip|RegExp|assert|print|log)\s*\(\s*|\bassert\s+)\Z"
)
_DELETING: Final = words("remove unlink rmtree removedirs rmdir rm rm_rf rm_r delete unlinkSync rmSync rmdirSync removeSync")
_MOVING: Final = words("rename replace move renameSync mv")
_COPYING: Final = words("copy copy2 copyfile copytree copyFile copyFileSync cp")
_WRITING: Final = words(
    "write writeFile writeFileSync appendFile appendFileSync createWriteStream writeTextFile writeTextFileSync file_put_contents"
)
_OF_FILES: Final = words("os. shutil. fs. fsp. fs.promises. fsPromises. promises. Deno. File. FileUtils. Dir.")
_SENDING: Final = words("get post put patch delete")
_NOTABLE: Final = re.compile(
    r"\.git\.|\.main\(|\.push\s*\(|remove|unlink|rmtree|rmdir|\brm|delete|chmod|umask|copy|move|rename|replace|truncate|open|write|append|Request|fetch|urlopen"
    r"|\.(?:get|post|put|patch|request)\s*\(|system|[pP]open|\brun\s*\(|\bexec|call\s*\(|output\s*\(|\bmv\b|\bcp\b|file_put_contents|FileInput|fileinput"
)


def code_commands(code: str) -> list[str]:
    """The file operations of a program as shell commands, and the requests that it sends."""
    if _NOTABLE.search(code) is None:
        return []
    text = _plain_modules(code[:_MOST_CHARS])
    names = _names(text)
    found: list[list[str]] = []
    for match in _matches(_CALL, text):
        found += _command(match[1] or "", match[2], _arguments(text, match.end()), text, names)
    for match in _matches(_METHOD, text):
        found += _method_command(match, _arguments(text, match.end()), names)
    found += [
        [match[1], *(_value(argument, names) for argument in _arguments(match[2], 0))] for match in _matches(_MODULE_MAIN, text)
    ]
    for match in _matches(_GIT_METHOD, text):
        found.append(_git_command(match[1] or match[2], _arguments(text, match.end()), names))
    started_with = (_arguments(text, match.end()) for match in _matches(_STARTING, text))
    scripts = (_value(arguments[0], names) for arguments in started_with if arguments)
    started = [script for script in scripts if " " in script and not script.startswith("$")]
    return list(dict.fromkeys([*started, *(" ".join(map(_quoted, words)) for words in found)]))


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    return islice(pattern.finditer(text), _MOST_CALLS)


def code_files(code: str) -> list[tuple[str, str]]:
    """The files that a program writes, each with the texts in the program that may be written to it."""
    if _NOTABLE.search(code) is None:
        return []
    text = _plain_modules(code[:_MOST_CHARS])
    names = _names(text)
    paths: dict[str, None] = {}
    for match in _matches(_CALL, text):
        arguments = _arguments(text, match.end())
        owner, name = match[1] or "", match[2]
        if not arguments:
            continue
        first = arguments[0]
        if (
            name in ("open", "fopen")
            and owner in ("", "io.", "codecs.", "File.", "fs.")
            and any(map(_WRITES.search, arguments[1:]))
        ):
            first = (
                arguments[2] if len(arguments) > 2 and re.fullmatch(r"\s*[\"'][+<>]*[<>][^\"']*[\"']\s*", arguments[1]) else first
            )
        elif name == "input" and "inplace" in " ".join(arguments[1:]):
            pass
        elif name not in _WRITING or (name == "write" and owner not in ("File.", "IO.", "Bun.")):
            continue
        paths[_value(first, names)] = None
    for match in _matches(_METHOD, text):
        is_written = match["method"] in ("write_text", "write_bytes") or (
            match["method"] == "open" and any(map(_WRITES.search, _arguments(text, match.end())))
        )
        if is_written:
            paths[_value(match["path"] or match["name"], names)] = None
    if not paths:
        return []
    written = "\n".join(_written_texts(text))
    return [(path, written) for path in paths if path and not path.startswith("$")]


def _plain_modules(code: str) -> str:
    """The source with the functions of its modules under their full names: `require('fs').rmSync` is `fs.rmSync`."""
    code = _STATEMENT.sub(r"\1(\2)", _REQUIRED.sub(r"\1", code))
    for module, name in _RENAMED.findall(code)[:_MOST_IMPORTS]:
        code = re.sub(rf"(?<![\w.]){name}\.", f"{module}.", code)
    for module, listed in _IMPORTED.findall(code)[:_MOST_IMPORTS]:
        functions = "|".join(re.findall(r"\w+", listed)[:_MOST_IMPORTS])
        code = re.sub(rf"(?<![\w.])({functions})\(", rf"{module}.\1(", code)
    return code


def _written_texts(code: str) -> Iterator[str]:
    """The texts of a program, without those that it only searches for."""
    for match in _matches(_TEXT, code):
        if _LOOKED_FOR.search(code, max(0, match.start() - 40), match.start()) is None and not re.match(
            r"\s+(?:not\s+)?in\b", code[match.end() : match.end() + 12]
        ):
            yield _unquoted(match[0])


def _names(code: str) -> dict[str, str]:
    names: dict[str, str] = {}
    for match in islice(_NAMED.finditer(code), _MOST_NAMES):
        names[match[1]] = _value(match[2], names)
    return names


def _arguments(code: str, at: int) -> list[str]:
    """The arguments of a call, as written."""
    found, depth, begin, limit = list[str](), 0, at, min(len(code), at + _MOST_ARGUMENT_CHARS)
    while at < limit:
        sign = code[at]
        if sign in "\"'`":
            literal = _TEXT.match(code, at)
            at = at + 1 if literal is None else literal.end()
            continue
        if sign in "([{":
            depth += 1
        elif sign in ")]}":
            if depth == 0:
                break
            depth -= 1
        elif sign == "," and depth == 0:
            found.append(code[begin:at])
            begin = at + 1
        at += 1
    last = code[begin:at]
    return [*found, last] if last.strip() else found


def _value(expression: str, names: dict[str, str]) -> str:
    """The text of an expression, with `$name` for unknown values."""
    pieces: list[str] = []
    is_path = "Path" in expression or "path.join" in expression
    for match in _TOKEN.finditer(expression[:_MOST_ARGUMENT_CHARS]):
        literal, name, call, sign = match.groups()
        if literal is not None:
            text = _unquoted(literal)
            pieces.append(_IN_TEMPLATE.sub(lambda found: names.get(found[1] or found[2], f"${found[1] or found[2]}"), text))
        elif name is not None and not call:
            pieces.append(names.get(name, f"${name}"))
        elif sign in ("/", ",") and is_path and pieces and not pieces[-1].endswith("/"):
            pieces.append("/")
        elif sign == "," and not is_path:
            break
    return "".join(pieces).rstrip("/") if is_path else "".join(pieces)


def _unquoted(literal: str) -> str:
    text = literal.lstrip("rbfuRBFU")
    width = 3 if text[:3] in ('"""', "'''") and len(text) > 5 else 1
    return re.sub(r"\\([\"'\\`])", r"\1", text[width:-width]).replace("\\n", "\n")


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"\$?[\w./:=@%+,-]+", word) else shlex.quote(word)


def _command(owner: str, name: str, arguments: Sequence[str], code: str, names: dict[str, str]) -> Iterator[list[str]]:
    is_of_files = owner in _OF_FILES
    values = [_value(argument, names) for argument in arguments]
    if name in ("chmod", "chmodSync") and arguments:
        mode = next(filter(None, map(_mode, arguments)), None)
        path = next((value for argument, value in zip(arguments, values, strict=True) if not _mode(argument)), "")
        if mode is not None:
            yield ["chmod", mode, path or "$path"]
    elif name == "umask" and is_of_files and arguments and re.fullmatch(r"\s*(?:0o?)?0+\s*", arguments[0]):
        yield ["umask", "000"]
    elif (
        name in _DELETING
        and arguments
        and (is_of_files or (not owner and name in ("rmtree", "unlink", "removedirs", "rmSync", "unlinkSync")))
    ):
        yield ["rm", "-rf", values[0] or "$path"] if name.startswith("rm") else ["rm", values[0] or "$path"]
    elif name in _MOVING and is_of_files and len(arguments) > 1:
        yield ["mv", values[0] or "$path", values[1] or "$path"]
    elif name in _COPYING and is_of_files and len(arguments) > 1:
        yield ["cp", values[0] or "$path", values[1] or "$path"]
    elif name in ("truncate", "truncateSync") and is_of_files and arguments:
        yield ["truncate", "-s", "0", values[0] or "$path"]
    elif name in _SENDING and owner and not is_of_files and arguments and _is_address(values[0]):
        yield ["request", name.upper(), (_address(code, names) if values[0].startswith("/") else "") + values[0]]
    elif name == "request" and len(arguments) > 1 and values[0].isalpha():
        yield ["request", values[0].upper(), _address(code, names) + values[1]]
    elif name in ("urlopen", "Request", "fetch") and arguments and _is_address(values[0]):
        rest = " ".join(arguments[1:])
        stated = re.search(r"method[\"']?\s*[=:]\s*[\"'](\w+)", rest)
        method = stated[1].upper() if stated else "POST" if "data=" in rest or "body" in rest else "GET"
        yield ["request", method, values[0]]


def _method_command(match: re.Match[str], arguments: Sequence[str], names: dict[str, str]) -> Iterator[list[str]]:
    path = _value(match["path"] or match["name"], names)
    is_module = match["name"] in ("os", "fs", "fsp", "File", "shutil", "promises", "Deno")
    match match["method"]:
        case "unlink" | "rmdir" if not is_module:
            yield ["rm", path]
        case "chmod" if not is_module and arguments and (mode := _mode(arguments[0])):
            yield ["chmod", mode, path]
        case "rename" | "replace" if match["path"] is not None and len(arguments) == 1:
            yield ["mv", path, _value(arguments[0], names)]
        case _:
            return


def _git_command(name: str, arguments: Sequence[str], names: dict[str, str]) -> list[str]:
    """A call of a library for git, such as `repo.git.push('--force')` or `remote.push(force=True)`."""
    words = ["git", name.replace("_", "-")]
    for argument in arguments:
        option = re.fullmatch(r"\s*(\w+)\s*=\s*(True|.+?)\s*", argument, re.DOTALL)
        if option is None:
            words.append(_value(argument, names))
        elif option[2] == "True":
            words.append(f"--{option[1]}" if len(option[1]) > 1 else f"-{option[1]}")
    return words


def _is_address(value: str) -> bool:
    return "://" in value or (value.startswith(("/", "$", ":")) and "/" in value)


def _mode(argument: str) -> str | None:
    found = _MODE.search(argument)
    if found is None:
        return None
    return found[1] or "777"


def _address(code: str, names: dict[str, str]) -> str:
    """The host and port of a connection that the program opens."""
    found = _CONNECTION.search(code)
    if found is None:
        base = _BASE.search(code)
        return "" if base is None else _value(base[1], names).rstrip("/")
    host, _, port = found[1].partition(",")
    number = re.search(r"\d+", port)
    return f"http://{_value(host, names)}" + (f":{number[0]}" if number else "")
