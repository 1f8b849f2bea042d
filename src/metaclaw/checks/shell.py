"""Shell scripts, read with tree-sitter: the simple commands of a script, with their words as the
shell would pass them on.

Nothing is run, and no file is read. Only values that the script itself sets are known, the last one
set; a word whose value is known only at run time stays as written."""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MOST_VALUE_CHARS: Final = 2_000
_PARSE_LIMIT_S: Final = 0.3
_MOST_COMMANDS: Final = 1_000
_MOST_DEPTH: Final = 150
_MOST_PIPES: Final = 300  # the parser takes quadratic time for a long pipeline
_MOST_HERE_DOCUMENTS: Final = 300  # likewise for these, which its time limit does not reach
_SPLIT: Final = "\x00"  # between the words of a value
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")
_QUOTED: Final = re.compile(
    r"<<-?\s*['\"]?(\w+)['\"]?[^\n]*\n.*?\n\t*\1$|'[^']*'|\"[^\"]*\"", re.DOTALL | re.MULTILINE
)
_PLAIN: Final = re.compile(r"[\w./:=@%+-]+")
_ESCAPE: Final = re.compile(r"\\(\r?\n|.)", re.DOTALL)
_ESCAPE_IN_QUOTES: Final = re.compile(r"\\([$`\"\\\n])")
_SIGN_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[0-7]{3}|.)", re.DOTALL)
_SIGNS: Final = {"n": "\n", "t": "\t", "r": "\r", "\n": ""}
_BLANKS: Final = re.compile(r"(\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`)|[\s\x00]+")
_PARAMETER: Final = re.compile(r"\$\{(\w+|[@*])(?:\[[^\]]*\])?(?:\}|:?([-=+?]))")
_DEFAULTS: Final = frozenset((":-", "-", ":=", "=", ":+", "+", ":?"))
_SETTING: Final = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?(\+?)=(.*)", re.DOTALL)


class ShellSyntaxError(ValueError):
    """A script that is not complete, or nested too deeply."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command: its text without quotes, and its place in the script."""

    text: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Output:
    """What commands print: the text if it is known, the commands in plain spelling, and whether it
    is only that of files.
    """

    text: str | None = None
    lines: tuple[str, ...] = ()
    is_file: bool = False


NOTHING: Final = Output()


@dataclass(slots=True, eq=False)
class Command:
    """A simple command. `inputs` are texts that it reads from here documents, `writes` the files of
    its output, `empties` those it truncates, `reads` those of its input."""

    begin: int
    end: int = 0
    assignments: list[Word] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    inputs: list[Word] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    empties: list[str] = field(default_factory=list)
    reads: list[Word] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.words]


@dataclass(slots=True)
class Script:
    """The commands of a script in order, including those of substitutions; its functions, and the
    places of its comments.
    """

    source: str
    commands: list[Command] = field(default_factory=list)
    functions: dict[str, str] = field(default_factory=dict)
    comments: list[tuple[int, int]] = field(default_factory=list)


@lru_cache(1)
def _parser() -> "Parser":
    # Imported here, because a proxy whose rules read no commands does not need it.
    import tree_sitter
    import tree_sitter_bash

    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
    # It holds the interpreter's lock, and takes quadratic time to recover from errors: hostile text
    # must not stall the program.
    parser.timeout_micros = round(1e6 * _PARSE_LIMIT_S)
    return parser


def _parse(source: bytes) -> "Node":
    """The tree of a script. The limit is one of processor time: on a busy machine, others have the
    processor while the parser's own clock runs on.
    """
    began = time.thread_time()
    while True:
        try:
            return _parser().parse(source).root_node
        except ValueError as error:
            if time.thread_time() - began >= _PARSE_LIMIT_S:
                _parser().reset()
                raise ShellSyntaxError("it takes too long to parse") from error
            # The next call goes on where this one was stopped.


