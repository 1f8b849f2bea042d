"""Routes for rules (list, add, change, remove), undo, restoring and pinning skills, and switching
enforcement.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, cast

from anyio.to_thread import run_sync

from metaclaw.api.home_routes import HomeRoutes
from metaclaw.api.router import ApiError, ApiRequest, RequestBody, route
from metaclaw.api.views import (
    followed_view,
    held_rules,
    picked,
    retired_rule_view,
    rule_notes,
    rule_record_view,
    rule_view,
    skill_view,
    undone_view,
)
from metaclaw.clock import utc_now
from metaclaw.domain.candidate import Candidate, Change, Proposal, Standing
from metaclaw.domain.chat import Json
from metaclaw.domain.compliance import measured_hash
from metaclaw.domain.front_matter import CHOICES
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Rule, Skill
from metaclaw.errors import SkillError
from metaclaw.learn import FOR_TEAM
from metaclaw.skills import (
    MAX_RULE_CHARS,
    MAX_WHEN_CHARS,
    RuleFields,
    can_hold,
    read_rules,
    render_section,
    rule_examples,
)
from metaclaw.store import SqlCompliance

Dates = Mapping[SkillName, tuple[datetime | None, datetime | None]]
_NULLABLE: Mapping[str, Json] = {"type": ["string", "null"]}
_MOST_AT_ONCE = 1000
_TEXT: Mapping[str, Json] = {
    "type": "string",
    "maxLength": MAX_RULE_CHARS,
    "description": "What is to be followed or remembered",
}
_CHANGES = RequestBody(
    {
        "text": _TEXT,
        "when": {
            **_NULLABLE,
            "maxLength": MAX_WHEN_CHARS,
            "description": "`always`, or the situation it applies to",
        },
        "scope": {
            **_NULLABLE,
            "description": "For whom: null for everyone, owner, user:ID, team:NAME",
        },
        "workspace": {**_NULLABLE, "description": "The project it is for; null for all"},
        "channel": {
            **_NULLABLE,
            "description": "The channel it is for, such as slack; null for all",
        },
        "examples": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Requests it is for",
        },
        "expires": {
            **_NULLABLE,
            "format": "date",
            "description": "The last day on which it is in force",
        },
        "check": _NULLABLE,
        **{name: {"enum": [*CHOICES[name], None]} for name in ("enforce", "on_error", "on_break")},
    }
)
_NEW = RequestBody(
    {
        "kind": {"enum": ["rule", "fact"]},
        **_CHANGES.fields,
        "name": {"type": "string", "description": "The name it is to have, if that is free"},
        "source": {**_NULLABLE, "description": "The turn in which it was said"},
        "rules": {
            "type": "array",
            "items": {"type": "object"},
            "description": "Several rules, put in force in one step",
        },
    }
)
_UNDO = RequestBody({"generation": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}})
_REWRITE = RequestBody(
    {
        "description": {**_NULLABLE, "description": "When to use it"},
        "body": {**_NULLABLE, "description": "What to do, as Markdown"},
        "text": {"type": "string", "description": "The whole SKILL.md, instead of both"},
    }
)
_FILE = RequestBody(
    {"text": {"type": "string", "description": "Markdown, or the JSON of an export"}}, ("text",)
)
_PIN = RequestBody({"pinned": {"type": "boolean"}})
_ENFORCE = RequestBody({"on": {"type": "boolean"}}, ("on",))


@contextmanager
def _refusing(status: int) -> Iterator[None]:
    """Report a SkillError with this status."""
    try:
        yield
    except SkillError as error:
        raise ApiError(str(error), status) from error


@dataclass(frozen=True, slots=True)
class RuleRoutes:
    """The routes for rules."""

    home: HomeRoutes

    @route(
        "GET",
        "/api/rules",
        "Rules and facts in force, or retired ones with state=retired",
        ("state",),
    )
    def _rules(self, request: ApiRequest) -> object:
        if request.choice("state", ("live", "retired")) == "retired":
            gone = self.home.rulebook.retired()
            return {
                "rules": [
                    retired_rule_view(retired) for retired in gone if not retired.skill.is_skill
                ]
            }
        dates = self.home.rulebook.dates()
        return {
            "rules": self._listed(self.home.rulebook.rules(), dates),
            "skipped": self.home.skipped(),
        }

    @route("GET", "/api/rule-examples", "The library of example rules")
    def _examples(self, request: ApiRequest) -> object:
        return {
            "examples": [
                picked(one, "name", "text", "when", "check") for one in rule_examples().values()
            ]
        }

    @route("POST", "/api/rule-file", "Read the rules in a file's text", body=_FILE)
    def _read(self, request: ApiRequest) -> object:
        with _refusing(400):
            found = read_rules(request.said["text"])
        left_out = [{"text": text, "reason": reason} for text, reason in found.left_out]
        return {"rules": list(found.rules), "left_out": left_out}

    @route(
        "GET",
        "/api/rule-section",
        "Rules in force, and as a section for AGENTS.md, with what a source proposed for it",
        ("workspace", "user", "source"),
    )
    def _section(self, request: ApiRequest) -> object:
        workspace, user = request.query.get("workspace"), request.query.get("user")
        chosen = [
            rule
            for rule in self.home.rulebook.rules()
            if (workspace is None or rule.is_for_workspace(workspace))
            and (user is None or rule.scope in (None, f"user:{user}"))
        ]
        return {
            "rules": [rule_view(rule, None) for rule in chosen],
            "section": render_section(chosen, self._proposed(workspace, request.query)),
        }

    def _proposed(self, workspace: str | None, query: Mapping[str, str]) -> list[Skill]:
        """What this source proposed for the project, and what waits for a person."""
        waiting = self.home.candidates.candidates(Standing.WAITING) if "source" in query else ()
        return [
            one.proposal.skill
            for one in waiting
            if one.proposal.written_by == query["source"]
            and one.proposal.skill.workspace == workspace
            and self.home.shows(one)
        ]

    def _listed(self, rules: Sequence[Rule], dates: Dates) -> list[dict[str, Any]]:
        followed = SqlCompliance(self.home.database).totals(
            {rule.name: measured_hash(rule) for rule in rules if self.home.rulebook.owns(rule)}
        )
        exceptions = self._exceptions()
        return [
            {
                **rule_view(rule, dates.get(rule.name)),
                "notes": rule_notes(rule, exceptions),
                # What is counted over all people is only for those whose rule it is.
                **followed_view(rule, followed.get(rule.name, {})),
            }
            for rule in rules
        ]

    @route("GET", "/api/rules/{name}", "One rule or fact")
    def _rule(self, request: ApiRequest) -> object:
        rule = self._known(request)
        counted = measured_hash(rule) if self.home.rulebook.owns(rule) else ""
        record = SqlCompliance(self.home.database).of_rule(rule.name, counted)
        dates = self.home.rulebook.dates()
        return {
            **rule_view(rule, dates.get(rule.name)),
            "notes": rule_notes(rule, self._exceptions()),
            **rule_record_view(rule, record),
        }

    def _exceptions(self) -> list[Rule]:
        return [rule for rule in self.home.rulebook.rules() if rule.overrides]

    @route("POST", "/api/rules", "Put a rule or fact in force", body=_NEW)
    def _add(self, request: ApiRequest) -> object:
        several = request.said.get("rules")
        if several is None:
            one = _fields(request.said)
            self._check_source(one)
            if self.home.asks_team(one.get("scope")):
                return self._propose(one)
            with _refusing(400):
                ((rule, added),) = self.home.rulebook.add([one])
            if added and rule.source is not None:
                self.home.noted(rule, rule.source)
            return {**self._shown(rule), "added": added}
        if len(request.said) > 1 or not 0 < len(several) <= _MOST_AT_ONCE:
            raise ApiError(
                f"rules must be a list of 1 to {_MOST_AT_ONCE} rules, with nothing beside it"
            )
        listed = [_fields(_NEW.check(fields)) for fields in several]
        for one in listed:
            self._check_source(one)
        with _refusing(400):
            found = self.home.rulebook.add(listed)
        dates = self.home.rulebook.dates()
        return {
            "rules": [
                {**rule_view(rule, dates.get(rule.name)), "added": added} for rule, added in found
            ]
        }

    def _check_source(self, fields: RuleFields) -> None:
        """Raise ApiError if a rule is to name another person's turn."""
        if (source := fields.get("source")) and not self.home.person.is_owner:
            self.home.turn_id(source)

    def _propose(self, fields: RuleFields) -> dict[str, Any]:
        """Ask the owners for a rule that a member wants for their team."""
        home = self.home
        with _refusing(400):
            rule = home.rulebook.draft(fields)
        name = home.person.name
        proposal = Proposal(rule, Change.NEW, (), (), FOR_TEAM, name, said_by=name)
        asked = Candidate.new(
            proposal,
            Standing.WAITING,
            f"{name} proposes it for {rule.scope}",
            home.rulebook.library.view.generation,
            utc_now(),
        )
        home.candidates.save_candidate(asked)
        return {**rule_view(rule, None), "added": False, "candidate": asked.id}

    @route("PATCH", "/api/rules/{name}", "Change a rule or fact", body=_CHANGES)
    def _change(self, request: ApiRequest) -> object:
        fields = _fields(request.said)
        rule = self._known(request)
        if fields.get("enforce") == "hold":
            _refuse_to_hold_nothing(rule, fields)
        with _refusing(400):
            return self._shown(self.home.rulebook.change(rule.name, fields))

    @route("DELETE", "/api/rules/{name}", "Take a rule or fact out of force")
    def _remove(self, request: ApiRequest) -> object:
        rule = self.home.rulebook.remove(self._known(request).name)
        return {"removed": rule.name, "rule": rule_view(rule, None)}

    def _known(self, request: ApiRequest) -> Rule:
        with _refusing(404):
            return self.home.rulebook.rule(request.path["name"])

    @route("POST", "/api/undo", "Take back the last lesson, or the one of a generation", body=_UNDO)
    async def _undo(self, request: ApiRequest) -> object:
        undone = await run_sync(self.home.rulebook.undo, request.said.get("generation"))
        for skill in undone.removed:
            if skill.author is Authorship.EVOLVER:
                await (await self.home.owner()).admission.record_reason(
                    skill, "a person took it back"
                )
        return undone_view(undone)

    @route("POST", "/api/skills/{name}/restore", "Put a retired skill, rule or fact in force again")
    def _restore(self, request: ApiRequest) -> object:
        skill = self.home.rulebook.restore(request.path["name"])
        return {**skill_view(skill), "restored": True}

    @route(
        "PATCH",
        "/api/skills/{name}",
        "Change a skill's text; it is the person's from then on",
        body=_REWRITE,
    )
    def _rewrite(self, request: ApiRequest) -> object:
        trigger, body, text = map(request.said.get, _REWRITE.fields)
        if not (trigger or body or text):
            raise ApiError("write description or body, or both, as texts")
        changes = {"trigger": trigger, "body": body, "text": text}
        changed = self.home.rulebook.rewrite(request.path["name"], **changes)
        return {**skill_view(changed), "body": changed.body}

    @route("POST", "/api/skills/{name}/pin", "Pin a live skill, or unpin it", body=_PIN)
    def _pin(self, request: ApiRequest) -> object:
        name, pinned = request.path["name"], request.said.get("pinned", True)
        return skill_view(self.home.rulebook.pin(name, pinned=pinned))

    def _shown(self, rule: Rule) -> dict[str, Any]:
        (shown,) = self._listed([rule], self.home.rulebook.dates())
        return shown


