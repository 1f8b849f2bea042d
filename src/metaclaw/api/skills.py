"""Routes for skills: list, show, add, remove and retire them, and try a check on an answer."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from anyio.to_thread import run_sync

from metaclaw.api.home_routes import HomeRoutes
from metaclaw.api.router import ApiError, ApiRequest, RequestBody, route
from metaclaw.api.views import (
    lesson_use_view,
    picked,
    retired_skill_view,
    skill_facts_view,
    skill_view,
)
from metaclaw.domain.candidate import Standing
from metaclaw.domain.chat import Json, Message, Role, Text
from metaclaw.domain.check import Conversation, Finding
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Lesson, Skill, SkillState
from metaclaw.domain.verdict import Outcome
from metaclaw.errors import SkillError
from metaclaw.skills import (
    check_of,
    check_trouble,
    examine,
    form_note,
    parse_skill,
    read_pack,
    render_skill,
    trial_trouble,
)
from metaclaw.store import LessonUse, SqlEpisodes

if TYPE_CHECKING:
    from metaclaw.learn import SkillFacts

_FILE: Final = "SKILL.md"
_MOST_LESSONS: Final = 1000
_ADD: Final = RequestBody(
    {
        "files": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
            },
            "description": "Skills in the format of SKILL.md; `path` is named in messages",
        },
        "replace": {
            "type": "boolean",
            "description": "Also where skills of these names exist",
        },
    },
    ("files",),
)
_TEST: Final = RequestBody(
    {
        "name": {"type": "string"},
        "text": {"type": "string", "description": "A whole SKILL.md"},
        "task": {"type": "string", "description": "What the person asked"},
        "answer": {"type": "string"},
    },
    ("task", "answer"),
)


@dataclass(frozen=True, slots=True)
class SkillRoutes:
    """The routes for skills."""

    home: HomeRoutes

    @route(
        "GET",
        "/api/lessons",
        "Lessons in force, waiting or withdrawn, with their failure, its counts, and what taught them",
    )
    def _lessons(self, request: ApiRequest) -> object:
        """The lessons in force, those that wait for a person, and those that were withdrawn."""
        waiting, accepted = (
            self.home.candidates.candidates(standing, _MOST_LESSONS)
            for standing in (Standing.WAITING, Standing.ACCEPTED)
        )
        taught = {one.proposal.skill.name: one.proposal.support for one in (*accepted, *waiting)}
        episodes, found = SqlEpisodes(self.home.database), list[dict[str, Any]]()

        def add(use: LessonUse, state: str, reason: str | None = None) -> None:
            found.append(lesson_use_view(use, state, reason, taught.get(use.lesson.name, ())))

        rulebook, dates = self.home.rulebook, self.home.rulebook.dates()
        for use in episodes.uses(rulebook.skills(), dates):
            add(use, use.lesson.state)
        for one in waiting:
            lesson = one.proposal.skill
            if isinstance(lesson, Lesson) and rulebook.owns(lesson):
                add(episodes.use(lesson, {}), "asked", one.reason)
        for gone in rulebook.retired():
            if isinstance(lesson := gone.skill, Lesson) and gone.retired_at is not None:
                reason = gone.reason.removeprefix(f"retired {lesson.name}: ")
                add(episodes.use(lesson, dates), "withdrawn", reason)
        return {"lessons": found}

    @route(
        "GET", "/api/skills", "Skills, rules and facts in force, or in a state", ("state", "text")
    )
    def _skills(self, request: ApiRequest) -> object:
        state = request.choice("state", (SkillState.LIVE, SkillState.RETIRED))
        view = self.home.rulebook.library.follow()
        if state == SkillState.RETIRED:
            gone = self.home.rulebook.retired()
            return {
                "generation": view.generation,
                "skills": [retired_skill_view(retired) for retired in gone],
            }
        live = self.home.rulebook.skills()
        found = [skill for skill in live if state is None or skill.state == state]
        with_text = request.query.get("text") == "true"
        return {
            "generation": view.generation,
            "folder": str(self.home.rulebook.library.folder),
            "skills": [
                {**self._view(skill), **({"text": render_skill(skill)} if with_text else {})}
                for skill in found
            ],
            "skipped": self.home.skipped(),
        }

    @route("GET", "/api/skills/{name}", "One skill in force")
    async def _skill(self, request: ApiRequest) -> object:
        name = SkillName(request.path["name"])
        skill = self._known(name)
        return {
            **self._view(skill),
            "body": skill.body,
            "text": render_skill(skill),
            **(await run_sync(_check_view, skill)),
            **skill_facts_view(await self._facts(skill)),
        }

    @route("POST", "/api/skills", "Put skills in force", body=_ADD)
    def _add(self, request: ApiRequest) -> object:
        """Put the readable skills in force, unless one of the same name exists and is not to be
        replaced.
        """
        files = [(one["path"], one["text"]) for one in request.said["files"]]
        pack, library = read_pack(files), self.home.rulebook.library
        taken: list[Json] = [
            skill.name
            for skill in pack.skills
            if library.view.get(skill.name) or (library.folder / skill.name).exists()
        ]
        is_written = bool(pack.skills) and (request.said.get("replace", False) or not taken)
        if is_written:
            self.home.rulebook.put(pack.skills)
        tried = _check_view if len(files) == 1 else lambda skill: {}
        return {
            "skills": [{**self._view(skill), **tried(skill)} for skill in pack.skills],
            "taken": taken,
            "faults": [{"path": path, "reason": reason} for path, reason in pack.faults],
            "written": is_written,
        }

    @route("DELETE", "/api/skills/{name}", "Take a skill out and delete its folder")
    def _remove(self, request: ApiRequest) -> object:
        name = request.path["name"]
        if not (self.home.rulebook.library.folder / name / _FILE).is_file():
            raise _unknown(name)
        self.home.rulebook.delete(name)
        return {"removed": name}

    @route("POST", "/api/skills/{name}/retire", "Take a skill out of force")
    async def _retire(self, request: ApiRequest) -> object:
        name = SkillName(request.path["name"])
        self._known(name)
        generation = await (await self.home.owner()).retire(name)
        return {"skill": name, "retired": True, "generation": generation}

    @route("POST", "/api/skill-test", "Run a skill's check on an answer", body=_TEST)
    def _test(self, request: ApiRequest) -> object:
        said, name = request.said, request.said.get("name", "the text")
        skill = parse_skill(said["text"], name) if "text" in said else self._known(SkillName(name))
        return _tried(skill, said["task"], said["answer"])

    def _known(self, name: SkillName) -> Skill:
        skill = self.home.rulebook.library.follow().get(name)
        if skill is None or not self.home.rulebook.sees(skill):
            raise _unknown(name)
        return skill

    async def _facts(self, skill: Skill) -> "SkillFacts":
        """What is counted over all people is only for those whose skill it is."""
        owner = await self.home.owner()
        return await owner.skill_facts(
            skill.name if self.home.rulebook.owns(skill) else SkillName("")
        )

    def _view(self, skill: Skill) -> dict[str, Any]:
        return {
            **skill_view(skill),
            "path": str(self.home.rulebook.library.folder / skill.name / _FILE),
        }


def _unknown(name: str) -> ApiError:
    return ApiError(f"there is no skill named {name} in force", 404)


def _check_view(skill: Skill) -> dict[str, Any]:
    """A skill's check, why it is not run, and what a trial on trivial answers finds. Blocks."""
    trouble = check_trouble(skill)
    trial = None if trouble else trial_trouble(skill)
    return {
        "check": skill.check,
        "check_trouble": trouble,
        "check_trial": trial,
        "check_note": None if trouble else trial or form_note(skill),
    }


def _tried(skill: Skill, task: str, answer: str) -> dict[str, Any]:
    from metaclaw.training import is_degenerate  # it brings the training services along

    check = check_of(skill)
    if check is None:
        raise SkillError(
            f"{skill.name} has no check: write one into its SKILL.md (docs/training.md shows all"
            " kinds)"
        )
    asked = Conversation((Message(Role.USER, (Text(task),)),), task)
    finding = examine(check, [Text(answer)], conversation=asked)
    if finding.has_failed:
        raise SkillError(f"the check of {skill.name} itself fails: {finding.reason}")
    if is_degenerate(answer):
        finding = Finding(
            Outcome.FAIL,
            "an empty answer, or one that repeats itself, earns nothing whatever the check says",
            0.0,
        )
    return picked(finding, "outcome", "score", "reason")