class ShellReader:
    """Walks the tree of a script. A subclass says in `run` what a command prints."""

    def __init__(self) -> None:
        self.script = Script("")
        self.functions: dict[str, str] = {}
        self.variables = {"IFS": " "}
        self.printed: dict[str, Output] = {}  # by process substitutions
        self.is_defining = False
        self._count = self._depth = 0

    def run(self, command: Command, fed: Output) -> Output:
        """What a command prints if `fed` is its input."""
        return NOTHING

    def read(self, source: str) -> Output:
        """Read a script; what it prints. `script` then is this script."""
        source = source.replace(_SPLIT, "�")
        if source.count("<<") > _MOST_HERE_DOCUMENTS:
            raise ShellSyntaxError("too many here documents")
        if source.count("|") > _MOST_PIPES and _QUOTED.sub("", source).count("|") > _MOST_PIPES:
            raise ShellSyntaxError("too many pipes")
        # One byte for each character, so that places in the tree are places in the source.
        root = _parse(_NOT_ASCII.sub("_", source).encode())
        if root.has_error:
            raise ShellSyntaxError("its syntax is not that of a shell")
        self.script = Script(source, functions=self.functions)
        return self._node(root, NOTHING, ())

    def _raw(self, node: "Node") -> str:
        return self.script.source[node.start_byte : node.end_byte]

    def _node(self, node: "Node", fed: Output, redirects: Sequence["Node"]) -> Output:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise ShellSyntaxError("nested too deeply")
        try:
            return self._statement(node, fed, redirects)
        finally:
            self._depth -= 1

    def _statement(self, node: "Node", fed: Output, redirects: Sequence["Node"]) -> Output:
        match node.type:
            case (
                "command"
                | "declaration_command"
                | "unset_command"
                | "variable_assignment"
                | "variable_assignments"
            ):
                return self._simple(node, fed, redirects)
            case "comment":
                self.script.comments.append((node.start_byte, node.end_byte))
                return Output("")
            case "redirected_statement":
                return self._redirected(node, fed, redirects)
            case "pipeline":
                members = [child for child in node.children if child.is_named]
                for member in members:
                    printed = self._node(member, fed, redirects if member is members[-1] else ())
                    fed = Output(printed.text, (*fed.lines, *printed.lines), printed.is_file)
                return fed
            case "function_definition":
                return self._define(node)
            case "test_command" | "arithmetic_expansion":
                self._inner(node)
                return NOTHING
            case "for_statement":
                self._loop(node)
        if redirects and node.type != "list":
            return self._group(node, fed, redirects)
        outputs: list[Output] = []
        for child in node.children:
            if (node.type == "case_statement" and child.type != "case_item") or (
                node.type in ("for_statement", "case_item", "c_style_for_statement")
                and not _is_statement(child)
            ):
                self._inner(child)
            elif child.is_named:
                outputs.append(
                    self._node(child, fed, redirects if child.id == node.children[-1].id else ())
                )
        return _together(outputs)

    def _loop(self, node: "Node") -> None:
        name, values = node.child_by_field_name("variable"), node.children_by_field_name("value")
        items = [word.text for value in values for word in self._words(value)]
        if name is not None and items:
            self._set(self._raw(name), _SPLIT.join(items))

    def _define(self, node: "Node") -> Output:
        """Keep a function. Its commands are read here, too, because it may be called where nobody
        sees it.
        """
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[self._raw(name)] = self._raw(body)
            outer, self.is_defining = self.is_defining, True
            self._node(body, NOTHING, ())
            self.is_defining = outer
        return Output("")

    def _redirected(self, node: "Node", fed: Output, redirects: Sequence["Node"]) -> Output:
        own = [child for child in node.children if child.type.endswith("_redirect")]
        own += [
            inner
            for child in own
            if child.type == "heredoc_redirect"
            for inner in child.children_by_field_name("redirect")
        ]
        body = node.child_by_field_name("body")
        if body is None:
            return self._simple(node, fed, (*own, *redirects))
        printed = self._node(body, fed, (*own, *redirects))
        for document in own:
            if document.type == "heredoc_redirect":
                for child in document.children:
                    if child.type == "pipeline":  # as in `cat <<E | sh`
                        printed = self._node(child, printed, ())
                        continue
                    if (
                        document.field_name_for_child(document.children.index(child)) == "right"
                        and child.is_named
                    ):
                        printed = _together((printed, self._node(child, fed, ())))
        return printed

    def _group(self, node: "Node", fed: Output, redirects: Sequence["Node"]) -> Output:
        """A loop or a group with redirections."""
        command = Command(node.start_byte, node.start_byte)
        self._redirect(command, redirects)
        if command.inputs:
            fed = Output("\n".join(word.text for word in command.inputs))
        elif command.reads:
            fed = self.printed.get(command.reads[0].text, Output(is_file=True))
        printed = self._node(node, fed, ())
        command.inputs, command.reads = [], []
        if command.writes:
            command.words = [Word("cat", node.start_byte, node.start_byte)]
            self.run(command, printed)
        return printed

    def _simple(self, node: "Node", fed: Output, redirects: Sequence["Node"]) -> Output:
        self._count += 1
        if self._count > _MOST_COMMANDS:
            raise ShellSyntaxError("too many commands")
        command = Command(node.start_byte, node.end_byte)
        if node.type != "redirected_statement":
            self._read_words(command, node)
        self._redirect(command, redirects)
        self.script.commands.append(command)
        self._remember(command)
        return self.run(command, fed)

    def _read_words(self, command: Command, node: "Node") -> None:
        own: list[Node] = []
        children = node.children
        for child in children if children and node.type != "variable_assignment" else [node]:
            if child.type.endswith("_redirect"):
                own.append(child)
            elif child.type == "variable_assignment" and node.type != "declaration_command":
                command.assignments.append(
                    Word(self._assigned(child), child.start_byte, child.end_byte)
                )
            elif child.type == "variable_assignment":
                command.words.append(Word(self._assigned(child), child.start_byte, child.end_byte))
            elif child.type != "comment":
                command.words += self._words(child)
        self._redirect(command, own)

    def _assigned(self, node: "Node") -> str:
        """`name=value`, with a list as its words."""
        value = node.child_by_field_name("value")
        if value is None:
            return self._raw(node)
        head = self.script.source[node.start_byte : value.start_byte]
        if value.type == "array":
            return head + _SPLIT.join(
                word.text for child in value.named_children for word in self._words(child)
            )
        return head + self._text(value, is_quoted=True)

    def _redirect(self, command: Command, redirects: Iterable["Node"]) -> None:
        for node in redirects:
            if node.type == "heredoc_redirect":
                self._here_document(command, node)
                continue
            target, *others = (
                node.children_by_field_name("destination") or node.named_children[-1:] or [node]
            )
            command.words += [
                word for other in others for word in self._words(other)
            ]  # as in `> file argument`
            word = Word(
                " ".join(word.text for word in self._words(target)),
                target.start_byte,
                target.end_byte,
            )
            operator = next((child.type for child in node.children if not child.is_named), "")
            if operator == "<<<":
                command.inputs.append(word)
            elif operator == "<":
                command.reads.append(word)
            elif ">" in operator:
                command.writes.append(word.text)
                command.empties += [word.text] if operator in (">", ">|", "&>") else []

    def _here_document(self, command: Command, node: "Node") -> None:
        parts = {child.type: child for child in node.children}
        command.words += [
            word for child in node.children_by_field_name("argument") for word in self._words(child)
        ]
        before = node.prev_sibling
        if before is not None:  # the parser loses a word `-` before `<<`
            lost = self.script.source[before.end_byte : node.start_byte].split()
            command.words += [Word(text, before.end_byte, node.start_byte) for text in lost]
        body = parts.get("heredoc_body")
        if body is not None:
            is_literal = any(sign in self._raw(parts["heredoc_start"]) for sign in "'\"\\")
            text = (
                self._raw(body)
                if is_literal
                else self._joined(body, is_quoted=True).replace(_SPLIT, " ")
            )
            text = re.sub(r"(?m)^\t+", "", text) if "<<-" in parts else text
            command.inputs.append(Word(text.removesuffix("\n"), body.start_byte, body.end_byte))

    def _remember(self, command: Command) -> None:
        """Keep the variables that a command sets."""
        match command.texts:
            case []:
                self.assign([word.text for word in command.assignments])
            case ["export" | "declare" | "readonly" | "typeset" | "local", *texts]:
                self.assign(texts)
            case ["set", "--", *texts]:
                self.set_arguments(texts)

    def assign(self, texts: Iterable[str]) -> None:
        for text in texts:
            if setting := _SETTING.fullmatch(text):
                before = self.variables.get(setting[1], "") if setting[2] else ""
                self._set(setting[1], before + setting[3])

    def _set(self, name: str, value: str) -> None:
        self.variables[name] = value[:MOST_VALUE_CHARS]

    def set_arguments(self, texts: Sequence[str]) -> None:
        self.variables |= {str(place): text for place, text in enumerate(texts[:64], 1)}
        self._set("@", _SPLIT.join(texts))

    def _words(self, node: "Node") -> list[Word]:
        """The words that one written word expands to: none for an empty variable, several if a
        value has blanks.
        """
        raw = self._raw(node)
        if node.type == "subshell":  # an argument of PowerShell, as in `iex (irm …)`
            self._node(node, NOTHING, ())
            return [Word(f"${raw}", node.start_byte, node.end_byte)]
        if _PLAIN.fullmatch(raw):
            return [Word(raw, node.start_byte, node.end_byte)]
        text = self._text(node)
        if not text.strip(_SPLIT) and not re.search("['\"]", raw):
            return []
        parts = text.split(_SPLIT)
        texts = [part for part in parts if part] or [text]
        return [Word(text, node.start_byte, node.end_byte) for text in texts]

    def _text(self, node: "Node", *, is_quoted: bool = False) -> str:
        """The text of a word or a part of it; an unquoted value is split at its blanks."""
        raw = self._raw(node)
        match node.type:
            case "raw_string":
                return raw[1:-1]
            case "ansi_c_string":
                return unescaped(raw[2:-1]).replace(_SPLIT, "�")
            case "string":
                return self._joined(node, is_quoted=True)
            case "translated_string" | "concatenation" | "command_name" | "array":
                return self._joined(node, is_quoted=is_quoted)
            case "string_content" | "heredoc_content":
                return _ESCAPE_IN_QUOTES.sub(lambda match: match[1].strip("\n"), raw)
            case (
                "simple_expansion"
                | "expansion"
                | "command_substitution"
                | "process_substitution"
                | "arithmetic_expansion"
            ):
                blanks = raw[: len(raw) - len(raw.lstrip())]  # the parser adds blanks before it
                return (blanks if is_quoted else "") + self._expanded(
                    node, raw.lstrip(), is_quoted=is_quoted
                )
            case '"':
                return raw.replace('"', "")
            case _:
                self._inner(node)
                return _ESCAPE.sub(lambda match: match[1].strip("\r\n"), raw)

    def _joined(self, node: "Node", *, is_quoted: bool) -> str:
        pieces, at = list[str](), node.start_byte
        for child in node.children:
            pieces += [
                self.script.source[at : child.start_byte],
                self._text(child, is_quoted=is_quoted),
            ]
            at = child.end_byte
        return "".join((*pieces, self.script.source[at : node.end_byte]))

    def _inner(self, node: "Node") -> None:
        """Read the substitutions within a part that is not a word."""
        for child in node.named_children:
            self._text(child, is_quoted=True) if child.type.endswith(
                "_substitution"
            ) else self._inner(child)

    def _expanded(self, node: "Node", raw: str, *, is_quoted: bool) -> str:
        match node.type:
            case "command_substitution" | "process_substitution":
                printed = self._substituted(node)
                if node.type == "process_substitution":
                    self.printed[raw] = printed
                    return raw
                if printed.text is None:
                    return raw
                return printed.text if is_quoted else _split(printed.text)
            case "arithmetic_expansion":
                self._inner(node)
                return raw
            case "simple_expansion":
                name = raw[1:].replace("*", "@")
                is_list = name == "@"
                value = self.variables.get(name, "" if is_list else raw)
            case _:
                value, is_list = self._parameter(node, raw), "@" in raw or "*]" in raw
        if is_quoted:
            return value if is_list else value.replace(_SPLIT, " ")
        return value if value == raw else _split(value)

    def _parameter(self, node: "Node", raw: str) -> str:
        """`${…}`: the value, or its default; other operators are not followed."""
        found = _PARAMETER.match(raw)
        children = node.children
        signs = [at for at, child in enumerate(children) if child.type in _DEFAULTS]
        if found is None or not signs:
            self._inner(node)
        if found is None:
            return raw
        value = self.variables.get(found[1].replace("*", "@"), "")
        if found[2] is None:
            return value or raw
        default = "".join(
            self._text(child, is_quoted=True) for child in children[signs[0] + 1 : -1]
        )
        return value if value and found[2] != "+" else default

    def _substituted(self, node: "Node") -> Output:
        return _together([self._node(child, NOTHING, ()) for child in node.named_children])


def _is_statement(node: "Node") -> bool:
    return (
        node.type.endswith(("statement", "command", "group", "list", "pipeline", "subshell"))
        or "assignment" in node.type
    )


def _together(outputs: Sequence[Output]) -> Output:
    texts = [output.text for output in outputs if output.text]
    is_known = any(output.text is not None for output in outputs)
    lines = tuple(line for output in outputs for line in output.lines)
    return Output(
        "\n".join(texts) if is_known else None,
        lines,
        bool(outputs) and all(output.is_file for output in outputs),
    )


def _split(value: str) -> str:
    """Split an unquoted value at blanks, except those within a substitution."""
    return _BLANKS.sub(lambda match: match[1] or _SPLIT, value)


def unescaped(text: str) -> str:
    """A text without the escapes that `$'…'` and the texts of programming languages share."""
    return _SIGN_ESCAPE.sub(_unescaped_sign, text)


def _unescaped_sign(match: re.Match[str]) -> str:
    sign = match[1]
    if len(sign) > 1:
        return chr(int(sign, 8) if sign.isdigit() else int(sign[1:], 16))
    return _SIGNS.get(sign, sign)
