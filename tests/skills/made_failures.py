"""Steps, failures and a model with prepared answers, for tests of the evolver."""

from dataclasses import dataclass, field, replace

from metaclaw.domain.chat import ChatRequest, Completion, Finish, Message, Role, Text
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.turn import Scope, Stamp, Step, TurnEnd
from metaclaw.domain.verdict import Fault, Outcome, Signal, Source, Verdict
from metaclaw.errors import UpstreamError
from metaclaw.ports import Purpose
from metaclaw.skills import Failure


def make_step(
    task: str,
    said_after: str | None = None,
    *,
    turn: str = "t_1",
    scope: Scope | None = None,
    generation: int = 3,
    previous: Step | None = None,
) -> Step:
    """A step that answered something."""
    return Step(
        turn=TurnId(turn),
        session=SessionId("s_1"),
        scope=scope or Scope(),
        stamp=Stamp(generation, 0, "hash", ()),
        model="served",
        task=task,
        history=(Message(Role.USER, (Text(task),)),),
        tools=(),
        answer=(Text("Done."),),
        end=TurnEnd.COMPLETED,
        said_after=said_after,
        previous=previous,
    )


def make_verdict(
    step: Step, detector: str = "hollow", quote: str = "it broke", comment: str = ""
) -> Verdict:
    """A failure that a detector saw, or that the person said where there is a comment."""
    source = Source.USER if comment else Source.DETECTOR
    signals = (Signal(detector, 2.0, quote),)
    return Verdict(
        step.turn, Outcome.FAIL, source, 0.95, signals, fault=Fault.AGENT, comment=comment
    )


def make_failure(
    task: str,
    said_after: str | None = None,
    *,
    turn: str = "t_1",
    scope: Scope | None = None,
    generation: int = 3,
    detector: str = "hollow",
    quote: str = "it broke",
    comment: str = "",
) -> Failure:
    """A failure of the agent's own."""
    step = make_step(task, said_after, turn=turn, scope=scope, generation=generation)
    return Failure(step, make_verdict(step, detector, quote, comment))


def not_taught_by(failure: Failure) -> list[Failure]:
    """The same turn as it would be with a pass, an unknown, and a fault of the environment."""
    passed = replace(failure.verdict, outcome=Outcome.PASS, fault=None)
    unknown = replace(failure.verdict, outcome=Outcome.UNKNOWN, fault=None, p_fail=None)
    environment = replace(failure.verdict, fault=Fault.ENVIRONMENT)
    return [replace(failure, verdict=verdict) for verdict in (passed, unknown, environment)]


@dataclass
class ScriptedModel:
    """A model that gives prepared answers and keeps what it was asked."""

    answers: list[str]
    name: str = "scripted"
    asked: list[tuple[ChatRequest, Purpose]] = field(default_factory=list)

    async def ask(self, request: ChatRequest, purpose: Purpose) -> Completion:
        """The next answer; an empty script is a model that is down."""
        self.asked.append((request, purpose))
        if not self.answers:
            raise UpstreamError("nobody there", status=503)
        return Completion("c_1", self.name, (Text(self.answers.pop(0)),), Finish.STOP)

    @property
    def prompt(self) -> str:
        """Everything the last question said."""
        request, _ = self.asked[-1]
        return "\n".join(
            part.text
            for message in request.messages
            for part in message.parts
            if isinstance(part, Text)
        )
