"""Find secrets in a text: one scanner over one table (`secrets.toml`) of formats, names, and places
where secrets stand.

The text is also read as views of it: unescaped, percent-decoded, with split tokens joined and
hidden characters removed. Patterns are bounded or possessive, and a value that was found is not
searched again, so that hostile text takes linear time."""

import re
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

from metaclaw.privacy.known_secrets import KnownSecrets
from metaclaw.privacy.secret_values import PLACEHOLDER, TABLE, TESTS, is_random, pattern, wordiness
from metaclaw.text import (
    BASE64,
    HEX,
    HIDDEN,
    from_base64,
    from_hex,
    may_contain_hidden,
    visible_form,
)

RANDOM, NAMED, SHAPED, KNOWN = range(4)
"""How a secret was recognised, weakest first. Of two overlapping matches, the surer one gives the
label.
"""


class SecretMatch(NamedTuple):
    """The place of a secret. `label` is the text of its placeholder without brackets and number."""

    start: int
    end: int
    label: str
    certainty: int


def merge_matches(hits: Iterable[SecretMatch]) -> list[SecretMatch]:
    """The matches in order, overlapping ones united, with the label of the surest."""
    united: list[SecretMatch] = []
    for hit in sorted(
        (hit for hit in hits if hit.start < hit.end), key=lambda hit: (hit.start, -hit.end)
    ):
        if united and hit.start < united[-1].end:
            last = united.pop()
            surest = max(last, hit, key=lambda one: one.certainty)
            hit = surest._replace(start=last.start, end=max(last.end, hit.end))
        united.append(hit)
    return united


_TOKEN = re.compile(r"[A-Za-z0-9+/=_.:$~%@,-]{16,}")
# Names of one case are most of the long tokens, and no secret.
_VARIED = re.compile("[0-9]|[a-z][A-Z]|[A-Z]{16}")
_DIGIT = re.compile("[0-9]")
_MIN_CHARS = 16
_SAMPLE = 200


class _Subjects:
    """What is searched of a text. The distinct words and tokens, one per line, are far shorter than
    the text.
    """

    def __init__(self, text: str, known: KnownSecrets) -> None:
        # Lower case without moving any character (the Turkish İ would become two).
        low = text.lower() if text.isascii() else text.replace("\u0130", "i").lower()
        unique = set(text.split())
        self.long_words = [
            word for word in unique if len(word) >= min(_MIN_CHARS, known.min_chars or _MIN_CHARS)
        ]
        tokens = set(filter(_VARIED.search, _TOKEN.findall("\n".join(self.long_words))))
        self.text, self.low = text, low
        self.of = {
            "text": text,
            "low": low,
            "tokens": "\n".join(tokens),
            "digits": "\n".join(filter(_DIGIT.search, tokens)),
        }
        self.words = self.of | {"low": "\n".join(("", *unique, "")).lower()}
        """Where there is an anchor if there may be a match."""

    @cached_property
    def _places(self) -> dict[str, list[int]]:
        places = defaultdict(list)
        for match in _TOKEN.finditer(self.text):
            places[match[0]].append(match.start())
        return places

    def places(self, subject: str, start: int, end: int) -> Iterable[tuple[int, int]]:
        """Every place in the text of a stretch of a subject."""
        if subject in ("text", "low"):
            return ((start, end),)
        first, last = self.of[subject].rfind("\n", 0, start) + 1, self.of[subject].find("\n", end)
        token = self.of[subject][first : last if last >= 0 else None]
        return ((place + start - first, place + end - first) for place in self._places[token])


