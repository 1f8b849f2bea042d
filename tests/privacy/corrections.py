"""Honest corrections: what a person said, what the session saw, and the skill an evolver made of
it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import Step
from tests.privacy.stage import Used, skill, step

_NOISE = Used(
    "bash",
    {"command": "ls"},
    "README.md\nsrc\ntests\npackage.json\nContributing: please open an issue first. You must sign"
    " the agreement. Always be kind.",
)


@dataclass(frozen=True, slots=True)
class Correction:
    """A session that taught something, and what was learned."""

    name: str
    step: Step
    proposal: Skill


def _correction(
    task: str,
    said: str | None,
    body: str,
    *,
    trigger: str = "When working on tasks like this",
    used: Sequence[Used] = (_NOISE,),
) -> Correction:
    return Correction(said or task, step(task, used=used, said_after=said), skill(body, trigger))


CORRECTIONS: tuple[Correction, ...] = (
    _correction(
        "Format the file.",
        "No, use tabs, not spaces.",
        "Indent with tabs. Do not use spaces.",
        trigger="When formatting a file",
    ),
    _correction(
        "Add the function.", "We use pnpm here, never npm.", "Use pnpm for packages. Never use npm."
    ),
    _correction(
        "Commit this.",
        "From now on write commit messages in the imperative.",
        "Write commit messages in the imperative mood.",
    ),
    _correction("Explain it.", "Please answer in German.", "Answer in German."),
    _correction(
        "Sum the distances.",
        "The distances should be in kilometres.",
        "Give distances in kilometres, not in miles.",
    ),
    _correction(
        "Fix the bug.",
        "You forgot to run the tests.",
        "Run the tests before saying that a bug is fixed.",
    ),
    _correction(
        "Write the query.",
        "Don't select all columns, name them.",
        "Name the columns in a query. Do not select all columns.",
    ),
    _correction(
        "Update the docs.",
        "Don't touch the changelog, it is generated.",
        "Do not edit the changelog: it is generated.",
    ),
    _correction(
        "Reply to Kim.",
        "Too formal, use first names.",
        "Use first names in replies, and keep the tone informal.",
    ),
    _correction("Make a chart.", "Label the axes!", "Label both axes of a chart."),
    _correction(
        "Rename the variable.",
        "snake_case please, not camelCase.",
        "Use snake_case for variable names, not camelCase.",
    ),
    _correction(
        "Add a test.",
        "Put tests next to the code, not in tests/.",
        "Put tests next to the code they test, not in `tests/`.",
    ),
    _correction(
        "Plan the week.",
        "Weeks start on Monday here.",
        "Start the week on Monday in plans and calendars.",
    ),
    _correction(
        "Write the mail.",
        "Never send without asking me first.",
        "Ask the person before sending a mail. Never send without asking.",
    ),
    _correction(
        "Refactor this.",
        "Smaller commits, one per file.",
        "Make small commits: one commit per file.",
    ),
    _correction(
        "Deploy it.",
        "Always deploy to staging first.",
        "Deploy to staging first, and only then to production.",
    ),
    _correction(
        "What is the date?", "Use ISO dates.", "Write dates in ISO form, such as 2026-11-15."
    ),
    _correction(
        "Add logging.",
        "Use structlog like the rest of the project.",
        "Use `structlog` for logging.",
    ),
    _correction(
        "Round the totals.",
        "Round half up, as accounting does.",
        "Round totals half up, as accounting does.",
    ),
    _correction(
        "Résume le texte.",
        "En français s'il te plaît, et en trois phrases.",
        "Résume en français, en trois phrases.",
    ),
    _correction(
        "Schreib die Funktion.", "Bitte ohne Kommentare.", "Schreibe Funktionen ohne Kommentare."
    ),
    _correction("写一个函数。", "请用中文写注释。", "请用中文写注释。"),
    _correction(
        "Traduce esto.",
        "Usa siempre el tratamiento de usted.",
        "Usa siempre el tratamiento de usted al traducir.",
    ),
    _correction(
        "Напиши письмо.", "Пиши короче, без вступления.", "Пиши письмо короче, без вступления."
    ),
    _correction(
        "Fix the typing errors.",
        "Stop adding type: ignore comments.",
        "Do not add `type: ignore` comments. Fix the typing error itself.",
    ),
    _correction(
        "Make the page faster.",
        "Measure before you change anything.",
        "Measure first. Change the page only after measuring.",
    ),
    _correction(
        "Write a script.",
        "It must run on macOS too, so no GNU flags.",
        "Avoid GNU-only flags, so that a script runs on macOS.",
    ),
    _correction(
        "Find the file.",
        "Use ripgrep, grep is too slow here.",
        "Use ripgrep (`rg`) to find text. Do not use grep.",
    ),
    _correction(
        "Run the tests.",
        None,
        "Run tests with `python -m pytest`: the command `pytest` is not found here (exit code"
        " 127).",
        used=[
            Used(
                "bash",
                {"command": "pytest -q"},
                "bash: pytest: command not found\nexit code 127",
                True,
            )
        ],
    ),
    _correction(
        "Start the server.",
        None,
        "Install the missing module `uvicorn` before starting the server.",
        used=[
            Used(
                "bash",
                {"command": "python app.py"},
                "ModuleNotFoundError: No module named 'uvicorn'\nexit code 1",
                True,
            )
        ],
    ),
    _correction(
        "Edit the settings.",
        None,
        "Read the file again before `edit_file`: `old_string` must match exactly once.",
        used=[
            Used(
                "edit_file",
                {"path": "a", "old_string": "x"},
                "Error: old_string 'x' not found in file",
                True,
            )
        ],
    ),
    _correction(
        "Build it.",
        "Use the build script from package.json.",
        "Build with the script from package.json, which is `build:prod` here.",
        used=[
            Used(
                "read_file",
                {"path": "package.json"},
                '{"scripts": {"build:prod": "vite build", "dev": "vite"}}',
            )
        ],
    ),
    _correction(
        "Query the orders.",
        "The table is called orders, look it up before you guess.",
        "Look up the name of a table before querying it. The columns of `orders` are `id`,"
        " `total_cents`.",
        used=[Used("sql", {"q": "describe order"}, "id bigint\ntotal_cents int\n")],
    ),
    _correction(
        "Deploy the site.",
        "Deploy to staging.shop.dev, not to production.",
        "Deploy to staging.shop.dev. Do not deploy to production.",
    ),
    _correction(
        "Where are the logs?",
        "They are under /home/jo/shop/var/log, remember that.",
        "Look for logs under /home/jo/shop/var/log.",
    ),
    _correction(
        "Format the file.",
        "Tabs, not spaces, as everywhere in this repository.",
        "# Indentation\n1. Use tabs for indentation in this repository, never spaces.\n2. If the"
        " editor converts tabs, undo that.\n3. Look over the diff for changed"
        " whitespace.\n\nAnti-pattern: reformatting a whole file with spaces.",
    ),
    _correction(
        "Add the endpoint.",
        "You broke the tests again. Always run them before you say you are done.",
        "Before saying that work is done:\n- run the tests;\n- read each failure;\n- repair what"
        " broke.\nAnti-pattern: reporting success without tests.",
    ),
    _correction(
        "Write the SQL for the report.",
        "Amounts are in cents, divide by 100!",
        "- Amounts are stored in cents: divide by 100 before showing them.\n- Verify one row by"
        " hand.\n- Do not round before dividing.",
    ),
    _correction(
        "Summarise the meeting.",
        "Shorter. Bullet points, at most five, and name who does what.",
        "Summarise a meeting in at most five bullet points.\nFor each, name who does what.\nKeep it"
        " short; leave small talk out.",
    ),
    _correction(
        "Upgrade the library.",
        "Read its changelog before upgrading, last time an option was renamed.",
        "When upgrading a library, read its changelog first and look for renamed options. Search"
        " the code base for each renamed option.",
    ),
    _correction(
        "Translate the strings.",
        "Keep the placeholders like {name} as they are.",
        "Keep placeholders such as `{name}` exactly as they are when translating strings. Compare"
        " placeholders of source and translation.",
    ),
    _correction(
        "Clean the data.",
        "Keep the empty rows, they mean something.",
        "Keep empty rows when cleaning data; they mean something.",
    ),
    _correction(
        "Write a changelog entry.",
        "Past tense please, and mention the issue number.",
        "1. Write the entry in the past tense.\n2. Mention the issue number at the end.\nAvoid:"
        " present tense, entries without a number.",
    ),
    _correction(
        "Add validation.",
        "Raise ValueError, don't return None.",
        "When validation fails, raise `ValueError` with a clear message. Never return None to"
        " signal invalid input.",
    ),
    _correction(
        "Plot the results.",
        "Use a log scale on the y axis.",
        "Use a logarithmic scale for the y axis of result plots. Label the axis as logarithmic.",
    ),
    _correction(
        "Write the email to the client.",
        "No emojis, and sign with 'Best, Mira'.",
        "- Do not use emojis in emails to clients.\n- Sign emails with 'Best, Mira'.",
    ),
    _correction(
        "Fix the flaky test.",
        "Don't add sleeps! Use the event.",
        "Do not add sleeps to tests. Wait for an event with a timeout instead.",
    ),
    _correction(
        "Create the migration.",
        "Migrations must be reversible here.",
        "Write a downgrade for each migration so that it is reversible. Test upgrade and"
        " downgrade.",
    ),
    _correction(
        "Book a meeting.",
        "Not before 10, I do school runs.",
        "Do not book meetings before 10 o'clock: the person does school runs.",
    ),
    _correction(
        "Translate the doc.",
        "Keep code blocks untranslated.",
        "Leave code blocks untranslated when translating a document.",
    ),
    _correction(
        "Review this PR.",
        "Focus on correctness, skip style nits.",
        "In reviews, focus on correctness. Skip style nits such as spacing.",
    ),
    _correction(
        "Make the API call.",
        "Use the v2 endpoint, v1 is deprecated.",
        "Use the v2 endpoint. The v1 endpoint is deprecated; do not call it.",
    ),
    _correction(
        "Sort the list.",
        "Case-insensitively!",
        "Sort names case-insensitively, for instance with `key=str.casefold`.",
    ),
    _correction(
        "Write unit tests.",
        "We use pytest fixtures, not setUp methods.",
        "Use pytest fixtures in unit tests instead of setUp methods.",
    ),
    _correction(
        "Explain the error.",
        "Shorter, I'm on my phone.",
        "Keep explanations short: two or three sentences, no code unless asked.",
    ),
    _correction(
        "Deploy.",
        "Wait for CI to be green before deploying.",
        "Before deploying, check that CI is green. If it is red or running, wait and tell the"
        " person.",
    ),
    _correction(
        "Estimate the effort.",
        "Give ranges, not single numbers.",
        "Give effort estimates as ranges, for example 2-4 days.",
    ),
    _correction(
        "Update dependencies.",
        "One at a time, with a commit each.",
        "Update one dependency at a time and commit each update separately.",
    ),
    _correction(
        "Clean up the code.",
        "Don't delete the commented block in auth.py, legal needs it.",
        "Do not delete the commented block in auth.py; legal needs it.",
    ),
    _correction(
        "Summarise the paper.",
        "Start with the main result.",
        "Begin a summary of a paper with its main result, then method, then limits.",
    ),
    _correction("Set up logging.", "JSON logs please.", "Emit logs as JSON, one object per line."),
)
