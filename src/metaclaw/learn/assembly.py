"""The learning part put together from the configuration: what is asked, how it is proven, and the loops that run beside serving."""

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from metaclaw.config import Config
from metaclaw.domain.chat import Json
from metaclaw.domain.ids import TurnId
from metaclaw.domain.step import Step
from metaclaw.learn.admitting import Admitting
from metaclaw.learn.allowance import Allowance
from metaclaw.learn.assessing import Assessing, ReplayScorer
from metaclaw.learn.calibrating import Calibrating
from metaclaw.learn.fast import Fast, FastRules
from metaclaw.learn.models import Models, Provider
from metaclaw.learn.owner import Owner
from metaclaw.learn.probes import Probes
from metaclaw.learn.replay import CassetteReplayer, Placing
from metaclaw.learn.retention import Retention
from metaclaw.learn.reviewing import Reviewing
from metaclaw.learn.sensing import Sensing
from metaclaw.learn.steps import StepBuilder
from metaclaw.learn.supervise import Supervisor
from metaclaw.learn.tending import Tending
from metaclaw.outcome import Judge
from metaclaw.privacy import KnownSecrets, Redactor, collect, render_step
from metaclaw.skills import Shelf
from metaclaw.skills.evolve import Evolver
from metaclaw.skills.gate import Gate, GateMode
from metaclaw.store import (
    Database,
    LedgerReader,
    SqlCandidates,
    SqlCursors,
    SqlForgetting,
    SqlGenerations,
    SqlLedger,
    SqlVerdicts,
)


class Learning:
    """Everything that learns. `words` gives a person's own words in a message: it is told the agent's name and the raw text."""

    def __init__(
        self,
        config: Config,
        *,
        database: Database,
        ledger: SqlLedger,
        shelf: Shelf,
        providers: Sequence[Provider],
        words: Callable[[str, str], str],
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._shelf = shelf
        self.reader = LedgerReader(database)
        self.verdicts = SqlVerdicts(database)
        self.candidates = SqlCandidates(database)
        self.generations = SqlGenerations(database)
        self.steps = StepBuilder(words)
        self.models = Models(providers, max(config.judge.timeout_s, config.evolver.timeout_s))
        self.redactor = Redactor(collect(os.environ, Path.home(), config) if config.privacy.redact else KnownSecrets())
        self.allowance = Allowance(config.judge.max_share)
        self.calibrating = Calibrating(self.verdicts)
        self.judge_for = self._judges()
        reviewing = Reviewing(self._step, shelf, self.redactor)
        self.admitting = Admitting(
            gate=self._gate(reviewing), shelf=shelf, candidates=self.candidates, announce=self.announce, scrub=reviewing.scrub
        )
        self.tending = Tending(reader=self.reader, shelf=shelf, admitting=self.admitting)
        self.fast = self._fast()
        self.forgetting = SqlForgetting(database)
        self.sensing = self._sensing(SqlCursors(database))
        self.owner = self._owner()

    async def announce(self, kind: str, data: dict[str, Json]) -> None:
        """Make something known to whoever follows the events."""
        await self._ledger.announce(kind, data)

    def begin(self, supervisor: Supervisor) -> None:
        """Start the loops."""
        days = self._config.privacy.retention_days
        if days:
            supervisor.run("retention", Retention(self.forgetting, days).run)
        if not self._config.skills.learn:
            return
        supervisor.run("sensing", self.sensing.run)
        supervisor.run("fast", self.fast.run)
        supervisor.run("tending", self.tending.run)
        supervisor.run("calibrating", self.calibrating.run)

    def _judges(self) -> Callable[[str], Judge | None]:
        wish = self._config.judge
        chosen = self.models.chosen(wish)

        @cache
        def judge_for(model: str) -> Judge | None:
            found = chosen(model)
            return None if found is None else Judge(found, wish.votes, self._render, wish.timeout_s)

        return judge_for

    def _gate(self, reviewing: Reviewing) -> Gate:
        placing = Placing(self.generations.at, self._config.skills.budget_tokens, self._config.skills.max_placed)
        scorer = ReplayScorer(self.judge_for, lambda text: self.redactor.text(text).text)
        replayer = CassetteReplayer(self.reader, self.steps, self.models.served, scorer, placing)
        return Gate(GateMode(self._config.skills.gate), replayer, [reviewing])

    def _fast(self) -> Fast:
        wish = self._config.evolver
        chosen = self.models.chosen(wish)

        @cache
        def writer_for(model: str) -> Evolver | None:
            found = chosen(model)
            if found is None:
                return None
            return Evolver(
                found,
                self._render,
                wish.max_new_skills,
                redact=lambda text: self.redactor.text(text).text,
                is_taken=lambda name: self._shelf.view.get(name) is not None,
            )

        return Fast(
            reader=self.reader,
            verdicts=self.verdicts,
            candidates=self.candidates,
            steps=self.steps,
            shelf=self._shelf,
            admitting=self.admitting,
            probes=Probes(self.reader, self.verdicts, self.steps),
            writer_for=writer_for,
            rules=FastRules(wish.min_failures, {team.name: team.users for team in self._config.teams}),
        )

    def _sensing(self, cursors: SqlCursors) -> Sensing:
        assessing = Assessing(
            judge_for=self.judge_for, skill=lambda name: self._shelf.view.get(name), calibration=lambda: self.calibrating.current
        )
        return Sensing(
            reader=self.reader,
            cursors=cursors,
            verdicts=self.verdicts,
            steps=self.steps,
            assessor=assessing,
            allowance=self.allowance,
            heard=self.fast.hear,
            failed=self.fast.bell.ring,
        )

    def _owner(self) -> Owner:
        return Owner(
            reader=self.reader,
            verdicts=self.verdicts,
            candidates=self.candidates,
            forgetting=self.forgetting,
            shelf=self._shelf,
            admitting=self.admitting,
            tending=self.tending,
            announce=self.announce,
            failed=self.fast.bell.ring,
        )

    def _render(self, step: Step, limit_chars: int = 24_000) -> str:
        return render_step(step, self.redactor, limit_chars)

    def _step(self, turn: TurnId) -> Step | None:
        """A turn with what followed it, for whoever must know where words came from."""
        recorded = self.reader.turn(turn)
        if recorded is None:
            return None
        row = self.reader.next_main_turn(recorded.turn.session, recorded.seq)
        return self.steps.build(recorded, None if row is None else self.reader.turn(row.id))