class _Shape:
    """An entry of the table."""

    def __init__(
        self,
        label: str,
        regex: str,
        anchors: Sequence[str] = (),
        test: str = "any",
        each: str = "",
        **rest: str,
    ) -> None:
        literal = re.match(r"(?:[\w/-]|\\\.)+", regex)
        self.anchors = anchors or [literal[0].replace("\\", "") if literal else ""]
        self._label, self.subject, self._test = label, rest.get("in", "tokens"), TESTS[test]
        self._regex = pattern(
            f"(?<![A-Za-z0-9]){regex}" if self.subject in ("tokens", "digits") else regex
        )
        self._each = each and pattern(each)

    def find(self, subjects: _Subjects) -> Iterator[SecretMatch]:
        subject = subjects.of[self.subject]
        if "" in self.anchors and not self._regex.search(subjects.words[self.subject]):
            return
        certainty, source = (NAMED, subjects.text) if self.subject == "low" else (SHAPED, subject)
        at = 0
        while match := self._regex.search(subject, at):
            span = match.span(self._regex.groups and 1)
            at = match.end() if self._each or self.subject == "text" else match.start() + 1
            for start, end in (
                (one.span(1) for one in self._each.finditer(subject, *span))
                if self._each
                else (span,)
            ):
                if start < end and self._test(source[start : min(end, start + _SAMPLE)]):
                    at = max(at, end)
                    for place in subjects.places(self.subject, start, end):
                        yield SecretMatch(*place, self._label, certainty)


_SHAPES = [_Shape(**entry) for entry in TABLE["secrets"]]
_NAMES: dict[str, Any] = TABLE["names"]
_NAME = pattern(_NAMES["any"])
_WEAK = tuple(_NAMES["weak"])
_BEGINNING = tuple(_NAMES["beginning"])
_FOREIGN = _NAMES["foreign"].split("|")
_ANY_NAME = pattern(f"{_NAMES['any']}|{_NAMES['foreign']}")
_LAST_WORD = re.compile(r"([a-z0-9]+)[-_ ]?\Z")
_INNOCENT, _STRONG_KEY, _WEAK_KEY = (
    tuple(_NAMES[name].split()) for name in ("innocent", "strong_key", "weak_key")
)
_KINDS = {"strong": ("quoted", "bare"), "weak": ("weak", "weak"), "key": ("key", "key"), "": ()}
_FORMS = {
    strength: [
        (
            pattern(form["before"]) if "before" in form else None,
            pattern(form["regex"]),
            [TESTS[form["tests"].get(kind, "none")] for kind in kinds],
            TESTS.get(form["tests"].get("line", "")),
        )
        for form in _NAMES["forms"]
        if form["tests"].keys() & kinds
    ]
    for strength, kinds in _KINDS.items()
}
_AFTER_NAME = frozenset(" \t\"'`\\*]=:-?|_.>(→：0123456789是は为為")
_LINE_START = re.compile(
    r"(?:^|[\n;]|\\n)[ \t>+|#*-]{0,12}(?:export |set |setx |env |declare -x |- |arg |\$env:|const"
    r" |\d{1,4}[:|] ?)?"
    r"[\"']?[\w.\-\[\]]{0,80}\Z",
    re.IGNORECASE,
)
_LINE_END = re.compile(r"[ \t]*(?:[#;,\"'&|\\})\r\n]|//|\Z)")
_BARE = re.compile(r"[^\s\"'`<>]{1,2000}")
_CODE_BARE = re.compile(r"[^\s\"'`<>,;(){}\[\]|\\]{1,2000}")
_FIELD_END = re.compile(r"&(?=[\w.%-]{1,60}=)|\\[nrt]|;(?=[A-Za-z][A-Za-z ]{1,30}=)")
_CLOSING = {"“": "”", "«": "»", "「": "」"}


def _named(text: str, low: str) -> Iterator[SecretMatch]:
    """Find secrets after a name: `password = "…"`, `API_KEY=…`, `--token …`, `the password is …`,
    `login me password …`.
    """
    names = _ANY_NAME if any(word in low for word in _FOREIGN) else _NAME
    at = 0
    while name := names.search(low, at):
        start, at = name.span()
        if low[at : at + 1] not in _AFTER_NAME or (start and PLACEHOLDER.match(text, start - 1)):
            continue
        strength = _strength(name[0], text, low, start)
        for value in _after(start, at, strength, text, low):
            at = value[1]
            is_password = strength == "strong" and not name[0].startswith(("key", "secret", "cred"))
            yield SecretMatch(*value, "PASSWORD" if is_password else "SECRET", NAMED)


