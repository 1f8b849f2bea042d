"""The actions of the pages. Each is a form; destructive actions ask first and offer an undo."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

from anyio.to_thread import run_sync

from metaclaw.api.home_routes import HomeRoutes
from metaclaw.api.router import ApiError
from metaclaw.api.web.content import Call
from metaclaw.domain.candidate import CandidateId
from metaclaw.domain.chat import Json
from metaclaw.errors import SkillError

Form = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Offer:
    """A button that undoes the last action."""

    label: str
    action: str
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ActionResult:
    """A sentence about what was done, and how to undo it."""

    message: str
    undo: Offer | None = None
    is_shown_once: bool = False
    """Whether it has a secret."""


@dataclass(frozen=True, slots=True)
class Action:
    """One kind of form. `question` is asked first; `{name}` and other fields of the form are filled
    in.
    """

    do: Callable[["PageActions", Form], Awaitable[ActionResult]]
    question: str = ""
    button: str = ""


ACTIONS: Final[dict[str, Action]] = {}
"""The actions by the names that forms have for them."""
Do = TypeVar("Do", bound=Callable[["PageActions", Form], Awaitable[ActionResult]])


def action(name: str, question: str = "", button: str = "") -> Callable[[Do], Do]:
    """Mark a method of PageActions that carries out a form."""

    def mark(do: Do) -> Do:
        ACTIONS[name] = Action(do, question, button)
        return do

    return mark


class PageActions:
    """Carries out forms through the API. Raises ApiError if something cannot be done."""

    def __init__(self, call: Call, home: HomeRoutes) -> None:
        self._call = call
        self._home = home

    @action("rule-add")
    async def _add_rule(self, form: Form) -> ActionResult:
        said: dict[str, Json] = {"text": form.get("text", ""), "kind": form.get("kind") or "rule"}
        for field in ("when", "workspace", "channel", "scope", "expires"):
            if text := form.get(field, "").strip():
                said[field] = text
        added = await self._call("POST", "/api/rules", said)
        if not added["added"]:
            return ActionResult(f"That is in force already: {added['text']}")
        return ActionResult(
            f"Noted: {added['text']}", Offer("Undo", "rule-remove", {"name": added["name"]})
        )

    @action("rule-edit")
    async def _edit_rule(self, form: Form) -> ActionResult:
        said: dict[str, Json] = {"text": form.get("text", "")}
        said |= {
            field: form[field].strip() or None
            for field in ("when", "workspace", "channel", "scope", "expires", "check")
            if field in form
        }
        if form.get("enforce"):
            said["enforce"] = form["enforce"]
        return await self._change(form, "rules", said, "Changed: {text}")

    @action(
        "rule-remove",
        "Take this out of force? Agents no longer see it. You can restore it.",
        "Remove",
    )
    async def _remove_rule(self, form: Form) -> ActionResult:
        removed = await self._call("DELETE", f"/api/rules/{_part(form)}")
        return ActionResult(
            f"No longer in force: {removed['rule']['text']}",
            Offer("Restore", "restore", {"name": removed["removed"]}),
        )

    @action("rule-project")
    async def _move_rule(self, form: Form) -> ActionResult:
        workspace = form.get("workspace", "").strip() or None
        where = "applies only in {workspace}" if workspace else "applies in every project"
        return await self._change(form, "rules", {"workspace": workspace}, f"{{name}} {where} now.")

    @action("rule-lasting")
    async def _keep_rule(self, form: Form) -> ActionResult:
        message = "{name} stays in force without an end."
        return await self._change(form, "rules", {"expires": None}, message)

    @action("rule-enforce")
    async def _enforce_rule(self, form: Form) -> ActionResult:
        enforce = form.get("enforce", "")
        effects = {
            "hold": "Calls that break it are held back",
            "remind": "Agents are reminded of it",
            "off": "It is only counted",
        }
        if enforce not in effects:
            raise ApiError(f"enforce must be one of {', '.join(effects)}", 400)
        message = f"{effects[enforce]}: {{name}}."
        return await self._change(form, "rules", {"enforce": enforce}, message)

    @action("enforcement")
    async def _switch_enforcement(self, form: Form) -> ActionResult:
        is_on = form.get("on") == "yes"
        await self._call("POST", "/api/enforce", {"on": is_on})
        message = (
            "Held rules hold calls back again."
            if is_on
            else "No call is held back any more, by any rule."
        )
        return ActionResult(message, Offer("Undo", "enforcement", {"on": "no" if is_on else "yes"}))

    @action("restore")
    async def _restore(self, form: Form) -> ActionResult:
        name = _part(form)
        found = await self._call("POST", f"/api/skills/{name}/restore")
        back = "skill-retire" if found["kind"] == "skill" else "rule-remove"
        return ActionResult(f"{name} is in force again.", Offer("Undo", back, {"name": name}))

    @action("skill-edit")
    async def _edit_skill(self, form: Form) -> ActionResult:
        said: dict[str, Json] = {
            "description": form.get("description", ""),
            "body": form.get("body", "").replace("\r\n", "\n"),
        }
        message = "Changed {name}; it is yours now, and the program does not change it by itself."
        return await self._change(form, "skills", said, message)

    @action("skill-pin")
    async def _pin_skill(self, form: Form) -> ActionResult:
        name, pinned = _part(form), form.get("pinned") == "yes"
        await self._call("POST", f"/api/skills/{name}/pin", {"pinned": pinned})
        back = Offer("Undo", "skill-pin", {"name": name, "pinned": "no" if pinned else "yes"})
        return ActionResult(
            f"{name} is {'pinned: the program leaves it alone' if pinned else 'no longer pinned'}.",
            back,
        )

    @action(
        "skill-retire", "Retire this skill? Agents no longer see it. You can restore it.", "Retire"
    )
    async def _retire_skill(self, form: Form) -> ActionResult:
        name = _part(form)
        await self._call("POST", f"/api/skills/{name}/retire")
        return ActionResult(f"{name} is retired.", Offer("Restore", "restore", {"name": name}))

    @action(
        "undo", "Take this lesson back? Everything it changed becomes what it was before.", "Undo"
    )
    async def _undo(self, form: Form) -> ActionResult:
        said = {"generation": _number(form, "generation")} if form.get("generation") else {}
        undone = await self._call("POST", "/api/undo", said)
        names = (", ".join(one["name"] for one in undone[key]) for key in ("removed", "restored"))
        told = zip(("Taken back", "As before"), names, strict=True)
        done = " ".join(f"{what}: {which}." for what, which in told if which)
        return ActionResult(done, _of_generation("Bring it back", undone, "undo"))

    @action(
        "revert",
        "Go back to the rules and skills of generation {generation}? You can return to the present"
        " ones.",
        "Go back",
    )
    async def _revert(self, form: Form) -> ActionResult:
        number = _number(form, "generation")
        now = await self._call("GET", "/api/generations", limit="1")
        await self._call("POST", "/api/generations/revert", {"generation": number})
        message = f"The rules and skills of generation {number} are in force again."
        return ActionResult(message, _of_generation("Return to where you were", now, "revert"))

    @action("candidate-approve")
    async def _approve(self, form: Form) -> ActionResult:
        decided = await self._call("POST", f"/api/candidates/{_part(form, 'id')}/approve")
        name = decided["skill"]
        return ActionResult(
            f"{name} is in force.", Offer("Retire it again", "skill-retire", {"name": name})
        )

    @action("candidate-reject")
    async def _reject(self, form: Form) -> ActionResult:
        decided = await self._call("POST", f"/api/candidates/{_part(form, 'id')}/reject")
        return ActionResult(
            f"{decided['skill']} is rejected.",
            Offer("Accept it after all", "candidate-adopt", {"id": decided["id"]}),
        )

    @action("candidate-adopt")
    async def _adopt(self, form: Form) -> ActionResult:
        found = await run_sync(self._home.candidates.candidate, CandidateId(form.get("id", "")))
        if found is None or not self._home.shows(found):
            raise ApiError("there is no such candidate", 404)
        try:
            skill = await run_sync(self._home.rulebook.adopt, found.proposal.skill)
        except SkillError as error:
            raise ApiError(str(error), 409) from error
        await run_sync(self._home.keys.note, self._home.person.name, "adopt", skill.name)
        return ActionResult(
            f"{skill.name} is in force, as yours.",
            Offer("Retire it again", "skill-retire", {"name": skill.name}),
        )

    @action("feedback")
    async def _feedback(self, form: Form) -> ActionResult:
        turn, outcome = form.get("turn", ""), form.get("outcome", "")
        comment = form.get("comment", "").strip()
        await self._call(
            "POST", "/api/feedback", {"turn": turn, "outcome": outcome, "comment": comment}
        )
        other = "fail" if outcome == "pass" else "pass"
        words = {"pass": "good", "fail": "bad"}
        back = Offer(f"No, it was {words[other]}", "feedback", {"turn": turn, "outcome": other})
        return ActionResult(f"Noted: this answer was {words[outcome]}.", back)

    @action("train")
    async def _train(self, form: Form) -> ActionResult:
        facts = await self._call("POST", "/api/policy/train")
        if facts["started"]:
            turns = f"{facts['turns']} turn{'s' * (facts['turns'] != 1)}"
            begins = (
                "The run that has begun goes on"
                if facts.get("continues")
                else f"Training begins now with {turns}"
            )
            return ActionResult(f"{begins}.")
        reasons = ", ".join(f"{reason} ({count})" for reason, count in facts["rejections"].items())
        return ActionResult(f"No turn may train now{': ' * bool(reasons)}{reasons}.")

    @action("promote", "Let version {version} answer everyone? You can roll back.", "Promote")
    async def _promote(self, form: Form) -> ActionResult:
        version, before = _number(form, "version"), await self._serving()
        await self._call("POST", "/api/policy/promote", {"version": version})
        return ActionResult(
            f"Version {version} answers now.",
            Offer("Roll back", "rollback", {"version": str(before)}),
        )

    @action(
        "rollback",
        "Roll back to version {version}? You can promote the present one again.",
        "Roll back",
    )
    async def _rollback(self, form: Form) -> ActionResult:
        before = await self._serving()
        body: dict[str, Json] = {"version": _number(form, "version")} if form.get("version") else {}
        after = (await self._call("POST", "/api/policy/rollback", body))["policy_version"]
        return ActionResult(
            f"Version {after} answers again.",
            Offer(f"Promote version {before} again", "promote", {"version": str(before)}),
        )

    @action("key-create")
    async def _create_key(self, form: Form) -> ActionResult:
        said: dict[str, Json] = {
            name: form.get(name, "").strip()
            for name in ("name", "team", "limits")
            if form.get(name)
        }
        said["role"] = form.get("role", "member")
        made = await self._call("POST", "/api/keys", said)
        return _new_key(made)

    @action("key-rotate", "Make a new key for {name}? The present one stops at once.", "New key")
    async def _rotate_key(self, form: Form) -> ActionResult:
        return _new_key(await self._call("POST", f"/api/keys/{_part(form)}/rotate"))

    @action("key-revoke", "Revoke the key of {name}? What they taught stays.", "Revoke")
    async def _revoke_key(self, form: Form) -> ActionResult:
        await self._call("DELETE", f"/api/keys/{_part(form)}")
        return ActionResult(f"The key of {_part(form)} is revoked.")

    async def _change(
        self, form: Form, kind: str, said: Mapping[str, Json], message: str
    ) -> ActionResult:
        """Change a rule or skill; the message may name the fields that it has then."""
        changed = await self._call("PATCH", f"/api/{kind}/{_part(form)}", said)
        now = await self._call("GET", "/api/generations", limit="1")
        return ActionResult(message.format(**changed), _of_generation("Undo", now, "undo"))

    async def _serving(self) -> int:
        return int((await self._call("GET", "/api/policy", limit="1"))["policy_version"])


def _new_key(made: Mapping[str, Any]) -> ActionResult:
    message = f"The key of {made['name']} is {made['key']} — it is shown only now."
    return ActionResult(message, is_shown_once=True)


def _of_generation(label: str, told: Mapping[str, Any], action: str) -> Offer:
    return Offer(label, action, {"generation": str(told["generation"])})


def _part(form: Form, field: str = "name") -> str:
    """A field that becomes one segment of an API path. Raises ApiError if it is empty or has a
    slash.
    """
    name = form.get(field, "")
    if not name or "/" in name:
        raise ApiError("the form names nothing", 400)
    return name


def _number(form: Form, name: str) -> int:
    text = form.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ApiError(f"{name} must be a number", 400)
    return int(text)


def back_path(path: str) -> str:
    """The path to return to if it is one of our own pages, else `/`."""
    is_own = path == "/" or path.startswith(("/?", "/ui/"))
    return (
        quote(path, safe="/?=&%+:@~.-_")
        if is_own and "//" not in path and "\\" not in path
        else "/"
    )
