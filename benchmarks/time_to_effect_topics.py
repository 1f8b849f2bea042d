"""Forty kinds of task, each with the mistake it invites and the rule that mends it. Written for
this project.
"""

from dataclasses import dataclass

_LINES = """
changelog entry|release dates|YYYY-MM-DD
invoice|tax amounts|two decimals with a comma
recipe card|oven temperatures|degrees Celsius
flight itinerary|departure times|24-hour local time
laboratory report|sample identifiers|LAB- and six digits
wedding invitation|guest names|surname in capitals
cargo manifest|container weights|metric tonnes
museum label|artist lifespans|born and died years in brackets
weather bulletin|wind speeds|knots
court summary|docket numbers|year slash number
chess annotation|knight moves|the letter S
bug ticket|stack traces|the innermost frame first
garden plan|plant spacings|centimetres
train timetable|platform numbers|a leading zero
sheet music note|tempo marks|beats per minute
census table|household counts|thousands separators as spaces
wine list|vintage years|four digits after the region
climbing topo|route grades|the French scale
pharmacy leaflet|dosage intervals|hours and not times a day
patent abstract|claim references|Roman numerals
lighthouse log|tide heights|metres above chart datum
auction catalogue|estimate prices|low dash high in euros
knitting pattern|stitch counts|square brackets
seismic bulletin|epicentre depths|kilometres with one decimal
ballet programme|curtain calls|after the final act only
beekeeping diary|hive numbers|a hash sign in front
soccer scouting sheet|player heights|metres and centimetres
fire drill memo|assembly points|letters and not colours
astronomy notebook|star magnitudes|one decimal with a sign
payroll memo|overtime hours|quarters of an hour
dialect glossary|vowel lengths|a colon behind the vowel
school timetable|lesson rooms|building before room
tender document|bid deadlines|noon in Brussels time
sailing passage plan|waypoint positions|degrees and decimal minutes
pottery glaze sheet|kiln cones|a cone number and no temperature
opera libretto|stage directions|italics in parentheses
vaccination card|batch codes|capital letters without hyphens
archive finding aid|shelf marks|a slash between box and folder
bicycle fitting sheet|saddle offsets|millimetres behind the axle
podcast transcript|speaker turns|initials and a full stop
"""


@dataclass(frozen=True, slots=True)
class Topic:
    """A kind of thing to write, a detail in it, and the form in which the person wants that
    detail.
    """

    thing: str
    detail: str
    form: str

    @property
    def name(self) -> str:
        """The name of the skill."""
        return "-".join(f"{self.thing} {self.detail}".lower().split())

    def task(self, number: int) -> str:
        """What is asked for; no two numbers ask in the same words."""
        return f"Write the {self.thing} number {number} and put the {self.detail} in."

    @property
    def correction(self) -> str:
        """What the person says when the detail is not in the right form."""
        return (
            f"No, that's wrong. The {self.detail} in the {self.thing} must be written as"
            f" {self.form}."
        )

    @property
    def skill(self) -> dict[str, str]:
        """What the simulated evolver proposes: the correction and no more."""
        body = (
            f"1. Find the {self.detail} in the {self.thing}.\n2. The {self.detail} must be written"
            f" as {self.form}.\n\nDo not write the {self.detail} in another form."
        )
        return {
            "name": self.name,
            "trigger": f"When writing the {self.thing} with its {self.detail}",
            "body": body,
            "category": "writing",
        }


TOPICS = tuple(Topic(*line.split("|")) for line in _LINES.strip().splitlines())
