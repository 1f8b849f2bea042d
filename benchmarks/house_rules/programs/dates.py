import re

MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]


def read(task):
    month = "|".join(MONTHS)
    found = re.search(rf"(?P<day>\d+) (?P<month>{month}) (?P<year>\d{{4}})", task) or re.search(
        rf"(?P<month>{month}) (?P<day>\d+), (?P<year>\d{{4}})", task
    )
    if not found or "calendar" not in task:
        return None
    number = MONTHS.index(found["month"]) + 1
    return [
        (found["year"], 1),
        ("-", 0),
        (f"{number:02d}", 1),
        ("-", 0),
        (f"{int(found['day']):02d}", 1),
        ("/nb", 0),
    ]
