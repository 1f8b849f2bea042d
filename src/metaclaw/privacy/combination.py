"""What skills come to when they stand in one prompt: pieces that are harmless alone and dangerous together."""

import re
from collections.abc import Iterable, Sequence
from itertools import permutations

from metaclaw.domain.skill import Skill
from metaclaw.privacy.capabilities import Capabilities, capabilities, skill_capabilities, skill_text
from metaclaw.privacy.sentences import open_text

_CODE = re.compile(r"```[^\n]*\n(.*?)```|`([^`\n]{1,300})`", re.DOTALL)
_QUOTED = re.compile(r"\"([^\"\n]{1,200})\"|'([^'\n]{1,200})'")
_ASSIGNED = re.compile(
    r"(?:\b(?:set|define|let|store|remember|call|export|keep)\b[^\n=]{0,30}?)?[`\"']?\b([A-Za-z_]\w{0,30})\b[`\"']?\s*(?:=|:="
    r"|\bas\b|\bto\b|\bis\b|:)\s*[`\"']([^`\"'\n]{1,200})[`\"']"
)
_REFERENCE = re.compile(r"\$\{?([A-Za-z_]\w{0,30})\}?|\{([A-Za-z_]\w{0,30})\}|<([A-Za-z_]\w{0,30})>|%([A-Za-z_]\w{0,30})%")
_READS = re.compile(r"\b(?:read|cat|print|dump|list|collect|gather|copy|note|open|load|include|record|save|keep)\b", re.IGNORECASE)
_SENDS = re.compile(
    r"\b(?:send|post|upload|push|submit|mail|email|forward|transmit|share|publish|report|sync|curl|POST|attach|append)\b",
    re.IGNORECASE,
)
_FETCHES = re.compile(r"\b(?:download|fetch|curl|wget|retrieve|clone|pull|save the (?:response|page|output|file))\b", re.IGNORECASE)
_RUNS = re.compile(r"\b(?:run|execute|source|eval|invoke|launch|start|bash|sh|python3?)\b", re.IGNORECASE)
_MAX_SKILLS = 8
_MAX_PIECES = 12


def emergent(skills: Sequence[Skill]) -> Capabilities:
    """What the skills reach for together and none of them alone. A set with any of it is not placed without a person's word."""
    chosen = skills[:_MAX_SKILLS]
    texts = [open_text(skill_text(skill)) for skill in chosen]
    alone = Capabilities()
    for text in texts:
        alone |= skill_capabilities(text)
    together = Capabilities()
    for text in _assembled(texts):
        together |= capabilities(text)
    return Capabilities(
        together.hosts - alone.hosts,
        together.paths - alone.paths,
        together.credentials - alone.credentials,
        (together.pipes - alone.pipes) | frozenset(_flows(texts)),
        together.commands - alone.commands,
    )


def _assembled(texts: Sequence[str]) -> Iterable[str]:
    """The texts as an agent could put them together: names filled in, and pieces of code behind one another."""
    whole = "\n".join(texts)
    values = {found[1]: found[2] for found in _ASSIGNED.finditer(whole)}
    if values:
        filled = whole
        for _ in range(3):
            filled = _REFERENCE.sub(lambda found: values.get(next(name for name in found.groups() if name), found[0]), filled)
        yield filled
        yield re.sub(r"[\"'`]?\s*\+\s*[\"'`]?", "", filled)
    pieces = [_pieces(text) for text in texts]
    for one, other in permutations(range(len(texts)), 2):
        for left in pieces[one]:
            for right in pieces[other]:
                yield f"{left} {right}"
                yield f"{left}{right}"


def _pieces(text: str) -> list[str]:
    """A skill's bits of code, which another skill's bits may complete."""
    code = [(found[1] or found[2]).strip() for found in _CODE.finditer(text)]
    quoted = [found[1] or found[2] for found in _QUOTED.finditer(text)]
    return list(dict.fromkeys(piece for piece in (*code, *quoted) if piece))[:_MAX_PIECES]


def _flows(texts: Sequence[str]) -> Iterable[str]:
    """Ways through two skills: one takes up a secret and another sends something off, one fetches and another runs."""
    found = [skill_capabilities(text) for text in texts]
    temporary = [_temporary(text) for text in texts]
    for one, other in permutations(range(len(texts)), 2):
        taken, sent = found[one], found[other]
        if (
            taken.credentials
            and not taken.hosts
            and _READS.search(texts[one])
            and sent.hosts
            and _SENDS.search(texts[other])
            and not sent.credentials
        ):
            yield f"secrets from one skill to {', '.join(sorted(sent.hosts))} of another"
        shared = (taken.paths & sent.paths) | (temporary[one] & temporary[other])
        if shared and taken.hosts and _FETCHES.search(texts[one]) and _RUNS.search(texts[other]) and not sent.hosts:
            yield f"what one skill fetches into {', '.join(sorted(shared))} another runs"


def _temporary(text: str) -> frozenset[str]:
    return frozenset(found[0] for found in re.finditer(r"[\w./-]{0,60}\.(?:sh|py|js|bin|exe|ps1|tmp|bat)\b", text))