def _strength(word: str, text: str, low: str, start: int) -> str:
    """Whether the name is strong or weak, or the word `key` alone; empty if it names no secret."""
    sign = text[start - 1 : start] if start else ""
    begins = not sign.isalpha() or (text[start].isupper() and sign.islower())
    is_weak = word.startswith(_WEAK)
    if is_weak or word == "key":
        before = _LAST_WORD.search(low, max(0, start - 20), start)
        last = before[1] if before else ""
        if last in _INNOCENT:
            return ""
        if word == "key":
            if last.endswith(_STRONG_KEY):
                return "strong"
            if last.endswith(_WEAK_KEY) or (last and sign == "_"):
                return "weak"
            return "key" if begins else ""
    if word == "pass" and not (begins and sign.strip()):
        return "weak" if begins and text.startswith(word, start) else ""
    if not begins and word.startswith(_BEGINNING):
        return ""
    return "weak" if is_weak else "strong"


def _after(begin: int, end: int, strength: str, text: str, low: str) -> Iterator[tuple[int, int]]:
    """The value after a name, in the first form that fits it."""
    for before, regex, (quoted, test), line in _FORMS[strength]:
        match = regex.match(low, end)
        if match is None or (before and not before.search(low, max(0, begin - 80), begin)):
            continue
        start, quote = match.end(), match["quote"]
        if quote:
            value = _closing(quote).match(text, start)
            stop, test = value.end() if value else start + 2_000, quoted
        else:
            is_line = line and _LINE_START.search(text, max(0, begin - 90), begin)
            value = (_CODE_BARE if line and not is_line else _BARE).match(text, start)
            stop = (
                start + len(_FIELD_END.split(value[0], 1)[0].rstrip(".,;:?)。，、"))
                if value
                else start
            )
            if line and is_line and strength == "strong" and _LINE_END.match(text, stop):
                test = line
        if stop > start and test(text[start : min(stop, start + _SAMPLE)]):
            yield start, stop
            return


@cache
def _closing(quote: str) -> re.Pattern[str]:
    """A quoted value: up to the same quotation mark, else to the end of the line."""
    return re.compile(rf"(?>\\.|[^\n]){{0,2000}}?(?={re.escape(_CLOSING.get(quote, quote))}|\n|\Z)")


_ROWS = re.compile(
    r"^([ \t]*\|[^\n]{1,500})\n[ \t]*\|[ \t:|+-]{3,500}\n((?:["
    r" \t]*\|[^\n]{1,2000}(?:\n|\Z)){1,500}+)",
    re.MULTILINE,
)
_RULE, _LINE = re.compile(r"\| ?:?-"), re.compile(r"[^\n]+")
_SECRET_HEADING = re.compile(r"pass|secret|token|api.?key|[a-z]_key|credential|pwd|пароль|密码")


def _in_tables(text: str, low: str) -> Iterator[SecretMatch]:
    """Find secrets in Markdown tables: cells under headings such as `Password`."""
    for table in _ROWS.finditer(low) if _RULE.search(low) else ():
        headings = [_SECRET_HEADING.search(cell) for cell in table[1].split("|")]
        for row in _LINE.finditer(low, *table.span(2)):
            at = row.start()
            for heading, cell in zip(headings, row[0].split("|"), strict=False):
                start = at + len(cell) - len(cell.lstrip(" \t`"))
                end = start + len(cell.strip(" \t`"))
                if heading and TESTS["meant"](text[start:end]):
                    yield SecretMatch(start, end, "PASSWORD", NAMED)
                at += len(cell) + 1


