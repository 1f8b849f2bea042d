"""A large made-up library of skills with requests that need one of them: deterministic, from word
lists of several trades.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill


class Planted(NamedTuple):
    """A request and the skill it needs."""

    query: str
    name: SkillName


class Trade(NamedTuple):
    """The words of one line of work."""

    tools: tuple[str, ...]
    things: tuple[str, ...]
    parts: tuple[str, ...]
    troubles: tuple[str, ...]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


TRADES: tuple[Trade, ...] = (
    Trade(
        _words(
            "django flask fastapi sqlalchemy celery redis pandas numpy poetry pydantic gunicorn"
            " jupyter scrapy airflow"
        ),
        _words(
            "serializer viewset queue worker dataframe notebook scraper middleware endpoint fixture"
            " decorator coroutine package wheel parser"
        ),
        _words(
            "typing exception timeout session cursor column index transaction retry lockfile"
            " signature docstring import generator buffer"
        ),
        _words(
            "deadlock traceback leak slowdown regression mismatch overflow recursion corruption"
            " stall"
        ),
    ),
    Trade(
        _words(
            "react vue svelte angular nextjs webpack vite tailwind storybook cypress playwright"
            " redux graphql typescript"
        ),
        _words(
            "component modal carousel dropdown navbar hook reducer stylesheet router bundle tooltip"
            " form widget canvas layout"
        ),
        _words(
            "props state breakpoint margin selector animation viewport hydration accessor label"
            " focus keyboard theme icon grid"
        ),
        _words("flicker overflow rerender jank mismatch misalignment warning crash flash lag"),
    ),
    Trade(
        _words(
            "kubernetes helm terraform ansible docker prometheus grafana nginx istio vault consul"
            " jenkins argocd packer"
        ),
        _words(
            "cluster pipeline deployment ingress certificate volume dashboard alert namespace"
            " registry gateway container secret node daemon"
        ),
        _words(
            "probe quota label annotation replica rollout snapshot taint policy manifest checksum"
            " backup cron scrape route"
        ),
        _words(
            "outage eviction throttling drift expiry crashloop imbalance saturation flapping"
            " lockout"
        ),
    ),
    Trade(
        _words(
            "postgres mysql sqlite mongodb cassandra clickhouse snowflake bigquery dbt kafka spark"
            " elasticsearch neo4j duckdb"
        ),
        _words(
            "table schema migration partition view replica topic shard warehouse ledger trigger"
            " aggregate cube snapshot stream"
        ),
        _words(
            "constraint key join vacuum offset watermark histogram collation tablespace cardinality"
            " checkpoint lock role upsert window"
        ),
        _words(
            "skew bloat duplicate lag contention timeout inconsistency truncation orphan hotspot"
        ),
    ),
    Trade(
        _words(
            "swift kotlin flutter xcode gradle jetpack firebase realm coredata fastlane testflight"
            " arkit unity godot"
        ),
        _words(
            "screen notification gesture widget sprite scene keyboard onboarding paywall camera"
            " sensor shader tilemap player avatar"
        ),
        _words(
            "constraint lifecycle permission thread orientation haptic texture collider frame"
            " entitlement locale battery inset shadow pixel"
        ),
        _words("freeze stutter rejection crash drain distortion delay clipping desync blackout"),
    ),
    Trade(
        _words(
            "excel quickbooks xero datev sap stripe paypal netsuite sepa payoneer airtable anaplan"
            " bloomberg tableau"
        ),
        _words(
            "invoice budget forecast payroll ledger receipt refund subscription voucher dividend"
            " audit reconciliation balance mortgage expense"
        ),
        _words(
            "tax currency rounding accrual depreciation discount installment threshold signature"
            " margin cashflow surcharge quarter cent fee"
        ),
        _words(
            "discrepancy overpayment shortfall chargeback duplicate misposting variance fraud"
            " arrears writeoff"
        ),
    ),
    Trade(
        _words(
            "hubspot salesforce mailchimp intercom zendesk wordpress shopify ahrefs canva buffer"
            " linkedin instagram typeform segment"
        ),
        _words(
            "newsletter campaign landing persona funnel banner testimonial webinar coupon catalogue"
            " podcast brochure slogan survey storefront"
        ),
        _words(
            "headline audience keyword hashtag caption unsubscribe segment persona thumbnail"
            " excerpt greeting signature tagline metadata cta"
        ),
        _words("churn bounce backlash spam penalty decline fatigue typo plagiarism mistargeting"),
    ),
    Trade(
        _words(
            "latex zotero overleaf jamovi matlab stata rstudio arxiv scopus pubmed mendeley bibtex"
            " nvivo orcid"
        ),
        _words(
            "manuscript thesis abstract figure bibliography survey experiment dataset questionnaire"
            " rebuttal grant poster appendix hypothesis protocol"
        ),
        _words(
            "citation caption variance covariate footnote sample ablation baseline confidence"
            " reviewer placebo margin axis legend notation"
        ),
        _words(
            "confound outlier retraction overfitting dropout bias leakage ambiguity miscitation"
            " attrition"
        ),
    ),
    Trade(
        _words(
            "westlaw docusign clio relativity pacer lexis notion confluence sharepoint gdpr hipaa"
            " iso27001 sox edgar"
        ),
        _words(
            "contract lease clause patent affidavit complaint subpoena testament licence disclaimer"
            " nda trademark settlement brief deposition"
        ),
        _words(
            "party jurisdiction indemnity termination warranty liability recital consent deadline"
            " redaction exhibit notary escrow arbitration retention"
        ),
        _words(
            "breach dispute infringement default ambiguity noncompliance conflict forfeiture"
            " objection lapse"
        ),
    ),
    Trade(
        _words(
            "homeassistant zigbee mqtt hue sonos shelly esphome arduino raspberry tasmota octoprint"
            " fritzbox synology plex"
        ),
        _words(
            "thermostat sprinkler doorbell lamp blind camera vacuum sensor printer freezer heater"
            " garage aquarium solar router"
        ),
        _words(
            "schedule scene relay firmware battery humidity motion dimmer threshold presence sunset"
            " wattage nozzle filament antenna"
        ),
        _words(
            "disconnect overheating clogging interference warping flicker dropout condensation"
            " misfire noise"
        ),
    ),
    Trade(
        _words(
            "epic cerner fhir dicom icd10 hl7 fitbit garmin strava myfitnesspal loinc snomed redcap"
            " openmrs"
        ),
        _words(
            "prescription diagnosis vaccination referral discharge appointment allergy bloodtest"
            " therapy rehabilitation triage screening dosage biopsy scan"
        ),
        _words(
            "patient interval contraindication symptom consent pulse glucose fasting wound posture"
            " calorie hydration insurer caregiver ward"
        ),
        _words(
            "relapse overdose infection fatigue reaction delay misreading fracture fever"
            " dehydration"
        ),
    ),
    Trade(
        _words(
            "autocad revit solidworks fusion360 blender sketchup rhino ansys labview simulink kicad"
            " catia primavera archicad"
        ),
        _words(
            "bracket gearbox facade beam enclosure circuit gasket turbine bridge staircase antenna"
            " mould harness foundation conveyor"
        ),
        _words(
            "tolerance torque weld chamfer mesh clearance datum tensile plating thermal vibration"
            " solder fillet load bearing"
        ),
        _words(
            "crack misfit buckling corrosion resonance shortcircuit wear leakage deflection"
            " delamination"
        ),
    ),
)

# The first of each row is how a skill says it; the rest are how people ask for it. Some share a
# stem, most do not.
VERBS: tuple[tuple[str, ...], ...] = (
    _words("configuring configure set up"),
    _words("migrating migrate move"),
    _words("reviewing review look over"),
    _words("debugging debug troubleshoot"),
    _words("drafting draft compose"),
    _words("exporting export dump"),
    _words("validating validate verify"),
    _words("scheduling schedule plan"),
    _words("comparing compare contrast"),
    _words("cleaning clean tidy"),
    _words("optimising optimise speed"),
    _words("documenting document describe"),
    _words("testing test exercise"),
    _words("renaming rename relabel"),
    _words("archiving archive shelve"),
    _words("monitoring monitor watch"),
)
ADJECTIVES = _words(
    "nightly shared legacy public internal encrypted regional temporary customer-facing recurring"
    " nested multilingual offline high-volume read-only seasonal automated third-party experimental"
    " archived"
)
OPENERS = (
    "",
    "can you ",
    "please ",
    "I need to ",
    "quick one: ",
    "hey, ",
    "we have to ",
    "could you help me to ",
)
CLOSERS = (
    "",
    ", it is due tomorrow",
    " - see notes.txt for what we tried",
    ". Keep it short please",
    ", the boss is waiting",
    "? I attached the latest version",
    ". Do not touch anything else",
    " and tell me what you changed afterwards",
)
ADVICE = (
    "Always check the {part} before the {thing} is touched.",
    "Keep the {part} and the {part2} apart; a {trouble} follows otherwise.",
    "Never start without a copy of the {thing}.",
    "On {trouble}, stop, note the {part}, and ask.",
    "Use {tool} for it, not a script of your own.",
    "Write down which {part} was used and by whom.",
    "The {part2} comes last, after the {thing} has been looked at by a second person.",
    "Prefer the smallest change; a {trouble} is harder to undo than to avoid.",
    "Show the {part} in the answer, with its unit.",
)
_SYLLABLES = _words(
    "ka lo mi ter van dor sel pra nu ris tol ben qua fex zor lum pel gar din vos hex bri cal mon"
    " tus rey sil orb nex wyn"
)


def make_library(size: int, seed: int = 7) -> Iterator[tuple[Skill, Planted]]:
    """`size` skills, each with one request that needs it. The same seed gives the same library."""
    rng = random.Random(seed)
    for number in range(size):
        yield _make(rng, number)


def _make(rng: random.Random, number: int) -> tuple[Skill, Planted]:
    trade = rng.choice(TRADES)
    verb = rng.choice(VERBS)
    tool, thing, trouble = (
        rng.choice(trade.tools),
        rng.choice(trade.things),
        rng.choice(trade.troubles),
    )
    part, part2 = rng.sample(trade.parts, 2)
    adjective, subject = rng.choice(ADJECTIVES), "".join(rng.choices(_SYLLABLES, k=3))
    name = SkillName(f"{tool}-{thing}-{subject}-{number}")
    trigger = (
        f"When {verb[0]} the {adjective} {thing} in {tool} for {subject}: {part}, {part2} and what"
        f" to do on {trouble}"
    )
    lines = (
        line.format(tool=tool, thing=thing, part=part, part2=part2, trouble=trouble)
        for line in rng.sample(ADVICE, 6)
    )
    skill = Skill(
        name,
        trigger,
        f"# {thing.capitalize()} for {subject}\n\n" + "\n".join(f"- {line}" for line in lines),
    )
    asked = " ".join(verb[1:]) if rng.random() < 0.5 else verb[1]
    known = [adjective, thing, tool, subject, part, trouble]
    kept = sorted(rng.sample(range(len(known)), rng.randint(3, 5)))
    about = _inflect(rng, [known[i] for i in kept])
    return skill, Planted(f"{rng.choice(OPENERS)}{asked} the {about}{rng.choice(CLOSERS)}", name)


def _inflect(rng: random.Random, words: list[str]) -> str:
    return " ".join(
        word + "s" if rng.random() < 0.3 and not word.endswith("s") else word for word in words
    )
