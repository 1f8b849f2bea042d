"""The gate: the review that a proposal must pass before it is in force.

What passes goes live at once; it is counted, and withdrawn if it does not help. A proposal that
repeats or contradicts a skill of its scope is rejected, and one that contradicts a rule of a wider
scope waits for a person. With `gate = "off"` the text of a draft is not judged; the checks that are
passed in (secrets, provenance, capabilities) are for safety, so they run in every mode. Each may
object, or ask to wait for a person."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from typing import TypeAlias

from metaclaw.domain.candidate import Change, Objection, Proposal, Standing
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Lesson, Rule, Skill
from metaclaw.skills.block import estimate_tokens
from metaclaw.skills.gate.clashes import Clash, ClashKind, IndexLibrary, find_clashes
from metaclaw.text import VERY_COMMON_WORDS, list_terms, stem

MOST_TOKENS = 1_000
MOST_CHANGED_LINES = 8
LEAST_TRIGGER_WORDS, MOST_TRIGGER_WORDS = 5, 60
_LEAST_TELLING_TERMS, _LEAST_TERMS = 2, 4
_LEAST_STEPS = 2
_LEAST_LETTERS = 0.4

_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]")
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_ORDINARY = frozenset(map(stem, VERY_COMMON_WORDS))
_EVERYTHING = re.compile(
    r"\b(?:any|every|all|each)\s+(?:(?:kind|type) of )?"
    r"(?:tasks?|requests?|situations?|questions?|messages?|times?|cases?|problems?)\b"
    r"|\bwhen(?:ever)? (?:needed|necessary|appropriate|useful|relevant|possible|in doubt)\b|\bas"
    r" needed\b|\bin general\b|\balways$",
    re.IGNORECASE,
)
_STEP = re.compile(r"^\s*(?:\d{1,2}[.)]|[-*+•]|step \d+:?)\s+\S", re.MULTILINE | re.IGNORECASE)
_DO_NOT = re.compile(
    r"\b(?:do not|don['’]t|never|avoid|instead of|rather than|must not|should not|shouldn['’]t|not"
    r" to|anti-?pattern|refrain|without"
    r"|nicht|nie|niemals|kein\w*|vermeid\w*|statt|jamais|évite\w*|ne .{1,30} pas|nunca|evit\w*|no"
    r" (?:uses|hagas)|não)\b"
    r"|不要|避免|禁止|切勿|不得|别再|ないこと|しない|避ける|하지\s?마",
    re.IGNORECASE,
)
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_NARRATION = re.compile(
    r"\b(?:I|we)(?:['’](?:ve|d))? (?:have |had |then |just |also |first )?(?:tried|ran|run"
    r" into|found|noticed|saw|was|were|got|used"
    r"|made|did|went|decided|learned|learnt|fixed|failed|forgot|should have|could"
    r" not|couldn['’]t)\b"
    r"|\bthis (?:session|conversation|chat|time around)\b|\b(?:last|previous)"
    r" (?:session|conversation|attempt|turn)\b"
    r"|\bthe user (?:said|asked|told|wanted|complained|corrected|replied|was"
    r" (?:angry|unhappy|annoyed))\b"
    r"|\bas (?:discussed|mentioned) (?:above|earlier|before)\b|\bmy"
    r" (?:mistake|error|previous|last|earlier|answer)\b"
    r"|\byesterday\b|\bearlier today\b",
    re.IGNORECASE,
)
_EXAMPLE = re.compile(
    r"(?:e\.g\.?|such as|for example|for instance|like|example|format|as in)\W{0,4}$", re.IGNORECASE
)
_LEFTOVERS = (
    (
        "an identifier",
        re.compile(
            r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE
        ),
    ),
    (
        "an identifier",
        re.compile(
            r"\b[ts]_[0-9a-f]{24,}\b|\b(?:call|toolu|req|msg|resp|chatcmpl|run|sess)[_-](?=\w*\d)[A-Za-z0-9]{8,}\b"
        ),
    ),
    (
        "a content hash",
        re.compile(r"(?<![\w-])(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{12,64}(?![\w-])"),
    ),
    ("a point in time", re.compile(r"\b(?:19|20)\d\d-\d\d-\d\d[T ]\d\d:\d\d")),
    ("a point in time", re.compile(r"\b1[5-9]\d{8}(?:\d{3})?\b")),
    (
        "a user's folder",
        re.compile(
            r"(?<![\w.])/(?:home|Users)/[\w.-]+|(?<![\w.])/root/\w+|\b[A-Za-z]:\\Users\\[\w.-]+|(?<![\w.])/tmp/[\w.-]{6,}"
        ),
    ),
)
_WITHHELD = re.compile(
    r"<[A-Z][A-Z0-9_]*:[^<>\s]{1,60}>|<[A-Z_]*(?:KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|REDACTED)[A-Z_]*>|\[REDACTED[^\]\n]{0,40}\]"
    r"|\b(?:sk|pk|ghp|xox[bp])[-_][xX*.]{3,}|\b(?:YOUR|MY)[_-](?:API[_-]?KEY|TOKEN|SECRET|PASSWORD)\b|\*{6,}"
)
_HIDDEN = frozenset(("Cc", "Cf", "Co", "Cs", "Cn"))
_ALLOWED = frozenset("\n\t\r\u200c\u200d\ufe0f")  # joiners that scripts and emoji need


def lint(skill: Skill, before: Skill | None = None) -> tuple[str, ...]:
    """Objections to the text of a skill that the evolver wrote, or to a revision of `before`. It
    must say when it applies, what to do and what not to do, in few words and without ids and paths
    of its session."""
    text = f"{skill.trigger}\n{skill.body}"
    objections = []
    if (tokens := estimate_tokens(text)) > MOST_TOKENS:
        objections.append(
            f"it takes about {tokens} tokens; at most {MOST_TOKENS} are worth placing"
        )
    if hidden := next(
        (char for char in text if char not in _ALLOWED and unicodedata.category(char) in _HIDDEN),
        None,
    ):
        objections.append(f"it holds an invisible character (U+{ord(hidden):04X})")
    if found := _WITHHELD.search(text):
        objections.append(f"it holds a place where a secret stood: {_quote(found)}")
    if not isinstance(skill, Lesson):
        objections += [*_trigger(skill.trigger), *_body(skill.body)]
    elif (
        not skill.signatures and len(set(list_terms(skill.body)) - _ORDINARY) < _LEAST_TELLING_TERMS
    ):
        objections.append("it says nothing in particular")
    if found := _NARRATION.search(_CODE.sub(" ", text)):
        objections.append(f"it tells what happened instead of what to do: {_quote(found)}")
    objections += _leftovers(text)
    if before is not None:
        changed = changed_lines(before.body, skill.body) + (before.trigger != skill.trigger)
        if changed > MOST_CHANGED_LINES:
            objections.append(
                f"it changes {changed} lines at once; a revision changes at most"
                f" {MOST_CHANGED_LINES}"
            )
    return tuple(objections)


def count_words(text: str) -> int:
    """The number of words; in a script without spaces, two characters count as a word."""
    return len(_WORD.findall(_CJK.sub(" ", text))) + (len(_CJK.findall(text)) + 1) // 2


def changed_lines(before: str, after: str) -> int:
    """The number of lines that a revision adds, drops or changes; a changed line counts once."""
    old, new = (
        [line.rstrip() for line in text.splitlines() if line.strip()] for text in (before, after)
    )
    return sum(
        max(b - a, d - c)
        for tag, a, b, c, d in SequenceMatcher(None, old, new, False).get_opcodes()
        if tag != "equal"
    )


def _trigger(trigger: str) -> list[str]:
    objections = []
    words = count_words(trigger)
    if not LEAST_TRIGGER_WORDS <= words <= MOST_TRIGGER_WORDS:
        objections.append(
            f"its trigger has {words} words; {LEAST_TRIGGER_WORDS} to {MOST_TRIGGER_WORDS} say when"
            " it applies"
        )
    everything = _EVERYTHING.search(trigger)
    terms = set(list_terms(trigger))
    telling = len(terms - _ORDINARY)
    is_telling = telling >= _LEAST_TELLING_TERMS or (telling and len(terms) >= _LEAST_TERMS)
    if everything or not is_telling:
        what = f" ({everything[0].strip()!r})" if everything else ""
        objections.append(
            f"its trigger is vague{what}: it does not tell one situation from another"
        )
    return objections


def _body(body: str) -> list[str]:
    objections = []
    if len(_STEP.findall(body)) < _LEAST_STEPS:
        objections.append("its body has no steps: at least two list items say what to do")
    if not _DO_NOT.search(body):
        objections.append("its body does not say what not to do")
    prose = "".join(_CODE.sub("", body).split())
    if sum(map(str.isalpha, prose)) < _LEAST_LETTERS * max(1, len(prose)):
        objections.append("its body is not prose: most of it is neither words nor marked as code")
    return objections


def _leftovers(text: str) -> list[str]:
    """Objections to ids, times and paths of one session, at most one per kind; those in examples
    are allowed.
    """
    objections: dict[str, str] = {}
    for what, pattern in _LEFTOVERS:
        for found in pattern.finditer(text):
            if not _EXAMPLE.search(text[: found.start()]):
                objections.setdefault(what, f"it holds {what} of one session: {_quote(found)}")
    return list(objections.values())


def _quote(match: re.Match[str]) -> str:
    return repr(match[0] if len(match[0]) <= 40 else match[0][:37] + "…")


class GateMode(StrEnum):
    """How strict the gate is about the text of a draft."""

    OFF = "off"
    LINT = "lint"


DraftCheck: TypeAlias = Callable[[Proposal], Sequence[Objection]]
"""A safety check: for secrets, for the source of instructions, for what a skill could reach."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """The gate's decision. `overrides` are skills of a wider scope that it contradicts, which are
    not placed together with it.
    """

    standing: Standing
    reason: str
    overrides: tuple[SkillName, ...] = ()


@dataclass(frozen=True, eq=False)
class Gate:
    mode: GateMode
    checks: Sequence[DraftCheck] = ()

    def review(self, proposal: Proposal, library: IndexLibrary) -> GateResult:
        """The decision about a proposal. Blocks: the checks read turns and the whole library."""
        is_off = self.mode is GateMode.OFF
        clashes = () if is_off else find_clashes(proposal.skill, library, proposal.replaces)
        objections = self._objections(proposal, library, clashes)
        objections.sort(key=lambda objection: objection.waits)
        reason = "; ".join(objection.reason for objection in objections)
        if any(not objection.waits for objection in objections):
            return GateResult(Standing.REJECTED, reason)
        if objections:
            return GateResult(Standing.WAITING, reason)
        overrides = tuple(clash.other.name for clash in clashes if clash.kind is ClashKind.OVERRIDE)
        return GateResult(Standing.ACCEPTED, "the draft has no faults", overrides)

    def _objections(
        self, proposal: Proposal, library: IndexLibrary, clashes: Sequence[Clash]
    ) -> list[Objection]:
        objections = [objection for check in self.checks for objection in check(proposal)]
        objections += _stated_objections(proposal, library)
        if self.mode is not GateMode.OFF:
            before = library.get(proposal.replaces[0]) if proposal.change is Change.EDIT else None
            objections += [Objection(reason) for reason in lint(proposal.skill, before)]
            objections += _clash_objections(clashes)
        return objections


def _stated_objections(proposal: Proposal, library: IndexLibrary) -> list[Objection]:
    """Objections to a model's proposal that changes or adds a person's rules or facts."""
    skill = proposal.skill
    known = (library.get(name) for name in (skill.name, *proposal.replaces))
    stated = dict.fromkeys(rule.name for rule in known if isinstance(rule, Rule))
    objections = [
        Objection(f"{name} is what a person stated: only they may change it") for name in stated
    ]
    if isinstance(skill, Rule):
        objections.append(
            Objection(f"a model wrote it as a {skill.kind}: only what a person says is one")
        )
    return objections


def _clash_objections(clashes: Sequence[Clash]) -> list[Objection]:
    """Objections to what a proposal repeats or contradicts in its own scope. Only a person decides
    whether it may override their rule for a wider one.
    """
    return [
        Objection(clash.reason, waits=clash.kind is ClashKind.OVERRIDE)
        for clash in clashes
        if clash.kind is not ClashKind.OVERRIDE or not clash.other.is_skill
    ]
