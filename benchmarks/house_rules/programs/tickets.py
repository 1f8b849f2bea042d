import re

QUARTERS = ["first", "second", "third", "fourth"]


def read(task):
    number = re.search(r"[Tt]icket (\d+)", task)
    quarter = re.search(r"(\w+) quarter", task)
    if not number or not quarter or quarter[1] not in QUARTERS:
        return None
    return [
        ("TCK-", 0),
        (f"{int(number[1]):04d}", 1),
        ("/q", 0),
        (str(QUARTERS.index(quarter[1]) + 1), 1),
    ]
