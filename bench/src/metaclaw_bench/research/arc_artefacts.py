"""What a run of AutoResearchClaw left behind, read without guessing: how far it came, how often it
was led back, and why it ended.

Every stage leaves `stage-NN/decision.json` with its status; a folder whose stage is done again
becomes `stage-NN_vK`. At its end a run leaves `pipeline_summary.json`; before that there is
`checkpoint.json`. A decision that led back stands in `decision_history.json`, which is missing
where none did. What none of these says, in the words we know, is unknown and not zero."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeGuard

from metaclaw_bench.json_types import Json
from metaclaw_bench.research.metrics import MOST_REFINES
from metaclaw_bench.research.records import Ending
from metaclaw_bench.research.stages import LAST_STAGE

_DONE: Final = "done"
# Those of a stage that was tried and came to nothing, and those of one that is not over.
_NOT_GOOD_ENOUGH: Final = ("failed", "paused", "rejected")
_NOT_OVER: Final = ("blocked_approval", "no_stages")
_LED_BACK: Final = ("refine", "pivot")
_FOLDER: Final = re.compile(r"stage-(\d\d)(?:_v\d+)?")
_TAIL_CHARS: Final = 400


@dataclass(frozen=True, slots=True)
class Left:
    """What a run left behind; None is what its files do not say. `why` tells why it ended where it
    did not reach its end.
    """

    completed: int | None
    refines: int | None
    ending: Ending
    why: str = ""


def read_artefacts(folder: Path, status: int | None, log: Path) -> Left:
    """What a run's files say. `status` is how the program ended, None where it took too long."""
    refines, doubt = _refines(folder)
    if not (folder / "pipeline_summary.json").exists():
        why = (
            "it took too long"
            if status is None
            else f"it ended with status {status} and left no pipeline_summary.json"
        )
        return Left(
            _reached(folder),
            refines,
            "broken",
            _joined(f"{why}; the end of its output: {_tail(log)}", doubt),
        )
    completed, ending, why = _summarised(folder)
    return Left(completed, refines, ending, _joined(why, doubt))


def _summarised(folder: Path) -> tuple[int | None, Ending, str]:
    """What the summary of a run that came to its own end says, together with what the stages wrote
    down themselves.
    """
    summary = _json_in(folder / "pipeline_summary.json")
    final, status = (
        (summary.get("final_stage"), summary.get("final_status"))
        if isinstance(summary, dict)
        else (None, None)
    )
    if not _is_count(final) or status not in (_DONE, *_NOT_GOOD_ENOUGH, *_NOT_OVER):
        return (
            None,
            "broken",
            (
                f"pipeline_summary.json is of no kind known here: final_stage {final!r},"
                f" final_status {status!r}"
            ),
        )
    completed = _number_of(_done_in(folder) | set(range(1, final + (status == _DONE))))
    said = f"final stage {final}: {status}"
    if completed == LAST_STAGE:
        return completed, "completed", "" if status == _DONE else said
    if status == _DONE:
        return (
            completed,
            "broken",
            (
                f"it stopped by itself behind stage {final}, which was done: interrupted, or out of"
                " a budget"
            ),
        )
    return completed, "broken" if status in _NOT_OVER else "failed", said


def _reached(folder: Path) -> int | None:
    """How many stages a run did that did not come to its own end."""
    done = _done_in(folder)
    checkpoint = _json_in(folder / "checkpoint.json")
    last = checkpoint.get("last_completed_stage") if isinstance(checkpoint, dict) else None
    if _is_count(last):
        done |= set(range(1, last + 1))
    began = any(_FOLDER.fullmatch(one.name) for one in folder.glob("stage-*"))
    return _number_of(done) if done or not began else None


def _done_in(folder: Path) -> set[int]:
    """The stages that wrote down that they were done, in whichever round."""
    done: set[int] = set()
    for one in folder.glob("stage-*"):
        found, meta = _FOLDER.fullmatch(one.name), _json_in(one / "decision.json")
        if found and isinstance(meta, dict) and meta.get("status") == _DONE:
            done.add(int(found[1]))
    return done


def _refines(folder: Path) -> tuple[int | None, str]:
    """How many decisions led back; None, and why, where the history is of a kind we do not know."""
    path = folder / "decision_history.json"
    if not path.exists():
        return 0, ""
    history = _json_in(path)
    made = (
        [one.get("decision") if isinstance(one, dict) else None for one in history]
        if isinstance(history, list)
        else [None]
    )
    if (
        not all(isinstance(one, str) and one.lower() in _LED_BACK for one in made)
        or len(made) > MOST_REFINES
    ):
        return None, f"decision_history.json is of no kind known here: {made}"
    return len(made), ""


def _number_of(stages: set[int]) -> int:
    """A stage that is done again counts once, and what a newer version does behind the last one not
    at all.
    """
    return len({one for one in stages if 1 <= one <= LAST_STAGE})


def _is_count(value: Json) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _joined(*words: str) -> str:
    return "; ".join(filter(None, words))


def _json_in(path: Path) -> Json:
    try:
        value: Json = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value


def _tail(log: Path) -> str:
    return log.read_text("utf-8", "replace")[-_TAIL_CHARS:] if log.is_file() else ""
