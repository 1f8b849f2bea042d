"""The actions of the pages. Each is a form; destructive actions ask first and offer an undo."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from anyio.to_thread import run_sync

from metaclaw.api.router import ApiError
from metaclaw.api.web.content import Call
from metaclaw.domain.candidate import CandidateId
from metaclaw.domain.chat import Json
from metaclaw.errors import SkillError
from metaclaw.skills import Rulebook
from metaclaw.store import SqlCandidates

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


@dataclass(frozen=True, slots=True)
class Action:
    """One kind of form. `question` is asked first; `{name}` and other fields of the form are filled
    in.
    """

    do: Callable[[Form], Awaitable[ActionResult]]
    question: str = ""
    button: str = ""


class PageActions:
    """Carries out forms through the API. Raises ApiError if something cannot be done."""

    def __init__(self, call: Call, candidates: SqlCandidates, rulebook: Rulebook) -> None:
        self._call = call
        self._candidates = candidates
        self._rulebook = rulebook
        self.known: Final[Mapping[str, Action]] = {
            "rule-add": Action(self._add_rule),
            "rule-edit": Action(self._edit_rule),
            "rule-remove": Action(
                self._remove_rule,
                "Take this out of force? Agents no longer see it. You can restore it.",
                "Remove",
            ),
            "rule-project": Action(self._move_rule),
            "rule-lasting": Action(self._keep_rule),
            "rule-enforce": Action(self._enforce_rule),
            "enforcement": Action(self._switch_enforcement),
            "restore": Action(self._restore),
            "skill-edit": Action(self._edit_skill),
            "skill-pin": Action(self._pin_skill),
            "skill-retire": Action(
                self._retire_skill,
                "Retire this skill? Agents no longer see it. You can restore it.",
                "Retire",
            ),
            "undo": Action(
                self._undo,
                "Take this lesson back? Everything it changed becomes what it was before.",
                "Undo",
            ),
            "revert": Action(
                self._revert,
                "Go back to the rules and skills of generation {generation}? You can return to the"
                " present ones.",
                "Go back",
            ),
            "candidate-approve": Action(self._approve),
            "candidate-reject": Action(self._reject),
            "candidate-adopt": Action(self._adopt),
            "feedback": Action(self._feedback),
            "train": Action(self._train),
            "promote": Action(
                self._promote,
                "Let version {version} answer everyone? You can roll back.",
                "Promote",
            ),
            "rollback": Action(
                self._rollback,
                "Roll back to version {version}? You can promote the present one again.",
                "Roll back",
            ),
        }

    async def _add_rule(self, form: Form) -> ActionResult:
        said: dict[str, Json] = {"text": form.get("text", ""), "kind": form.get("kind") or "rule"}
        said |= _filled(form, "when", "workspace", "channel", "scope", "expires")
        added = await self._call("POST", "/api/rules", said)
        if not added["added"]:
            return ActionResult(f"That is in force already: {added['text']}")
        return ActionResult(
            f"Noted: {added['text']}", Offer("Undo", "rule-remove", {"name": added["name"]})
        )

    async def _edit_rule(self, form: Form) -> ActionResult:
        name = form.get("name", "")
        said: dict[str, Json] = {"text": form.get("text", "")}
        said |= {
            field: form[field].strip() or None
            for field in ("when", "workspace", "channel", "scope", "expires", "check")
            if field in form
        }
        if form.get("enforce"):
            said["enforce"] = form["enforce"]
        changed = await self._call("PATCH", f"/api/rules/{_part(name)}", said)
        return ActionResult(f"Changed: {changed['text']}", await self._undo_of_newest())

    async def _remove_rule(self, form: Form) -> ActionResult:
        name = form.get("name", "")
        removed = await self._call("DELETE", f"/api/rules/{_part(name)}")
        return ActionResult(
            f"No longer in force: {removed['rule']['text']}",
            Offer("Restore", "restore", {"name": name}),
        )

    async def _move_rule(self, form: Form) -> ActionResult:
        name, workspace = form.get("name", ""), form.get("workspace", "").strip()
        await self._call("PATCH", f"/api/rules/{_part(name)}", {"workspace": workspace or None})
        where = f"applies only in {workspace}" if workspace else "applies in every project"
        return ActionResult(f"{name} {where} now.", await self._undo_of_newest())

    async def _keep_rule(self, form: Form) -> ActionResult:
        name = form.get("name", "")
        await self._call("PATCH", f"/api/rules/{_part(name)}", {"expires": None})
        return ActionResult(f"{name} stays in force without an end.", await self._undo_of_newest())

    async def _enforce_rule(self, form: Form) -> ActionResult:
        name, enforce = form.get("name", ""), form.get("enforce", "")
        effects = {
            "hold": "Calls that break it are held back",
            "remind": "Agents are reminded of it",
            "off": "It is only counted",
        }
        if enforce not in effects:
            raise ApiError(f"enforce must be one of {', '.join(effects)}", 400)
        await self._call("PATCH", f"/api/rules/{_part(name)}", {"enforce": enforce})
        return ActionResult(f"{effects[enforce]}: {name}.", await self._undo_of_newest())

    async def _switch_enforcement(self, form: Form) -> ActionResult:
        is_on = form.get("on") == "yes"
        await self._call("POST", "/api/enforce", {"on": is_on})
        message = (
            "Held rules hold calls back again."
            if is_on
            else "No call is held back any more, by any rule."
        )
        return ActionResult(message, Offer("Undo", "enforcement", {"on": "no" if is_on else "yes"}))

    async def _restore(self, form: Form) -> ActionResult:
        name = form.get("name", "")
        found = await self._call("POST", f"/api/skills/{_part(name)}/restore")
        action = "skill-retire" if found["kind"] == "skill" else "rule-remove"
        return ActionResult(f"{name} is in force again.", Offer("Undo", action, {"name": name}))

    async def _edit_skill(self, form: Form) -> ActionResult:
        name = form.get("name", "")
        said: dict[str, Json] = {
            "description": form.get("description", ""),
            "body": form.get("body", "").replace("\r\n", "\n"),
        }
        await self._call("PATCH", f"/api/skills/{_part(name)}", said)
        return ActionResult(
            f"Changed {name}; it is yours now, and the program does not change it by itself.",
            await self._undo_of_newest(),
        )

    async def _pin_skill(self, form: Form) -> ActionResult:
        name, pinned = form.get("name", ""), form.get("pinned") == "yes"
        await self._call("POST", f"/api/skills/{_part(name)}/pin", {"pinned": pinned})
        back = Offer("Undo", "skill-pin", {"name": name, "pinned": "no" if pinned else "yes"})
        return ActionResult(
            f"{name} is {'pinned: the program leaves it alone' if pinned else 'no longer pinned'}.",
            back,
        )

    async def _retire_skill(self, form: Form) -> ActionResult:
        name = form.get("name", "")
        await self._call("POST", f"/api/skills/{_part(name)}/retire")
        return ActionResult(f"{name} is retired.", Offer("Restore", "restore", {"name": name}))

    async def _undo(self, form: Form) -> ActionResult:
        undone = await self._call(
            "POST",
            "/api/undo",
            {"generation": _number(form, "generation")} if form.get("generation") else {},
        )
        names = [one["name"] for one in (*undone["removed"], *undone["restored"])]
        return ActionResult(
            f"Taken back: {', '.join(names)}.",
            Offer("Bring it back", "undo", {"generation": str(undone["generation"])}),
        )

    async def _revert(self, form: Form) -> ActionResult:
        number = _number(form, "generation")
        now = (await self._call("GET", "/api/generations", limit="1"))["generation"]
        await self._call("POST", "/api/generations/revert", {"generation": number})
        message = f"The rules and skills of generation {number} are in force again."
        return ActionResult(
            message, Offer("Return to where you were", "revert", {"generation": str(now)})
        )

    async def _approve(self, form: Form) -> ActionResult:
        decided = await self._call("POST", f"/api/candidates/{_part(form.get('id', ''))}/approve")
        name = decided["skill"]
        return ActionResult(
            f"{name} is in force.", Offer("Retire it again", "skill-retire", {"name": name})
        )

    async def _reject(self, form: Form) -> ActionResult:
        decided = await self._call("POST", f"/api/candidates/{_part(form.get('id', ''))}/reject")
        return ActionResult(
            f"{decided['skill']} is rejected.",
            Offer("Accept it after all", "candidate-adopt", {"id": decided["id"]}),
        )

    async def _adopt(self, form: Form) -> ActionResult:
        found = await run_sync(self._candidates.candidate, CandidateId(form.get("id", "")))
        if found is None:
            raise ApiError("there is no such candidate", 404)
        try:
            skill = await run_sync(self._rulebook.adopt, found.proposal.skill)
        except SkillError as error:
            raise ApiError(str(error), 409) from error
        return ActionResult(
            f"{skill.name} is in force, as yours.",
            Offer("Retire it again", "skill-retire", {"name": skill.name}),
        )

    async def _feedback(self, form: Form) -> ActionResult:
        turn, outcome, comment = (
            form.get("turn", ""),
            form.get("outcome", ""),
            form.get("comment", "").strip(),
        )
        await self._call(
            "POST", "/api/feedback", {"turn": turn, "outcome": outcome, "comment": comment}
        )
        other = "fail" if outcome == "pass" else "pass"
        words = {"pass": "good", "fail": "bad"}
        back = Offer(f"No, it was {words[other]}", "feedback", {"turn": turn, "outcome": other})
        return ActionResult(f"Noted: this answer was {words[outcome]}.", back)

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

    async def _promote(self, form: Form) -> ActionResult:
        version, before = _number(form, "version"), await self._serving()
        await self._call("POST", "/api/policy/promote", {"version": version})
        return ActionResult(
            f"Version {version} answers now.",
            Offer("Roll back", "rollback", {"version": str(before)}),
        )

    async def _rollback(self, form: Form) -> ActionResult:
        before = await self._serving()
        body: dict[str, Json] = {"version": _number(form, "version")} if form.get("version") else {}
        after = (await self._call("POST", "/api/policy/rollback", body))["policy_version"]
        return ActionResult(
            f"Version {after} answers again.",
            Offer(f"Promote version {before} again", "promote", {"version": str(before)}),
        )

    async def _serving(self) -> int:
        return int((await self._call("GET", "/api/policy", limit="1"))["policy_version"])

    async def _undo_of_newest(self) -> Offer:
        number = (await self._call("GET", "/api/generations", limit="1"))["generation"]
        return Offer("Undo", "undo", {"generation": str(number)})


def _part(name: str) -> str:
    """Check a name that becomes one segment of an API path. Raises ApiError if it is empty or has a
    slash.
    """
    if not name or "/" in name:
        raise ApiError("the form names nothing", 400)
    return name


def _filled(form: Form, *names: str) -> dict[str, Json]:
    return {name: form[name].strip() for name in names if form.get(name, "").strip()}


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
