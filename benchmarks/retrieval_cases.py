"""Hand-written skills and requests for the retrieval benchmark: who should be found by what, and
what should find nothing.
"""

from typing import NamedTuple


class Case(NamedTuple):
    """A skill, and requests by people who need it but do not know its name."""

    name: str
    trigger: str
    body: str
    queries: tuple[str, ...]


CASES: tuple[Case, ...] = (
    Case(
        "iso-timestamps-with-offset",
        "When writing dates or times into JSON, CSV or log files: use full ISO 8601 timestamps with"
        " the local offset",
        "Write `2026-03-16T09:30:00+08:00`, never `09:30` or a bare date. Keep the T separator."
        " Never use Z unless the source is UTC. Due dates without a time become 18:00 local. Check"
        " every field whose name ends in `_at`, `_time` or `_date`.",
        (
            (
                "Turn the standup notes into standup.json with meeting_time, attendees and a"
                " due_date for each action item"
            ),
            "what format should the timestamps in the exported csv have?",
            (
                "The created_at dates in incidents.json look wrong, can you repair the times so"
                " that they carry a timezone offset"
            ),
        ),
    ),
    Case(
        "postgres-migrations-without-locks",
        "When changing a PostgreSQL schema in production: adding columns, indexes or constraints on"
        " big tables",
        "Set `lock_timeout = '3s'` first. Create indexes CONCURRENTLY outside a transaction. Add a"
        " NOT NULL in three steps: a CHECK constraint NOT VALID, VALIDATE CONSTRAINT, then SET NOT"
        " NULL. Back-fill in batches of 5,000 rows. Never rewrite a table with ALTER TYPE.",
        (
            (
                "write an alembic migration that adds an index on orders.customer_id, the table has"
                " 80 million rows in postgres"
            ),
            (
                "we need a new not null column on the users table in production, how do we roll"
                " that out without blocking writes"
            ),
            (
                "ALTER TABLE hangs on our postgres primary and blocks everything, make the"
                " migration safe"
            ),
        ),
    ),
    Case(
        "git-commit-messages",
        "When committing to git: how commit messages are written in this team",
        "Subject in the imperative, at most 60 characters, no full stop. A blank line, then why the"
        " change was needed. Reference the ticket as `Refs: ABC-123` on the last line. Never"
        " mention the tool that wrote it. One logical change per commit.",
        (
            "commit this please",
            "stage everything and write a commit message for the auth refactoring",
            "squash my last three git commits into one with a good message",
        ),
    ),
    Case(
        "docker-images-small-and-pinned",
        "When writing or changing a Dockerfile: base images, layers, users",
        "Pin base images by digest. Multi-stage builds; the last stage is `slim`. Copy the lock"
        " file before the sources so that the layer cache works. Run as a user with no root rights."
        " No secrets in ARG or ENV. Add a HEALTHCHECK.",
        (
            "our docker image is 2.1 GB, shrink it",
            "Write a Dockerfile for this FastAPI service",
            "why does every container build reinstall all pip packages? fix the layers",
        ),
    ),
    Case(
        "customer-refund-tone",
        "When answering a customer who asks for a refund or complains about a delivery",
        "Begin with the customer's name and one sentence that shows we understood. Say what we do"
        " and by when. Never argue about fault. Refunds under 50 EUR are granted at once; above"
        " that say that a colleague answers within one working day. Sign with the support team.",
        (
            "Draft a reply to Mrs. Keller, her parcel arrived broken and she wants her money back",
            "customer is angry that the delivery is two weeks late, write an answer",
            "answer this refund request: order 88123, 34 euros, item never arrived",
        ),
    ),
    Case(
        "pytest-fixtures-over-mocks",
        "When writing Python tests: prefer real parts and pytest fixtures to mocks",
        "Use tmp_path and real SQLite. No unittest.mock. Parametrise instead of looping. Test names"
        " are sentences. A test that cannot fail is deleted. Time is injected, nothing sleeps.",
        (
            "add unit tests for the parser module",
            "write pytest tests for the invoice calculator, including edge cases",
            "these python tests patch everything with mock, rewrite them",
        ),
    ),
    Case(
        "kubernetes-rollouts",
        "When deploying to Kubernetes: rollouts, probes, resource limits and rollbacks with kubectl"
        " or Helm",
        "Set requests equal to limits for memory. Readiness probe on /readyz, liveness on /healthz"
        " with a failure threshold of 3. maxUnavailable 0. Watch `kubectl rollout status` for five"
        " minutes; on failure `kubectl rollout undo`. Never use the latest tag.",
        (
            "the pods keep getting OOMKilled after the helm upgrade",
            "deploy version 2.4.1 to the k8s staging cluster and roll back if the probes fail",
            "write a kubernetes deployment manifest for the worker",
        ),
    ),
    Case(
        "sql-queries-for-the-warehouse",
        "When writing analytics SQL for the BigQuery warehouse: partitions, cost and naming",
        "Always filter on the partition column `_date`. Never SELECT *. Use CTEs named after what"
        " they hold. Estimate bytes with a dry run and stop above 100 GB. Money is in integer"
        " cents. Join users on `user_key`, not on e-mail.",
        (
            "How many active users did we have per week last quarter? query bigquery",
            "write the sql for monthly revenue by country from the warehouse",
            "this analytics query scans 4 TB, make it cheaper",
        ),
    ),
    Case(
        "react-forms-accessible",
        "When building forms in React: labels, validation messages and keyboard use",
        "Every input has a label tied by id. Errors are announced with aria-live and linked by"
        " aria-describedby. Validate on blur, not on each keystroke. The submit button is never"
        " disabled; it explains what is missing. Tab order follows the page.",
        (
            "build a sign-up form component in react with email and password validation",
            "screen reader users cannot tell which field of the form failed, fix accessibility",
            "add inline validation messages to the checkout form (tsx)",
        ),
    ),
    Case(
        "meeting-minutes-house-style",
        "When writing up minutes or notes of a meeting from a transcript or raw notes",
        "Decisions first, then action items as a table with owner and date, then discussion in at"
        " most ten lines. Names in full once, initials after that. No verbatim quotes. Anything"
        " that nobody owns is marked OPEN.",
        (
            "here is the transcript of our product sync, write the minutes",
            "Summarise the raw meeting notes in notes.txt and list the action items with owners",
            "make meeting minutes from this recording transcript",
        ),
    ),
    Case(
        "rate-limited-apis",
        "When calling third-party HTTP APIs that answer 429 or have rate limits: retries and"
        " back-off",
        "Honour Retry-After. Exponential back-off with full jitter, at most five tries, only for"
        " 429, 502, 503 and 504. Never retry a POST without an idempotency key. Keep one client per"
        " process. Log the remaining quota.",
        (
            "our sync job gets http 429 from the shopify api all the time",
            "add retries with backoff to the github client",
            "the importer dies with Too Many Requests, make it respect rate limits",
        ),
    ),
    Case(
        "latex-paper-style",
        "When editing a paper in LaTeX: figures, tables, citations and cross references",
        "booktabs without vertical rules. Captions above tables and below figures. cleveref for"
        " every reference. One sentence per source line. Cite with natbib citet where the authors"
        " are the subject. No adjustments with vspace. Vector graphics only.",
        (
            "the table in section 4 of my latex paper looks ugly, clean it up",
            "convert these results to a LaTeX table for the NeurIPS submission",
            "fix the bibliography citations in main.tex",
        ),
    ),
    Case(
        "excel-financial-models",
        "When building or changing spreadsheets with financial figures in Excel or Google Sheets",
        "Inputs blue, formulas black, links to other sheets green. No numbers typed into formulas."
        " One row, one formula. Currency in thousands with one decimal. A checks sheet that must"
        " sum to zero. Name ranges that are used more than twice.",
        (
            "build an xlsx with a five year cash flow forecast",
            "the profit and loss spreadsheet does not add up, find the broken formulas",
            "Create a Google Sheets budget model for the new office",
        ),
    ),
    Case(
        "terraform-changes",
        "When changing infrastructure with Terraform: plans, state and modules",
        "Always show the plan and wait for a yes before apply. Never edit state by hand. Modules"
        " pinned to a tag. prevent_destroy on databases and buckets. Names follow env-app-resource."
        " Run fmt, validate and tflint.",
        (
            "add an s3 bucket for the reports in terraform",
            "terraform plan wants to destroy the rds instance, why",
            "refactor the infrastructure modules so that staging and prod share code (tf files)",
        ),
    ),
    Case(
        "german-formal-letters",
        "When writing letters or e-mails in German to authorities, landlords or companies",
        "Sie, never du. Date right-aligned as `16. März 2026`. Betreff line without the word"
        " Betreff. Paragraphs of three sentences. Close with `Mit freundlichen Grüßen`. No"
        " exclamation marks. Ask for a written confirmation.",
        (
            (
                "Schreibe einen Brief an meinen Vermieter wegen der kaputten Heizung (letter to the"
                " landlord in german)"
            ),
            "write a german email to the tax office asking for an extension",
            "formal cancellation letter in German for my gym contract",
        ),
    ),
    Case(
        "csv-imports-from-the-bank",
        "When importing bank statements as CSV: encodings, separators, duplicates",
        "The bank exports Windows-1252 with semicolons and decimal commas. Skip the first five"
        " lines. Detect duplicates by date, amount and purpose. Negative amounts are outgoing."
        " Never round. Keep the original line in a column named raw.",
        (
            "load umsaetze_oktober.csv from my bank account into the ledger",
            "the imported bank statement has broken umlauts and wrong amounts",
            "parse the bank CSV export and find duplicate transactions",
        ),
    ),
    Case(
        "security-fixes-are-silent",
        "When fixing a security hole or vulnerability in a dependency or in our code",
        "No details in public commit messages or issues. Work on a private branch. Add a regression"
        " test that does not contain the exploit. Ask for a CVE through the security team. Upgrade"
        " the lock file only for the affected package.",
        (
            "npm audit reports a critical vulnerability in lodash, upgrade it",
            "somebody found an XSS hole in the comment field, patch it",
            "dependabot says CVE-2026-1234 affects us",
        ),
    ),
    Case(
        "home-assistant-automations",
        "When writing Home Assistant automations, scripts or scenes in YAML",
        "Use entity ids, not device ids. mode: restart for motion lights. A condition on sun"
        " elevation instead of times. Group alias, description, id. Test with the trace view. Never"
        " automate door locks without a confirmation notification.",
        (
            "turn on the hallway lights when motion is detected after sunset, home assistant yaml",
            "my home assistant automation fires twice",
            "write an automation that lowers the thermostat when all windows are open",
        ),
    ),
    Case(
        "flaky-tests",
        "When a test fails only sometimes, or only in CI",
        "Run it 50 times under load before touching anything. Look for time, order, ports, random"
        " seeds and shared state, in this order. Never add a retry or a longer sleep. Write down"
        " which seed failed. Fix or quarantine within a day.",
        (
            "test_checkout is flaky on ci, find out why",
            "the integration tests pass locally but fail every now and then in the pipeline",
            "sometimes this test times out, sometimes it is green",
        ),
    ),
    Case(
        "swift-concurrency",
        "When writing Swift code with async/await, actors or Combine for iOS apps",
        "Views are MainActor. No Task.detached without a reason in a comment. Cancel tasks in"
        " onDisappear. Prefer AsyncStream to Combine in new code. Sendable warnings are errors."
        " Never block with a semaphore.",
        (
            (
                "The iOS app freezes when the feed refreshes, move the loading off the main thread"
                " (Swift)"
            ),
            "rewrite this completion handler code to async await in swift",
            "data race warning about a non-sendable type captured in an actor",
        ),
    ),
    Case(
        "slides-for-executives",
        "When preparing slides or a deck for management or the board",
        "One message per slide, as a full sentence in the title. At most five slides. Numbers with"
        " their change against last quarter. No agenda slide. The ask comes on slide one. Font not"
        " below 18 points. Sources in the notes.",
        (
            "make a powerpoint for the board meeting about the churn numbers",
            "turn this report into a slide deck for our management",
            "prepare three slides on the Q3 results for the executives",
        ),
    ),
    Case(
        "logging-without-personal-data",
        "When adding log statements or error reports: no personal data, structured fields",
        "key=value pairs, snake_case keys. Never log e-mail addresses, names, tokens or whole"
        " request bodies; log the user id. INFO is for the owner after a day. Exceptions with stack"
        " trace once, where they are handled.",
        (
            "add logging to the payment service so we can debug the failures",
            "the logs contain e-mail addresses of customers, clean that up",
            "introduce structured log statements in worker.py",
        ),
    ),
    Case(
        "travel-booking-preferences",
        "When planning trips or booking flights, trains and hotels",
        "Train if under five hours. Aisle seat. No connection under 50 minutes. Hotels within a 15"
        " minute walk of the meeting, with a desk, under 160 a night. Always list the cancellation"
        " deadline. Arrive the evening before talks.",
        (
            "find me a flight to Lisbon for the conference on the 12th, back on the 14th",
            "book a hotel near the Munich office for two nights",
            "plan my trip to Paris next Tuesday",
        ),
    ),
    Case(
        "rust-error-handling",
        "When writing Rust: errors, unwrap and crates for error types",
        "thiserror in libraries, anyhow in binaries. No unwrap outside tests; expect with the"
        " reason why it cannot fail. Context on every question mark that crosses a module. Errors"
        " are lower-case without a full stop.",
        (
            "replace the unwrap calls in src/parser.rs with proper errors",
            "design the error type for this rust crate",
            "cargo clippy complains about result_large_err",
        ),
    ),
    Case(
        "chinese-weekly-reports",
        "写周报或工作总结时使用：先写结论，再写数据，最后写下周计划",
        "结论不超过三句话。数据用表格，和上周对比。下周计划按优先级排序，每条写明负责人和截止日期。"
        "不要使用“赋能”“抓手”等空话。",
        (
            "请帮我写这周的周报",
            "根据这些工作记录写一份工作总结",
            "帮我把本周数据整理成周报，附上下周计划",
        ),
    ),
    Case(
        "japanese-business-mail",
        "取引先へのビジネスメールを日本語で書くとき：敬語、件名、署名",
        "件名は用件がわかるように書く。一文は短く。「お世話になっております」で始め、"
        "「よろしくお願いいたします」で終える。二重敬語を避ける。返信期限を明記する。",
        (
            "取引先に打ち合わせ日程変更のビジネスメールを書いて",
            "お客様へのお詫びメールの件名と敬語を直して",
            "見積書の返信期限を催促するメールを日本語で",
        ),
    ),
    Case(
        "backup-before-bulk-edits",
        "Before deleting, moving or renaming many files or rows at once",
        "Copy what will change to backups/DATE first and print how much it is. Do a dry run that"
        " lists the first twenty and the count. Ask. Never use a wildcard on an unexpanded"
        " variable. Prefer the bin over rm.",
        (
            "delete all the temporary photos older than a year on the nas",
            "rename every file in ~/Downloads to lower case",
            "remove the duplicate rows from the contacts table",
        ),
    ),
    Case(
        "podcast-show-notes",
        "When writing show notes, titles or chapter marks for podcast episodes",
        "Title under 60 characters, without the guest's name first. Three sentences of teaser."
        " Chapters every five to eight minutes with a verb. Links in the order of mention."
        " Transcript corrected for names, not for style.",
        (
            "write the show notes for episode 42",
            "chapter markers for this podcast transcript please",
            "suggest five titles for the new podcast episode with Maria about sourdough",
        ),
    ),
    Case(
        "openapi-first",
        "When adding or changing REST endpoints: the OpenAPI file comes first",
        "Edit openapi.yaml, run the generator, then write the handler. Plural nouns, kebab-case"
        " paths, camelCase fields. Errors as problem+json. Lists are paged by cursor. A breaking"
        " change needs a new version prefix.",
        (
            "add an endpoint to list the invoices of a customer",
            "our REST api returns errors in five different shapes, unify them",
            "generate the openapi spec for the orders service and add pagination",
        ),
    ),
    Case(
        "memory-leaks-in-node",
        "When a Node.js process grows in memory or crashes with heap out of memory",
        "Take two heap snapshots ten minutes apart and compare by retained size. Look for"
        " listeners, timers, caches without bounds and closures over requests. Never just raise"
        " max-old-space-size. Add a limit and a metric to each cache.",
        (
            "node service memory keeps growing until it is killed, find the leak",
            "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
            "why does our express server need 4 gigabytes of ram after a day",
        ),
    ),
)