_CANDIDATE = re.compile(r"[A-Za-z0-9+/_~-]{20,}={0,2}")
_PIECE = re.compile("[^/]+")
_WORD = re.compile("[A-Z]?[a-z_-]+")
_PUBLIC_BEFORE = pattern(TABLE["public"]["before"], re.IGNORECASE)
_PUBLIC_PREFIX = pattern(TABLE["public"]["prefix"])
_PUBLIC_BLOCK = pattern(TABLE["public"]["block"], re.MULTILINE)
_EXTENSION = re.compile(r"\.[a-z][a-z0-9]{1,5}\b")
_BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def _random(subjects: _Subjects) -> Iterator[SecretMatch]:
    """Find random tokens of 20 to 200 characters, except public ones (digests, ids, certificates)
    and words in base64.
    """
    text, digits = subjects.text, subjects.of["digits"]
    blocks: list[tuple[int, int]] | None = None
    for match in _CANDIDATE.finditer(digits):
        for piece in (_CANDIDATE if _is_base64(match[0]) else _PIECE).finditer(
            digits, *match.span()
        ):
            if (
                not 20 <= len(piece[0]) <= 200
                or not is_random(piece[0])
                or " " in from_base64(match[0])
            ):
                continue
            if blocks is None:
                blocks = [block.span() for block in _PUBLIC_BLOCK.finditer(text)]
            for start, end in subjects.places("digits", *piece.span()):
                before = text[max(0, start - 240) : start].rstrip(_BASE64)[-40:]
                block = bisect_right(blocks, (start, len(text)))
                if not (
                    (block and start < blocks[block - 1][1])
                    or _EXTENSION.match(text, end)
                    or _PUBLIC_PREFIX.match(text, start)
                    or _PUBLIC_BEFORE.search(before)
                ):
                    yield SecretMatch(start, end, "SECRET", RANDOM)


def _is_base64(token: str) -> bool:
    """Whether slashes in it are base64 characters, not path separators: they are few, and no name
    stands between them.
    """
    if len(token) < 30 or token.count("/") > 2 + len(token) // 16 or not is_random(token[:4_000]):
        return False
    return not any(len(piece) > 2 and _WORD.fullmatch(piece) for piece in token.split("/"))


def _certain(subjects: _Subjects, known: KnownSecrets) -> Iterator[SecretMatch]:
    """Find everything except random tokens."""
    for place in known.find(subjects.text, subjects.long_words):
        yield SecretMatch(*place, "SECRET:known", KNOWN)
    for shape in _SHAPES:
        words = subjects.words[shape.subject]
        for anchor in shape.anchors:
            if anchor in words:
                yield from shape.find(subjects)
                break
    yield from _named(subjects.text, subjects.low)
    yield from _in_tables(subjects.text, subjects.low)


_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[nrtbf\"'\\/]|\r?\n[ \t]*)")
_PERCENT = re.compile("%[0-9a-fA-F]{2}(?:%[0-9a-fA-F]{2})*")
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "\n": "", "\r": ""}
_E = r"[A-Za-z0-9+/_=.:@!*%~$-]"
_INDENT = r"[ \t]{0,2}(?:[>+|#*-][ \t]{0,2})?"
# "ab" + "cd", also over two lines
_CONCAT = re.compile(
    r"[\"'`](?<=[^\s\"'`].)[ \t]{0,8}+(?:\+|\.\.?|&|\\)?+[ \t]{0,8}+(?:\r?\n["
    r" \t]{0,40}+)?+(?:\+|\.\.?|&|\|\|)?+[ \t]{0,8}+"
    r"[rbfu]{0,2}+[\"'`](?=[^\s\"'`])"
)
# A line break inside a token: at least 8 token characters on one side and one on the other. No date
# or address begins there.
_WRAP = re.compile(
    rf"\n(?:(?:(?<={_E}{{8}}\n)|(?<={_E}{{8}}\r\n)){_INDENT}(?={_E})|(?:(?<={_E}\n)|(?<={_E}\r\n)){_INDENT}(?={_E}{{8}}))"
    r"(?!\d{4}-\d\d-\d\d|\d\d:\d\d:|\[\d|https?://)"
)
_SETTING = re.compile(r"[A-Za-z_][\w.-]*=[^=\s]")
_FIELDS = re.compile("[;&?]")
_CUT = re.compile(r"\d|[a-z][A-Z]|[A-Z]{6}|://")
_CONTEXT_CHARS = 160


