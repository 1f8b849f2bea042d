"""Import and export of rules (CLAUDE.md, AGENTS.md, .cursorrules of other programs) and of packs of
skills.

In Markdown, each list item and each short paragraph is a rule; the heading above it says when it
applies, unless it is general, such as "Rules". Scope, project and last day, for which Markdown has
no place, are in a comment after the rule.

A pack is several files in the format of SKILL.md. Each is read, within limits, like any skill file;
no path of a pack is used."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

import msgspec

from metaclaw.domain.skill import ALWAYS, Authorship, Skill, SkillKind, SkillState
from metaclaw.errors import SkillError
from metaclaw.skills.files import (
    MAX_FILE_BYTES,
    decode_skill,
    parse_skill,
)
from metaclaw.skills.rules import MAX_RULE_CHARS, MAX_WHEN_CHARS, RuleFields

BEGIN: Final = "<!-- metaclaw rules: begin -->"
END: Final = "<!-- metaclaw rules: end -->"
_FRONT_MATTER: Final = re.compile(r"\A---[ \t]*\n.*?\n---[ \t]*(?:\n|\Z)", re.DOTALL)
_HEADING: Final = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)[ \t#]*$")
_TOP_HEADING: Final = re.compile(r"^ {0,3}#[ \t]", re.MULTILINE)
_ITEM: Final = re.compile(r"( *)(?:[-*+]|\d{1,3}[.)])[ \t]+(.*)$")
_FENCE: Final = re.compile(r" *(```+|~~~+)")
_COMMENT: Final = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_PROPOSED: Final = "Proposed, not approved yet"
_OURS: Final = re.compile(r"[ \t]*<!-- (\{.*?\}) -->")
_RULER: Final = re.compile(r" *(?:[-*_] *){3,}$|=+$")
_GENERAL: Final = re.compile(
    r"(?:(?:the|my|our|your|some|general|global|important|project|team|user|common|core|key|basic|house|ground|coding|code|agent|ai"
    r"|development|working|default|other|additional)\s+)*"
    r"(?:rules?|guidelines?|guidance|instructions?|preferences?|conventions?|notes?|principles?|standards?|practices|requirements"
    r"|general|global|misc(?:ellaneous)?|always|important|overview|memory|memories|context|claude|agents|regeln|règles|reglas"
    r"|规则|規則|ルール)",
    re.IGNORECASE,
)
_FACTS: Final = re.compile(
    r"facts?|for future reference|fakten|faits|hechos|事实|事實|事実", re.IGNORECASE
)
_MARKUP: Final = re.compile(r"\s*<(?!https?:)/?[a-zA-Z][^<>]*>")
_LINK: Final = re.compile(r"!?\[(?:!\[[^\]]*\]\([^)]*\)|[^\]]*)\]\([^)]*\)|<?https?://\S+>?")
_BOILERPLATE: Final = re.compile(
    r"(?:this|the) (?:file|document|page|repository|repo)\b.{0,40}\b(?:"
    r"provides?|contains?|describes?|gives?|is (?:an?|the|for|used|read)"
    r"|guides|has)\b|(?:copyright\b|©|\(c\) \d{4}|licen[sc]ed under\b|table of contents\b|last"
    r" updated\b|generated (?:by|with)\b)",
    re.IGNORECASE,
)
_TITLE: Final = re.compile(r"(?:\*\*|__)[^*_\n.!?]{1,60}(?:\*\*|__):?|[^\W\d_][\w &/-]{0,40}:")
_CARRIED: Final = ("scope", "workspace", "channel", "expires")


@dataclass(frozen=True, slots=True)
class RuleFile:
    """The rules read from a file, and the parts that were left out, with the reason."""

    rules: tuple[RuleFields, ...]
    left_out: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Piece:
    """A paragraph, list item or code block: its lines without the indentation, and the headings
    above it.
    """

    kind: str
    lines: list[str]
    headings: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines).strip()

    def go_on(self, line: str) -> None:
        """Add a line. It continues the last line, unless that ends with a Markdown line break."""
        last = self.lines[-1] if self.lines else ""
        is_wrapped = (
            last.strip()
            and not last.endswith("  ")
            and not _FENCE.match(last)
            and not _ITEM.match(line)
        )
        self.lines[-1:] = [f"{last} {line.strip()}"] if is_wrapped else [last, line]


def read_rules(text: str) -> RuleFile:
    """Rules from the text of a Markdown or plain text file, or from the JSON of an export."""
    if text.lstrip().startswith("{"):
        return _from_json(text)
    rules: list[RuleFields] = []
    left_out: list[tuple[str, str]] = []
    introduction: str | None = None
    pieces = _joined(_pieces(text))
    for number, piece in enumerate(pieces):
        follower = pieces[number + 1].kind if number + 1 < len(pieces) else ""
        if piece.kind == "paragraph" and piece.text.endswith(":") and follower == "item":
            introduction = piece.text.removesuffix(":")
            continue
        if piece.kind != "item" or (number and piece.headings != pieces[number - 1].headings):
            introduction = None
        fault = _fault(piece)
        if fault is not None:
            left_out.append((piece.text[:60], fault))
            continue
        rules.append(_rule(piece, introduction))
    return RuleFile(tuple(rules), tuple(left_out))


def render_section(rules: Sequence[Skill], proposed: Sequence[Skill] = ()) -> str:
    """A section for AGENTS.md or CLAUDE.md, between two comments that mark it for replacement. What
    was proposed and waits for a person is in a part of its own."""
    lines = [BEGIN]
    parts = (
        ("## Rules", [rule for rule in rules if rule.kind is SkillKind.RULE]),
        ("## Facts", [rule for rule in rules if rule.kind is SkillKind.FACT]),
        (f"## {_PROPOSED}", proposed),
    )
    for title, of_kind in parts:
        groups: dict[str, list[Skill]] = {}
        for rule in sorted(of_kind, key=lambda rule: rule.when != ALWAYS):
            groups.setdefault(rule.when, []).append(rule)
        if of_kind:
            lines += ["", title]
        for when, group in groups.items():
            lines += [
                "",
                *([] if when == ALWAYS else [f"### {when}", ""]),
                *(_item(rule) for rule in group),
            ]
    return "\n".join([*lines, "", END, ""])


def _item(rule: Skill) -> str:
    carried = {key: value for key in _CARRIED if (value := getattr(rule, key)) is not None}
    note = f" <!-- {msgspec.json.encode(carried).decode()} -->" if carried else ""
    lines = rule.body.replace(BEGIN, "").replace(END, "").splitlines() or [""]
    # Two spaces at the end make a line break in Markdown.
    breaks = [
        "" if not after.strip() or not line.strip() else "  "
        for line, after in zip(lines, [*lines[1:], ""], strict=True)
    ]
    first, *others = (f"{line}{end}" for line, end in zip(lines, breaks, strict=True))
    first = f"{first.rstrip()}{note}{breaks[0]}"
    return "\n".join([f"- {first}", *(f"  {line}" if line.strip() else "" for line in others)])


def _pieces(text: str) -> list[_Piece]:
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").expandtabs(4)
    text = _FRONT_MATTER.sub("", text)
    text = _COMMENT.sub(lambda found: found[0] if _OURS.fullmatch(found[0]) else "", text)
    has_title = len(_TOP_HEADING.findall(text)) == 1
    headings: list[tuple[int, str]] = []
    found: list[_Piece] = []
    piece: _Piece | None = None  # the last of those found, while it may go on
    indent, fence, had_blank = 0, "", False

    def begin(kind: str, lines: list[str]) -> _Piece:
        above = tuple(title for level, title in headings if level > 1 or not has_title)
        found.append(_Piece(kind, lines, above))
        return found[-1]

    for line in text.split("\n"):
        inside = len(line) - len(line.lstrip()) >= max(indent, 1)
        if fence:
            assert piece is not None
            piece.lines.append(_dedented(line, indent))
            is_end = line.strip().startswith(fence) and not line.strip().strip(fence[0])
            fence = "" if is_end else fence
        elif opened := _FENCE.match(line):
            if piece is None or piece.kind != "item" or not inside:
                piece, indent = begin("code", []), 0
            piece.lines += [""] if had_blank and piece.lines else []
            piece.lines.append(_dedented(line, indent))
            fence = opened[1]
        elif not line.strip():
            had_blank = True
            piece = piece if piece is not None and piece.kind == "item" else None
            continue
        elif piece is not None and piece.kind == "item" and inside:
            if had_blank:
                piece.lines += ["", _dedented(line, indent)]
            else:
                piece.go_on(_dedented(line, indent))
        elif (heading := _HEADING.match(line)) or _RULER.match(line):
            if heading is not None:
                level = len(heading[1])
                headings = [*(one for one in headings if one[0] < level), (level, heading[2])]
            elif piece is not None and piece.kind == "paragraph" and set(line.strip()) <= set("=-"):
                headings = [(1 if "=" in line else 2, found.pop().text)]  # by underlining
            piece = None
        elif item := _ITEM.match(line):
            indent = len(item[1]) + 2
            piece = begin("item", [item[2]])
        elif piece is not None and not had_blank and piece.kind in ("item", "paragraph"):
            piece.go_on(line)
        else:
            piece, indent = begin("paragraph", [line]), 0
        had_blank = False
    return found


def _joined(pieces: Iterable[_Piece]) -> list[_Piece]:
    """Join each code block to the paragraph that announces it."""
    joined: list[_Piece] = []
    for piece in pieces:
        if piece.kind == "code" and joined and joined[-1].text.endswith(":"):
            joined[-1].lines += piece.lines
            joined[-1].kind = "example"
        else:
            joined.append(piece)
    return joined


def _fault(piece: _Piece) -> str | None:
    """Why a piece is not a rule, or None."""
    text = piece.text
    if piece.kind == "code":
        return "a code block without a sentence"
    if text.startswith("|") or text.startswith(("![", "[![")):
        return "a table or picture"
    if _MARKUP.match(text) or not re.search(r"\w", _LINK.sub("", text)):
        return "a picture, a link or markup"
    if _BOILERPLATE.match(text):
        return "says what the file is for"
    if _TITLE.fullmatch(text):
        return "a heading"
    if re.fullmatch(r"@\S+", text):
        return "the name of another file: import that one too"
    if not re.search(r"\w", text):
        return "no words"
    return (
        f"longer than {MAX_RULE_CHARS} characters: make a skill of it"
        if len(text) > MAX_RULE_CHARS
        else None
    )


def _rule(piece: _Piece, introduction: str | None) -> RuleFields:
    carried: dict[str, str] = {}
    lines: list[str] = []
    for line in piece.lines:
        if found := _OURS.search(line):
            carried |= _carried(found[1])
            line = _OURS.sub("", line)
        lines.append(line)
    specific = [title for title in piece.headings if not _is_general(title)]
    is_fact = any(_FACTS.fullmatch(title.strip()) for title in piece.headings)
    when = introduction or next(iter(reversed(specific)), ALWAYS)
    fields = RuleFields(
        text="\n".join(line.rstrip() for line in lines).strip(),
        kind="fact" if is_fact else "rule",
        when=when[:MAX_WHEN_CHARS],
    )
    return cast(RuleFields, {**fields, **carried})


def _is_general(title: str) -> bool:
    if title == _PROPOSED:
        return True
    plain = re.sub(r"[^\w\s]", " ", title).strip()
    return not plain or _GENERAL.fullmatch(plain) is not None or _FACTS.fullmatch(plain) is not None


def _carried(text: str) -> dict[str, str]:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}
    return (
        {key: said for key in _CARRIED if isinstance(said := value.get(key), str)}
        if isinstance(value, dict)
        else {}
    )


def _dedented(line: str, indent: int) -> str:
    return line[min(indent, len(line) - len(line.lstrip())) :]


def _from_json(text: str) -> RuleFile:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise SkillError(f"the file is not JSON: {error}") from error
    listed = value.get("rules") if isinstance(value, Mapping) else None
    if not isinstance(listed, list) or not all(
        isinstance(rule, Mapping) and isinstance(rule.get("text"), str) for rule in listed
    ):
        raise SkillError(
            'the file has no list of rules: write {"rules": [{"text": "…"}]}, as metaclaw rules'
            " export --format json does"
        )
    names = RuleFields.__annotations__.keys() - {"name", "source"}
    rules = [{name: rule[name] for name in names if rule.get(name) is not None} for rule in listed]
    return RuleFile(tuple(cast(RuleFields, rule) for rule in rules), ())


@dataclass(frozen=True, slots=True)
class Pack:
    """The skills of a pack by name, and its unusable files with the reason."""

    skills: tuple[Skill, ...]
    faults: tuple[tuple[str, str], ...]


def read_pack(files: Iterable[tuple[str, str]]) -> Pack:
    """Read files in the format of SKILL.md, each with its name for messages. From then on they are
    the person's, who vouches for them by adding them."""
    skills: dict[str, Skill] = {}
    faults: list[tuple[str, str]] = []
    for where, text in files:
        try:
            if len(text.encode()) > MAX_FILE_BYTES:
                raise SkillError(
                    f"{where}: more than {MAX_FILE_BYTES} bytes: move details to files beside it"
                )
            skill = parse_skill(decode_skill(text.encode(), where), where)
            if skill.name in skills:
                raise SkillError(f"{where}: a second skill named {skill.name}: keep one")
            skills[skill.name] = replace(skill, author=Authorship.PERSON, state=SkillState.LIVE)
        except SkillError as error:
            faults.append((where, str(error).removeprefix(f"{where}: ")))
    return Pack(tuple(skills[name] for name in sorted(skills)), tuple(faults))
