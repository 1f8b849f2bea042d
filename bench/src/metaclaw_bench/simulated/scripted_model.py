"""A scripted agent as a simulated model: it works in a workspace of its own, and says what changed
there as calls to be made.

So the same scripts whose scores are known in advance go through agent, tools, proxy, runner and
scorer together."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from metaclaw_bench.agent.direct import with_files
from metaclaw_bench.questions import Benchmark, Day, Round
from metaclaw_bench.simulated.model import Call, Prompt, Purpose, Said, Thought, last_words, said
from metaclaw_bench.simulated.scripted import Policy
from metaclaw_bench.workspaces import lay_out

_PASS = '{"outcome": "pass", "score": 1, "reason": "a scripted agent is not judged"}'
_NOTHING = '{"skills": []}'


@dataclass(frozen=True, slots=True)
class _Acted:
    text: str
    files: dict[str, str]


class Acting:
    """A `SimulatedModel` for a benchmark in the published form. Shadow workspaces lie below `room`,
    a day each.

    Rounds must come in their order, as they do in a day; one that comes once more is answered as it
    was."""

    def __init__(self, benchmark: Benchmark, policy: Policy, room: Path) -> None:
        self._benchmark = benchmark
        self._policy = policy
        self._room = room
        self._acted: dict[tuple[str, str], _Acted] = {}

    def answer(self, prompt: Prompt) -> Thought:
        """What the script does, as calls first where there are tools, and as words then."""
        if prompt.purpose in (Purpose.JUDGE, Purpose.EVOLVE):
            return Said(_PASS if prompt.purpose is Purpose.JUDGE else _NOTHING)
        spoken = last_words(prompt)
        found = None if spoken is None else self._asked(prompt, spoken[1])
        if spoken is None or found is None:
            return Said("Understood.")
        acted = self._act(*found)
        if "write" not in prompt.tools:
            return Said(with_files(acted.text, acted.files))
        if acted.files and not any(message.calls for message in prompt.messages[spoken[0] :]):
            return Said(
                "",
                tuple(
                    Call("write", {"path": path, "content": text})
                    for path, text in acted.files.items()
                ),
            )
        return Said(acted.text)

    def _asked(self, prompt: Prompt, message: str) -> tuple[Day, Round] | None:
        """Which round a message asks for. Days are told apart by how they begin: questions may come
        twice.
        """
        heard = "\n\n".join(map(said, prompt.messages))
        days = [
            day
            for day in self._benchmark.days
            if all(one.text in heard for one in day.opening if one.role == "user")
        ]
        found = [
            (day, one)
            for day in days
            for one in day.rounds
            if message == one.question or message.endswith(f"\n\n{one.question}")
        ]
        return max(found, key=lambda pair: len(pair[1].question), default=None)

    def _act(self, day: Day, asked: Round) -> _Acted:
        known = self._acted.get((day.id, asked.id))
        if known is not None:
            return known
        workspace = self._room / day.id
        if asked is day.rounds[0]:
            shutil.rmtree(workspace, ignore_errors=True)
            lay_out(self._benchmark, day, workspace)
        before = _texts(workspace)
        text = self._policy.act(day, asked, workspace)
        changed = {path: now for path, now in _texts(workspace).items() if before.get(path) != now}
        self._acted[day.id, asked.id] = _Acted(text, changed)
        return self._acted[day.id, asked.id]


def _texts(workspace: Path) -> dict[str, str]:
    files = (path for path in sorted(workspace.rglob("*")) if path.is_file())
    return {
        path.relative_to(workspace).as_posix(): path.read_text("utf-8", "replace") for path in files
    }