def _refuse_to_hold_nothing(rule: Skill, fields: RuleFields) -> None:
    """Raise ApiError if the rule, with these changes, has no check of tool calls."""
    check = fields.get("check", rule.check)
    if not can_hold(replace(rule, check=check)):
        raise ApiError(
            f"{rule.name} cannot be held, and nothing was changed: only a rule with a check of tool"
            f" calls can hold them. Give it one: metaclaw rules edit {rule.name} --check"
            " 'not in calls of shell: …' --enforce hold"
        )


def _fields(said: Mapping[str, object]) -> RuleFields:
    """The fields of a rule, of which there must be one."""
    if not said:
        raise ApiError(f"there is nothing to change: write {' or '.join(_CHANGES.fields)}")
    return cast(RuleFields, said)


@dataclass(frozen=True, slots=True)
class EnforcementRoutes:
    """The routes that switch the holding of calls on and off, for all rules at once."""

    home: HomeRoutes

    @route("GET", "/api/enforce", "Whether held rules hold calls back")
    async def _show(self, request: ApiRequest) -> object:
        return {
            "on": self.home.is_holding(),
            "held_rules": held_rules(self.home.rulebook.skills()),
        }

    @route(
        "POST",
        "/api/enforce",
        "Hold calls that break held rules, or stop holding them",
        body=_ENFORCE,
    )
    async def _switch(self, request: ApiRequest) -> object:
        await self.home.switch_holding(request.said["on"])
        return {"on": self.home.is_holding()}
