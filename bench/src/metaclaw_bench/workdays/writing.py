"""A generated benchmark on disk, in the published layout: any reader and runner of that can use it.

all_tests.json, all_tests_metaclaw.json   the index, for asking a provider or a proxy
eval/<day>/questions.json                 the rounds
eval/scripts/                             the checker and the rules it asks
workspaces/shared/                        the persona, and each day's files in a folder of its own
openclaw_state/, openclaw_cfg/            what each day begins with, and settings of the published runner
keys.jsonl                                reference answers and near misses, for tests; no agent ever sees them
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from metaclaw.plugin import ConfigError
from metaclaw_bench.questions import ChoiceCheck, FileCheck, Round
from metaclaw_bench.workdays import checker
from metaclaw_bench.workdays.model import Answer, Item, Workday, Workdays
from metaclaw_bench.workdays.openclaw import config_of, transcript_of
from metaclaw_bench.workdays.plans import working_day

AGENT: Final = "metaclaw_agent"
Json = Mapping[str, "Json"] | list["Json"] | tuple["Json", ...] | str | int | float | bool | None


def write(workdays: Workdays, folder: Path) -> Path:
    """Writes the benchmark and gives its folder back. Writing the same again changes nothing; over
    anything else it is refused.
    """
    for name, text in _files(workdays):
        path = folder / name
        if path.is_file() and path.read_bytes() != text.encode():
            raise ConfigError(
                f"{path}: there is another benchmark in this folder. Name a new folder, or delete"
                " this one first."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return folder


def _files(workdays: Workdays) -> Iterator[tuple[str, str]]:
    # The index comes first: it is what tells one benchmark from another.
    yield "all_tests.json", _index(workdays, "openclaw.json")
    yield "all_tests_metaclaw.json", _index(workdays, "metaclaw.json")
    yield "openclaw_cfg/openclaw.json", config_of("${BENCHMARK_BASE_URL}", AGENT)
    yield (
        "openclaw_cfg/metaclaw.json",
        config_of("http://127.0.0.1:${METACLAW_PROXY_PORT}/v1", AGENT),
    )
    for source in (Path(checker.__file__), *(rule.source for rule in workdays.rules)):
        yield f"eval/scripts/{source.name}", source.read_text(encoding="utf-8")
    for name, text in workdays.shared.items():
        yield f"workspaces/shared/{name}", text
    for workday in workdays.days:
        day = workday.day
        yield (
            f"eval/{day.id}/questions.json",
            _text(
                {
                    "id": day.id,
                    "desc": day.title,
                    "rounds": [_round(item) for item in workday.items],
                }
            ),
        )
        yield (
            f"openclaw_state/agents/{AGENT}/sessions/{day.session}.jsonl",
            transcript_of(day, working_day(workdays.first_date, workday.number)),
        )
        for name, text in workday.begins_with.items():
            yield f"workspaces/shared/{name}", text
    yield (
        "keys.jsonl",
        "".join(_key(workday, item) for workday in workdays.days for item in workday.items),
    )


def _index(workdays: Workdays, config: str) -> str:
    here = f"./benchmark/data/{workdays.name}"
    return _text(
        {
            "name": f"{workdays.name}, seed {workdays.seed}",
            "openclaw_state_dir": f"{here}/openclaw_state",
            "openclaw_config_file": f"{here}/openclaw_cfg/{config}",
            "eval_dir": f"{here}/eval",
            "workspace_src": f"{here}/workspaces/shared",
            "test": [
                {
                    "id": day.day.id,
                    "desc": day.day.title,
                    "agent": AGENT,
                    "session": day.day.session,
                    "eval": day.day.id,
                    "arc": day.user,
                    "preference_tags": day.day.tags,
                }
                for day in workdays.days
            ],
        }
    )


def _round(item: Item) -> Json:
    round_, check = item.round, item.round.check
    shared: dict[str, Json] = {"id": round_.id, "question": round_.question, "update": []}
    if isinstance(check, FileCheck):
        said = {"correct": round_.feedback.correct, "incorrect": round_.feedback.incorrect}
        return {
            **shared,
            "type": "file_check",
            "feedback": said,
            "eval": {"command": check.command, "expect_exit": check.expect_exit},
        }
    options = dict(round_.feedback.options)
    asked: dict[str, Json] = {"options": _options(round_, check), "answer": [*sorted(check.answer)]}
    return {
        **shared,
        "type": "multi_choice",
        "feedback": {"correct": round_.feedback.correct, "options": options},
        "eval": asked,
    }


def _options(round_: Round, check: ChoiceCheck) -> dict[str, str]:
    lines = round_.question.split("\n")
    return {
        letter: next(line[3:] for line in lines if line.startswith(f"{letter}. "))
        for letter in check.options
    }


def _key(workday: Workday, item: Item) -> str:
    key: dict[str, Json] = {
        "day": workday.day.id,
        "round": item.round.id,
        "user": workday.user,
        "language": workday.language,
        "rules": item.rules,
        "reference": _answer(item.reference),
        "near_misses": [_answer(miss) for miss in item.near_misses],
    }
    return json.dumps(key, ensure_ascii=False) + "\n"


def _answer(answer: Answer) -> Json:
    return {"text": answer.text, "files": dict(answer.files)}


def _text(record: Json) -> str:
    return json.dumps(record, ensure_ascii=False, indent=1) + "\n"