class _View:
    """A text made from another by replacing stretches of it. Each character knows its place in the
    original.
    """

    def __init__(
        self, text: str, starts: Sequence[int], ends: Sequence[int], joins: Sequence[int]
    ) -> None:
        self.text, self._starts, self._ends = text, starts, ends
        self._joins = joins
        """Positions where text of the original was removed."""

    def changed(self, stretches: Sequence[tuple[int, int, str]]) -> "_View":
        """The view with these stretches replaced. Text far from all of them is left out: it is
        searched in the original.
        """
        pieces: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        joins: list[int] = []
        at, size = 0, len(self.text)
        for start, end, instead in (*_with_gaps(self.text, stretches), (size, size, "")):
            pieces += (self.text[at:start], instead)
            starts += self._starts[at:start]
            ends += self._ends[at:start]
            if instead:
                starts += [self._starts[start]] * len(instead)
                ends += [self._ends[end - 1]] * len(instead)
            else:
                joins.append(len(starts))
            at = end
        return _View("".join(pieces), starts, ends, joins)

    def replaced(self, regex: re.Pattern[str], instead: Callable[[str], str]) -> "_View | None":
        stretches = [(*match.span(), instead(match[0])) for match in regex.finditer(self.text)]
        return self.changed(stretches) if stretches else None

    def originals(
        self, hits: Iterable[SecretMatch], seen: list[SecretMatch]
    ) -> Iterator[SecretMatch]:
        """Matches in the view as matches in the original. A secret that was seen whole is not
        extended by the word after a join.
        """
        for start, end, label, certainty in merge_matches(hits):
            for join in self._joins[
                bisect_right(self._joins, start) : bisect_left(self._joins, end)
            ]:
                at = bisect_right(seen, self._starts[start], key=lambda hit: hit.start) - 1
                if (
                    at >= 0
                    and self._ends[join - 1] <= seen[at].end
                    and not _is_rest(self.text[join : min(end, join + _SAMPLE)])
                ):
                    end = join
                    break
            yield SecretMatch(self._starts[start], self._ends[end - 1], label, certainty)


def _is_rest(text: str) -> bool:
    """Whether the text reads like the end of a token and not like the beginning of a word or
    line.
    """
    if any(map(str.isdigit, text)):
        return True
    return len(text) > 3 and (
        not (text.islower() or text.istitle() or text.isupper()) or wordiness(text) < 0.5
    )


def _with_gaps(
    text: str, stretches: Sequence[tuple[int, int, str]]
) -> Iterator[tuple[int, int, str]]:
    """The replacements, and a line break in place of long text between them, from white space to
    white space.
    """
    at = -_CONTEXT_CHARS
    for start, end, instead in (*stretches, (len(text) + _CONTEXT_CHARS, len(text), "")):
        if start - at > 3 * _CONTEXT_CHARS:
            low, high = at + _CONTEXT_CHARS, start - _CONTEXT_CHARS
            first, last = _SPACE.search(text, low, high), text.rfind(" ", low, high)
            if first is not None and last > first.start():
                yield first.start(), last, "\n"
        if end > start:
            yield start, end, instead
        at = end


def _view(text: str, *joins: int) -> _View:
    return _View(text, range(len(text)), range(1, len(text) + 1), joins)


def _unescape(escape: str) -> str:
    return chr(int(escape[2:], 16)) if escape[1] in "ux" else _CONTROLS.get(escape[1], escape[1])


_Encoding: TypeAlias = tuple[str, re.Pattern[str], Callable[[str], str]]
_ENCODINGS: list[_Encoding] = [("\\", _ESCAPE, _unescape)] * 3 + [("%", _PERCENT, unquote)] * 2


