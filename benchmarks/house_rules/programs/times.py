import re


def read(task):
    time = re.search(r"(\d+):(\d\d) (am|pm)", task)
    if not time or "roster" not in task:
        return None
    hour = int(time[1]) % 12 + (12 if time[3] == "pm" else 0)
    return [(f"{hour:02d}", 1), (":", 0), (time[2], 1), ("+05:30", 0)]
