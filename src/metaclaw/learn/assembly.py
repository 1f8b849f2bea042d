"""Assembly of the learning part from the configuration: models, gate, and the background loops."""

import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeVar

from metaclaw.clock import utc_now
from metaclaw.config import Config, EvolverConfig, JudgeConfig
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.turn import ModelAt, Step
from metaclaw.learn.admission import Announce, CandidateAdmission, SafetyReview
from metaclaw.learn.assessment import Assessment, CalibrationLoop, Situations
from metaclaw.learn.budget import Budget
from metaclaw.learn.compliance import ComplianceLoop, RuleJudge
from metaclaw.learn.fast import FastLoop
from metaclaw.learn.lessons import LessonLoop
from metaclaw.learn.listen import Listening
from metaclaw.learn.maintenance import Maintenance, SkillCounts
from metaclaw.learn.models import EVOLVER, JUDGE, Models, Provider, UnusableAnswers
from metaclaw.learn.open_failures import FailureReader
from metaclaw.learn.outcomes import JudgeAllowance, OutcomeLoop
from metaclaw.learn.owner import OwnerActions
from metaclaw.learn.procedures import ProcedureLoop
from metaclaw.learn.retention import SessionErasure
from metaclaw.learn.rule_checks import CheckTrial, RuleChecks
from metaclaw.learn.rules import RuleWriter
from metaclaw.learn.stated_rules import Messages
from metaclaw.learn.steps import RecordedSteps, StepBuilder
from metaclaw.learn.store_rpc import AnyLibrary
from metaclaw.learn.supervision import TURNS_CURSOR, AttemptLog, Supervisor, senses
from metaclaw.outcome import Judge
from metaclaw.ports import Model, Purpose
from metaclaw.privacy import KnownSecrets, Redactor, render_step, secrets_of
from metaclaw.skills import Evolver, Gate, GateMode, LessonWriter, SkillLibrary
from metaclaw.store import (
    Database,
    LedgerReader,
    RemoteWrites,
    SqlCandidates,
    SqlCompliance,
    SqlCursors,
    SqlEpisodes,
    SqlGenerations,
    SqlPolicies,
    SqlSpending,
    SqlUses,
    SqlVerdicts,
)
from metaclaw.upstream import Spent

_T = TypeVar("_T")
_SESSIONS_FOR_A_LESSON: Final = 2
_QUESTION_TOKENS: Final = 3_000
_REMEMBERED: Final = 4_096


@dataclass(frozen=True, slots=True)
class LearningStores:
    """The stores that the loops write to."""

    verdicts: SqlVerdicts
    candidates: SqlCandidates
    cursors: SqlCursors
    uses: SqlUses
    spending: SqlSpending
    compliance: SqlCompliance
    episodes: SqlEpisodes

    @staticmethod
    def of(database: Database, remote: RemoteWrites | None = None) -> "LearningStores":
        """Stores that write to the database directly, or have `remote` write."""
        return LearningStores(
            SqlVerdicts(database, remote=remote),
            SqlCandidates(database, remote=remote),
            SqlCursors(database, remote=remote),
            SqlUses(database, remote=remote),
            SqlSpending(database, remote=remote),
            SqlCompliance(database, remote=remote),
            SqlEpisodes(database, remote=remote),
        )


