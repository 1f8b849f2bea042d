"""A rule whose violations are held, as a check of tool calls; and the built-in one.

While any rule is held, a built-in rule is held as well: an agent must not lift, change or stop the
rules. It holds HTTP requests only if they go to this program, which is recognised by its port, its
key in the path, or a variable that points agents at it: other servers may have a path `/api/rules`
too."""

import logging
from functools import lru_cache
from typing import NamedTuple

from metaclaw.domain.check import Check, PatternCheck, Place, ProgramCheck, Where
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import ALWAYS, Authorship, Skill
from metaclaw.domain.status import KEEP_RULES
from metaclaw.errors import SkillError
from metaclaw.skills import Screen, can_hold, check_of, screen_of

log = logging.getLogger(__name__)


class HeldRule(NamedTuple):
    """A rule whose violations are held. `holds_on_error`: calls are held, too, if its check cannot
    be run. `warns`: calls that still break the rule after all retries are let through with a
    warning."""

    name: SkillName
    text: str
    check: Check
    is_always: bool
    holds_on_error: bool
    warns: bool
    screen: Screen | None = None
    """A quick search that rules out most calls; None if the check must always be run."""


def held_rule(skill: Skill) -> HeldRule | None:
    """The skill as a held rule, if it is a person's, has `enforce: hold` and a confirmed check of
    tool calls; else None.
    """
    if skill.enforce != "hold" or skill.author is Authorship.EVOLVER or skill.is_check_proposed:
        return None
    if not can_hold(skill):
        return None
    try:
        check = check_of(skill)
    except SkillError as error:
        log.warning("rule_cannot_hold rule=%s reason=%s", skill.name, error)
        return None
    if check is None or (
        not isinstance(check, ProgramCheck) and check.where.place is not Place.CALLS
    ):
        return None
    is_always = skill.applies_always or (not skill.is_skill and skill.when == ALWAYS)
    screen = (
        screen_of(check.pattern)
        if isinstance(check, PatternCheck) and not check.must_match
        else None
    )
    return HeldRule(
        skill.name,
        skill.body,
        check,
        is_always,
        skill.error_handling == "hold",
        skill.on_break == "call",
        screen,
    )


_COMMANDS = (
    r"(?:metaclaw|python[\d.]* -m ?metaclaw[\w.]*) (?!.* --help$)(?:-\S+ )*(?:(?:enforce (?:-\S+"
    r" )*off|undo|stop|rollback"
    r"|service (?:-\S+ )*remove"
    r"|rules (?:-\S+ )*(?:remove|edit|import)|skills (?:-\S+"
    r" )*(?:remove|retire|revert|rollback|edit|import)"
    r"|sessions (?:-\S+ )*forget|candidates (?:-\S+ )*approve|store (?:-\S+ )*(?:restore|repair)|agents (?:-\S+"
    r" )*disconnect)(?=\s|$)"
    r"|config (?:-\S+ )*set (?:-\S+ )*(?:proxy\.enforce|skills\.)|[^|;&]*--set[ =]proxy\.enforce)"
    r"|(?:export )?METACLAW__PROXY__ENFORCE"
)
_PROCESSES = (
    r"(?:pkill|killall|kill|taskkill|stop-process) [^|;&]*metaclaw"
    r"|(?:systemctl|launchctl|service|docker|podman|supervisorctl|pm2|tmux|screen) (?:.*? )?"
    r"(?:stop|kill-session|quit|disable|kill|mask|rm|remove"
    r"|unload|bootout|delete) "
    r"(?:.*? )?\S*metaclaw|(?:fuser -k\S* (?:.*? )?{port}/tcp|kill .*:{port}\b|kill-port (?:.*?"
    r" )?{port}\b)"
)
_FILES = (
    r"(?:rm|mv|truncate|unlink|shred|chmod|ln|unzip|yq -i|sed -i|perl -pi|tar (?:.*? )?-C)"
    r" (?:.*? )?"
    r"\S*(?:\.metaclaw|METACLAW_HOME)(?:\W|$)|find (?:.*? )?\S*\.metaclaw.* -(?:exec|delete)"
    r"|[^\n]*\.metaclaw/(?:config\.toml|skills/[^\n]*)\n"
)
_REQUESTS = (
    r"(?:request (?:POST|PUT|PATCH|DELETE) |(?i:curl|wget|https?|xh|irm|iwr|invoke-\w+)"
    r"(?=.*(?:(?i: -X ?| --request[ =]| --method[ =]| -Method )[\"']?(?i:POST|PUT|PATCH|DELETE)|"
    r" -d| --data| --json"
    r"| -F | --form| --post-data"
    r"| --body-data|POST |PUT |PATCH |DELETE | \S+:?=\S)) )(?:.*[\s\"'=/@])?"
    r"(?:[^\s\"'/]*:{port}|[^\s/]*(?:ANTHROPIC|OPENAI|METACLAW)_?\w*[^\s/]*|[^\s\"']*/k/[^/\s]+)(?:/[^\s/]+)*?"
    r"/api/(?:enforce|rules|undo|generations/revert|skills/[^/\s]+/(?:retire|restore)|skills/[^/\s?]+(?=[\s\"'?]|$)"
    r"|(?:sessions/[^/\s]+/forget|candidates/[^/\s]+/approve))\b"
)
_PIPED_INTO_KILL = (
    r"\b(?:pgrep|pidof|ps|lsof|ss|netstat|cat|jq)\b[^;&\n]*(?:\[?m\]?etaclaw|\b{port}\b)[^;&\n]*"
    r"\| *(?:xargs )?(?:\S+ )*kill(?=\s|$|;|\n)"
)


@lru_cache(16)
def keep_rules(port: int, *, holds_on_error: bool = False) -> HeldRule:
    """The built-in rule that protects the rules of a program that listens on this port."""
    pattern = f"(?s)^(?:{'|'.join((_COMMANDS, _PROCESSES, _FILES, _REQUESTS))})|{_PIPED_INTO_KILL}".replace(
        "{port}", str(port)
    )
    text = "An agent does not lift, change or remove the rules of the person it works for."
    check = PatternCheck(pattern, must_match=False, where=Where(Place.CALLS, "shell|edit"))
    return HeldRule(
        SkillName(KEEP_RULES), text, check, True, holds_on_error, False, screen_of(pattern)
    )
