"""Rules and skills on other topics, generated from lists: what the ones that are asked for must be
told apart from.
"""

from benchmarks.reach.data import Record

_FIELDS = (
    ("beekeeping", "hive records"),
    ("sailing", "logbook pages"),
    ("Terraform", "modules"),
    ("knitting", "patterns"),
    ("Kotlin", "data classes"),
    ("veterinary practice", "treatment sheets"),
    ("Ansible", "playbooks"),
    ("theatre", "prop lists"),
    ("LaTeX", "bibliographies"),
    ("real estate", "exposés"),
    ("Kafka", "topics"),
    ("chemistry lab", "protocols"),
    ("Swift", "view models"),
    ("wine cellar", "tasting notes"),
    ("WordPress", "plugins"),
    ("museum", "object labels"),
    ("Unity", "prefabs"),
    ("forestry", "stand maps"),
    ("Haskell", "instances"),
    ("orchestra", "part scores"),
    ("MATLAB", "figures"),
    ("dental practice", "recall lists"),
    ("Rust", "crates"),
    ("flower shop", "wedding orders"),
    ("Helm", "charts"),
    ("aquarium", "water tests"),
    ("COBOL", "copybooks"),
    ("tailoring", "measure cards"),
    ("Elixir", "supervisors"),
    ("pottery", "glaze recipes"),
    ("Prolog", "knowledge bases"),
    ("chess club", "pairings"),
    ("Fortran", "kernels"),
    ("pharmacy", "stock counts"),
    ("Scala", "implicits"),
    ("observatory", "exposure plans"),
    ("Godot", "scenes"),
    ("brewery", "mash schedules"),
    ("VHDL", "testbenches"),
    ("genealogy", "family charts"),
    ("Erlang", "releases"),
    ("ski school", "group lists"),
    ("Solidity", "contracts"),
    ("locksmith", "key plans"),
    ("OCaml", "functors"),
    ("falconry", "weight charts"),
)
_PRACTICES = (
    ("new {things}", "number new {things} by year and a running digit"),
    ("renaming {things}", "keep the former title of {things} in brackets"),
    ("archiving {things}", "file {things} older than five seasons under archive"),
    ("copying {things}", "mark copies of {things} with a C in the corner"),
    ("handing over {things}", "add a receiver and a signature to {things}"),
    ("checking {things}", "have {things} checked by a second pair of eyes"),
    ("printing {things}", "put {things} on yellow paper"),
    ("lending {things}", "note the day of return on {things}"),
    ("combining {things}", "keep the sources apart when {things} are combined"),
    ("teaching with {things}", "show beginners only simple {things}"),
)
_PROCEDURES = (
    "inspect",
    "catalogue",
    "repair",
    "compare",
    "retire",
    "introduce",
    "photograph",
    "borrow",
    "rate",
    "store",
)


def rules(count: int, scope: str) -> list[Record]:
    """Rules with a *when*, each about something else."""
    made = [
        {
            "name": _slug(f"{field} {when.split()[0]} {things}"),
            "when": f"When {when.format(things=things)} in {field}",
            "text": f"In {field}, {text.format(things=things)}.",
            "scope": scope,
        }
        for when, text in _PRACTICES
        for field, things in _FIELDS
    ]
    return made[:count]


def skills(count: int) -> list[Record]:
    """Skills with trigger, body and examples, each about something else."""
    made = []
    for procedure in _PROCEDURES:
        for field, things in _FIELDS:
            asked = (
                f"{procedure} the {things}",
                f"how do we {procedure} {things} in {field}",
                f"{things} of {field}: {procedure} them",
            )
            made.append(
                {
                    "name": _slug(f"{field} {procedure}"),
                    "trigger": f"When {things} must be handled in {field}: {procedure}",
                    "body": (
                        f"1. Collect the {things}.\n2. {procedure.capitalize()} them one by"
                        " one.\n3. Note what was odd."
                    ),
                    "examples": list(asked),
                }
            )
    return made[:count]


def _slug(words: str) -> str:
    return "-".join(
        "".join(
            letter if letter.isascii() and letter.isalnum() else " " for letter in words.lower()
        ).split()
    )