class Learning:
    """Builds the learning loops and starts them. `words` returns a person's own words, given the
    agent's name and the raw text.
    """

    def __init__(
        self,
        config: Config,
        *,
        database: Database,
        announce: Announce,
        library: AnyLibrary,
        providers: Sequence[Provider],
        words: Callable[[str, str], str],
        stores: LearningStores | None = None,
        attempt_log: AttemptLog | None = None,
        budget: Budget | None = None,
        models: Models | None = None,
        now: Callable[[], datetime] = utc_now,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """By default, `stores` write to the database, `budget` counts into them, and `models` are
        those of the providers. `attempt_log` has the failed attempts of earlier processes; `steady_s`
        is a monotonic clock."""
        stores = stores or LearningStores.of(database)
        self._now, self._steady_s = now, steady_s
        self._config = config
        self.announce = announce
        self.attempt_log = attempt_log or AttemptLog()
        self._cursors = stores.cursors
        self._library = library
        self._teams = {team.name: team.users for team in config.teams}
        self.reader = LedgerReader(database)
        self.verdicts = stores.verdicts
        self.candidates = stores.candidates
        self.generations = SqlGenerations(database, self._now)
        self.steps = StepBuilder(words)
        self.budget = budget or Budget(config, stores.spending)
        self.models = models or Models(providers, self.budget, self.reader.served_lately)
        self.redactor = Redactor(
            KnownSecrets(secrets_of(os.environ, Path.home(), config))
            if config.privacy.redact
            else KnownSecrets()
        )
        self.allowance = JudgeAllowance(config.judge.max_share)
        self.calibration = CalibrationLoop(self.verdicts.graded)
        self.unusable = UnusableAnswers()
        self.judge_for = self._judges()
        self.rule_judge = RuleJudge(
            self.judge_for, self._may_judge, self.redact, self.allowance, self._judged
        )
        self.situations = Situations(library, self._teams)
        self.recorded = RecordedSteps(self.reader, self.steps)
        review = SafetyReview(
            self.recorded.step,
            library,
            self.redactor,
            self.recorded.session_of,
            self.generations.retired,
        )
        self.admission = CandidateAdmission(
            gate=Gate(GateMode(config.skills.gate), [review]),
            library=library,
            candidates=self.candidates,
            announce=self.announce,
            redact=self.redact,
            teams=self._teams,
            now=self._now,
        )
        self.counts = SkillCounts(stores.uses, self.generations, self._teams)
        self.maintenance = Maintenance(
            reader=self.reader,
            cursors=self._cursors,
            library=library,
            counts=self.counts,
            admission=self.admission,
            now=self._now,
        )
        self.messages = Messages(self.reader, self.recorded)
        self.checks = self._checks()
        self.listening = self._listening()
        self.fast = self._fast()
        self.lessons = self._lessons(stores.episodes)
        self.procedures = ProcedureLoop(
            reader=self.reader,
            cursors=self._cursors,
            recorded=self.recorded,
            candidates=self.candidates,
            library=library,
            admission=self.admission,
            redact=self.redact,
            attempt_log=self.attempt_log,
        )
        self.outcomes = self._outcomes()
        self.compliance = self._compliance(stores.compliance, SqlPolicies(database))

    def facts(self) -> dict[str, object]:
        """The learning part of `status`: the models that are asked, and how good verdicts are."""
        config = self._config
        return {
            "on": config.skills.learn,
            "gate": config.skills.gate,
            "listen": self.models.shown_listener(config.listen, config.judge),
            "listener": self.listening.facts,
            "unusable": self.unusable.facts,
            "unwritten": self.lessons.unwritten,
            "refused": self.models.refused,
            "judge": self.models.shown(config.judge),
            "evolver": self.models.shown(config.evolver),
            "counted": self.fast.counted,
        }

    def waiting(self) -> dict[str, int]:
        """The number of requests that wait for the budget, by purpose."""
        put_off = {
            Purpose.JUDGE.value: self.outcomes.questions.waiting_for_budget,
            Purpose.LISTEN.value: self.listening.put_off,
        }
        return dict(Counter(self.budget.waiting) | Counter(put_off))

    def begin(self, supervisor: Supervisor) -> None:
        if senses(self._config):
            self.compliance.prepare(self._cursors.cursor(TURNS_CURSOR))
        if self._config.skills.learn:
            self.listening.prepare()
            self.lessons.prepare()
            supervisor.run("listening", self.listening.run)
            supervisor.run("checks", self.checks.run)
        if senses(self._config):
            supervisor.run("sensing", self.outcomes.run)
            supervisor.run("compliance", self.compliance.run)
            supervisor.run("calibrating", self.calibration.run)
        if self._config.skills.learn:
            supervisor.run("fast", self.fast.run)
            supervisor.run("lessons", self.lessons.run)
            supervisor.run("procedures", self.procedures.run)
            supervisor.run("tending", self.maintenance.run)

    def _judges(self) -> Callable[[ModelAt], Judge | None]:
        section, answered = self._config.judge, self.unusable.of(JUDGE)
        return self._with_model(
            section, lambda model: Judge(model, section.votes, self._render, answered=answered)
        )

    def _with_model(
        self, section: JudgeConfig | EvolverConfig, make: Callable[[Model], _T]
    ) -> Callable[[ModelAt], _T | None]:
        """What `make` makes of the model that a section chooses for a serving model; None without
        one.
        """
        chosen = self.models.chosen(section)
        made: dict[ModelAt, _T] = {}

        def made_for(served: ModelAt) -> _T | None:
            if served not in made and (found := chosen(served)) is not None:
                made[served] = make(found)
            return made.get(served)

        return made_for

    def _is_taken(self, name: str) -> bool:
        return self._library.view.get(name) is not None

    def _checks(self) -> RuleChecks:
        return RuleChecks(
            library=self._library,
            candidates=self.candidates,
            generations=self.generations,
            messages=self.messages,
            trial=CheckTrial(self.reader, self.recorded, self.redact, self.rule_judge),
            listener=self.models.listener(self._config.listen, self._config.judge),
            timeout_s=self._config.listen.timeout_s,
            now=self._now,
            attempt_log=self.attempt_log,
        )

    def _listening(self) -> Listening:
        rules = RuleWriter(
            library=self._library,
            candidates=self.candidates,
            verdicts=self.verdicts,
            announce=self.announce,
            redact=self.redact,
            teams=self._teams,
            checks=self.checks,
            on_failure=self.wake_fast_loop,
            has_channel=self.reader.has_channel,
            now=self._now,
        )
        return Listening(
            reader=self.reader,
            cursors=self._cursors,
            candidates=self.candidates,
            messages=self.messages,
            rules=rules,
            listener=self.models.listener(self._config.listen, self._config.judge),
            timeout_s=self._config.listen.timeout_s,
            redact=self.redact,
            read=self.wake_fast_loop,
            today=lambda: self._now().date(),
            now=self._steady_s,
            attempt_log=self.attempt_log,
        )

    async def _may_judge(self) -> bool:
        """Whether the budget allows a question to the judge."""
        return await self.budget.may_spend(Purpose.JUDGE, _QUESTION_TOKENS)

    async def _judged(self, model: str) -> None:
        """Count a turn that the judge was asked about."""
        await self.budget.count(Purpose.JUDGE, model, Spent(), turns=1)

    def _fast(self) -> FastLoop:
        section = self._config.evolver
        answered = self.unusable.of(EVOLVER)

        def writer(model: Model) -> Evolver:
            return Evolver(
                model,
                self._render,
                section.max_new_skills,
                redact=self.redact,
                is_taken=self._is_taken,
                on_refused=self.admission.refuse,
                answered=answered,
            )

        failures = FailureReader(
            reader=self.reader,
            verdicts=self.verdicts,
            candidates=self.candidates,
            recorded=self.recorded,
            library=self._library,
            attempt_log=self.attempt_log,
        )
        return FastLoop(
            failures=failures,
            candidates=self.candidates,
            library=self._library,
            admission=self.admission,
            writer_for=self._with_model(section, writer),
            min_failures=section.min_failures,
            teams=self._teams,
            attempt_log=self.attempt_log,
            is_unread=self.listening.is_unread,
            may_train=self._may_train(),
        )

    def _lessons(self, episodes: SqlEpisodes) -> LessonLoop:
        section = self._config.evolver
        answered = self.unusable.of(EVOLVER)
        return LessonLoop(
            reader=self.reader,
            cursors=self._cursors,
            episodes=episodes,
            recorded=self.recorded,
            candidates=self.candidates,
            generations=self.generations,
            library=self._library,
            admission=self.admission,
            writer_for=self._with_model(
                section, lambda model: LessonWriter(model, self.redact, self._is_taken, answered)
            ),
            teams=self._teams,
            redact=self.redact,
            least=min(section.min_failures, _SESSIONS_FOR_A_LESSON),
            now=self._now,
            attempt_log=self.attempt_log,
        )

    def _may_train(self) -> Callable[[TurnId], bool]:
        """A function that says whether weights could learn from a turn: weights are trained, and
        its tokens are recorded.
        """
        policy = self._config.policy
        if policy is None or policy.mode == "skills_only":
            return lambda turn: False

        @lru_cache(_REMEMBERED)
        def may_train(turn: TurnId) -> bool:
            recorded = self.reader.turn(turn)
            return recorded is not None and recorded.turn.tokens is not None

        return may_train

    def _outcomes(self) -> OutcomeLoop:
        assessment = Assessment(
            judge_for=self.judge_for,
            skill=lambda name: self._library.view.get(name),
            calibration=lambda: self.calibration.current,
            matches=self.situations.match,
            judged=self._judged,
        )
        return OutcomeLoop(
            reader=self.reader,
            cursors=self._cursors,
            verdicts=self.verdicts,
            recorded=self.recorded,
            assessor=assessment,
            allowance=self.allowance,
            may_ask=self._may_judge,
            on_failure=self.wake_fast_loop,
            catch_up=self._library.follow,
            now=self._steady_s,
            attempt_log=self.attempt_log,
        )

    def _compliance(self, store: SqlCompliance, policies: SqlPolicies) -> ComplianceLoop:
        def absorbed(version: int) -> frozenset[SkillName]:
            policy = policies.version(version) if version else None
            return frozenset() if policy is None else policy.absorbed

        return ComplianceLoop(
            reader=self.reader,
            compliance=store,
            recorded=self.recorded,
            library=self._library,
            generations=self.generations,
            teams=self._teams,
            redact=self.redact,
            day_of=self.budget.day_of,
            judge=self.rule_judge,
            absorbed=absorbed,
            on_broken=self.checks.note_broken,
            attempt_log=self.attempt_log,
        )

    def wake_fast_loop(self) -> None:
        """Wake the fast loop after a turn failed; no-op if no skills are learned."""
        if self._config.skills.learn:
            self.fast.wakeup.notify()

    def forget_session(self, session: SessionId) -> None:
        """Drop a session that is to be forgotten from all caches."""
        self.steps.forget()
        self.compliance.forget()
        self.procedures.forget(session)

    def redact(self, text: str) -> str:
        return self.redactor.text(text).text

    def _render(self, step: Step) -> str:
        return render_step(step, self.redactor)


def owner_of(
    learning: Learning,
    library: SkillLibrary,
    erasure: SessionErasure,
    *,
    on_failure: Callable[[], None],
    on_forget: Callable[[SessionId], None],
    serve: Callable[[Sequence[int]], Awaitable[None]],
) -> OwnerActions:
    """Build the actions of a person. `on_failure` is called when a turn was marked as failed,
    `on_forget` with a session that is to be forgotten, for other caches."""

    def forget_everywhere(session: SessionId) -> None:
        on_forget(session)
        learning.forget_session(session)

    return OwnerActions(
        reader=learning.reader,
        verdicts=learning.verdicts,
        candidates=learning.candidates,
        erasure=erasure,
        library=library,
        admission=learning.admission,
        counts=learning.counts,
        announce=learning.announce,
        on_failure=on_failure,
        on_forget=forget_everywhere,
        serve=serve,
    )