def _views(text: str) -> Iterator[_View]:
    """All views of a text that differ from it. Escapes are decoded up to three times, as JSON
    inside JSON needs.
    """
    original = view = _view(text)
    if may_contain_hidden(text) and (shown := view.replaced(HIDDEN, visible_form)):
        yield (view := shown)
    for sign, regex, decode in _ENCODINGS:
        if sign in view.text and (decoded := view.replaced(regex, decode)):
            yield (view := decoded)
    for under in dict.fromkeys((original, view)):
        if joined := under.replaced(_CONCAT, lambda _: ""):
            yield joined
        # A sign at the beginning of a line may mark a quotation, a list or a diff, or belong to the
        # token: both are tried.
        breaks = [
            match.span()
            for match in _WRAP.finditer(under.text)
            if _cuts_a_token(under.text, *match.span())
        ]
        if breaks:
            yield under.changed([(start, end, "") for start, end in breaks])
        if any(under.text[start:end].strip() for start, end in breaks):
            yield under.changed(
                [(start, end - len(under.text[start:end].lstrip()), "") for start, end in breaks]
            )


def _cuts_a_token(text: str, start: int, end: int) -> bool:
    before, after = (
        text[max(0, start - 80) : start].split()[-1],
        text[end : end + 80].split(None, 1)[0],
    )
    if (_SETTING.match(after) and not _FIELDS.search(before)) or before[0] == after[0] == "/":
        return False
    return (
        len(before) + len(after) >= 16 and (_CUT.search(before) or _CUT.search(after)) is not None
    )


def _scan(text: str, known: KnownSecrets) -> list[SecretMatch]:
    subjects = _Subjects(text, known)
    hits = [*_certain(subjects, known), *_random(subjects)]
    for regex, decode in ((BASE64, from_base64), (HEX, from_hex)):
        for match in regex.finditer(subjects.of["tokens"]):
            plain = decode(match[0]) if len(match[0]) <= _MAX_ENCODED else ""
            if plain and (inside := [*_certain(_Subjects(plain, known), known)]):
                surest = max(inside, key=lambda hit: hit.certainty)
                hits += (
                    surest._replace(start=start, end=end)
                    for start, end in subjects.places("tokens", *match.span())
                )
    for view in _views(text):
        hits = merge_matches(hits)
        hits += view.originals(_certain(_Subjects(view.text, known), known), hits)
    return merge_matches(hits)


_SPACE = re.compile(r"\s")
_MAX_ENCODED = 100_000
_WINDOW_CHARS = 128_000
_OVERLAP = 20_000


def find_secrets(text: str, known: KnownSecrets, deadline: float) -> list[SecretMatch]:
    """Every secret in the text, in order, without overlaps. What is not examined at the deadline is
    one match, `WITHHELD`.

    The deadline is processor time of this thread (`time.thread_time`), which does not depend on the
    load of the machine."""
    hits: list[SecretMatch] = []
    start = end = 0
    while end < len(text):
        if time.thread_time() >= deadline:
            hits.append(SecretMatch(start, len(text), "WITHHELD", KNOWN))
            break
        # Windows overlap and end at white space, unless a token is too long for that.
        end = start + _WINDOW_CHARS
        if end < len(text):
            cut = max(map(text.rfind, " \n\t", (start + _OVERLAP + 1,) * 3, (end,) * 3))
            end = cut if cut >= 0 else end
        hits += (
            hit._replace(start=hit.start + start, end=hit.end + start)
            for hit in _scan(text[start:end], known)
        )
        space = _SPACE.search(text, end - _OVERLAP, end)
        start = space.start() if space else end
    return merge_matches(hits)


def secrets_across(
    left: str, right: str, known: KnownSecrets, deadline: float
) -> list[SecretMatch]:
    """Secrets that cross the border of two texts, or are named before it and follow it. Positions
    are in `left + right`.
    """
    before, both = (find_secrets(text, known, deadline) for text in (left, left + right))
    return [*_view(left + right, len(left)).originals(both, before)]