UNRELATED: tuple[str, ...] = (
    "what is the capital of Australia?",
    "tell me a joke about penguins",
    "good morning! how are you doing today",
    "who won the world cup in 1998",
    "translate 'where is the train station' to Italian",
    "explain quantum entanglement like I'm five",
    "recommend three science fiction novels",
    "what's 17% of 2340",
    "my sourdough does not rise, what am I doing wrong?",
    "write a haiku about autumn rain",
    "how long do I boil a soft egg",
    "is it safe to take ibuprofen with coffee",
    "name ideas for a grey cat",
    "play some jazz in the living room",
    "remind me to water the plants on friday",
    "how tall is mount kilimanjaro",
    "draw an ascii art dragon",
    "what does the idiom break a leg mean",
    "continue",
    "yes, go ahead",
    "thanks, that works!",
    "no, the other one",
    "say hello and run one command",
    "run it",
    "second prompt please",
    "what can you do?",
    "list the files in this directory",
    "what is in this folder?",
    "open the file and read the first ten lines",
    "can you explain this code",
    "fix the bug",
    "it still does not work",
    "try again with a different approach",
    "which model are you",
    "make it faster",
    "refactor this function to be more readable",
    "why is the sky blue",
    "what time is it in Tokyo",
    "compare stoicism and epicureanism",
    "sing me a lullaby",
    "how do I tie a bowline knot",
    "find the derivative of x^3 sin(x)",
    "prove that the square root of two is irrational",
    "implement quicksort in haskell",
    "write a bash one-liner that counts words",
    "convert 5 miles to kilometers",
    "what's the difference between a crocodile and an alligator",
    "summarize the plot of Hamlet",
    "who painted the girl with a pearl earring",
    "plan a birthday party for a seven year old",
    "give me a workout for sore shoulders",
    "how do vaccines work",
    "is my cactus dying? the tips are brown",
    "explain the rules of cricket",
    "write a short story about a lighthouse keeper",
    "what is the airspeed velocity of an unladen swallow",
    "best way to remove red wine from a carpet",
    "should I refinance my mortgage this year",
    "what are the symptoms of iron deficiency",
    "simulate a game of tic tac toe with me",
    "solve this sudoku",
    "write a regex that matches ipv4 addresses",
    "center a div with css flexbox",
    "why does my vim show ^M at the end of lines",
    "set up a wireguard tunnel between two routers",
    "explain how a bloom filter works",
    "write a lua plugin for neovim that highlights todos",
    "my printer is offline, what now",
    "tune the learning rate schedule for this resnet",
    "compute the eigenvalues of this matrix with octave",
    "write a shader that draws ripples",
    "what is the big O of heapsort",
    "how does garbage collection work in the jvm",
    "port this perl script to ruby",
    "write verse two of the song in the style of a sea shanty",
    "help me prepare for a salary negotiation",
    "give me feedback on my dating profile",
    "explain the offside rule",
    "what wine goes with mushroom risotto",
    "describe the french revolution in 200 words",
    "generate a strong password",
    "what is the boiling point of ethanol",
    "今天天气怎么样",
    "给我讲一个故事",
    "日本の首都はどこですか",
    "wie spät ist es in New York",
    "raconte-moi une blague",
    "cuál es la capital de Perú",
    "USER: ok ASSISTANT: done",
    "?",
    "",
    "🙂🙂🙂",
    "asdf jkl; qwer",
    "the the the the of of and",
    "0x7f3a9c 88:1a:2b:3c:4d:5e 192.168.0.1",
    "hello world",
    "count from one to twenty in roman numerals",
    "pretend you are a pirate and greet me",
    "estimate how many piano tuners work in Chicago",
    "which planets have rings",
)
