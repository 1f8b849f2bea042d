"""Working days in English."""

from metaclaw_bench.workdays.words.wording import Words

ENGLISH = Words(
    things={
        "office": (
            "poster stapler folder badge memo budget server laptop printer contract survey banner"
            " desk invoice parcel lamp"
        ),
        "kitchen": (
            "flour salt pepper butter lemon onion rice basil cheese tomato oven kettle fennel"
            " ginger barley plum"
        ),
        "laboratory": (
            "sample beaker probe pipette reagent filter culture buffer sensor flask magnet enzyme"
            " agar prism laser dye"
        ),
        "library": (
            "novel atlas journal shelf poem catalogue globe lexicon map diary archive essay fable"
            " scroll comic index"
        ),
        "workshop": (
            "drill hammer bolt saw clamp wrench gasket pump valve gear chisel pulley rivet spring"
            " lathe anvil"
        ),
    },
    titles="list plan report note check order draft review",
    said="ready checked open late missing full moved sold",
    months="January February March April May June July August September October November December",
    weekdays="Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    long_date="{day} {month} {year}",
    states={"pending": "pending", "in_progress": "in progress", "done": "done"},
    currencies={"EUR": "euros", "USD": "dollars", "GBP": "pounds"},
    units={
        "g": "grams",
        "kg": "kilograms",
        "ml": "millilitres",
        "l": "litres",
        "cm": "centimetres",
        "m": "metres",
    },
    titled=(
        'Its title is "{title}", the date is {date}.',
        'Title: "{title}", date: {date}.',
        'We call it "{title}"; today is {date}.',
    ),
    about=(
        "It comes from {person}, {date}, {state}.",
        "By {person} on {date}, {state}.",
        "{person} is behind it ({date}, {state}).",
    ),
    numbered=(
        "This is task {task}, done on {date}.",
        "Task number: {task}, date: {date}.",
        "You finish task {task} with it on {date}.",
    ),
    weeks=("week {week} of {year}", "week {week}, {year}", "in {year}, week {week}"),
    branches=(
        'name of the branch for {kind} {number} "{title}"',
        '{kind} {number} "{title}", name of its branch',
        'what the branch of {kind} {number} "{title}" is called',
    ),
    lists=("Add the list: {things}.", "Then list {things}.", "Below that, a list of {things}."),
    signed=("{person} signs it.", "Signed by {person}.", "Let {person} sign."),
    write=(
        "Write to {path}: {lines}.",
        "Please note in {path}: {lines}.",
        "Put this into {path}: {lines}.",
        "{path} shall say: {lines}.",
    ),
    make=(
        "Make a .{ext} file in {folder}/: {lines}.",
        "Please save in {folder}/ as .{ext}: {lines}.",
        "New .{ext} file in {folder}/: {lines}.",
        "I want a .{ext} file in {folder}/ that says: {lines}.",
    ),
    change=(
        '{path} holds "{original}". Replace that by: {lines}.',
        'Please change {path} (now "{original}") to: {lines}.',
        '{path} says "{original}"; it should say: {lines}.',
        'Instead of "{original}", {path} must hold: {lines}.',
    ),
    collect=(
        "Read {notes} and write what it says about {labels} to {path}.",
        "Please copy from {notes} to {path} what concerns {labels}.",
        "{notes} mentions {labels}: put that, and only that, into {path}.",
    ),
    second=("Also: {task}", "And then: {task}", "Second: {task}"),
    which_fit=(
        "Topic: {topic}. Which options are as I want them?",
        "Think of {topic}. Which of these would I accept?",
        "About {topic}: what here is done our way?",
    ),
    which_break=(
        "Topic: {topic}. Which options are not as I want them?",
        "Think of {topic}. Which of these would I send back?",
        "About {topic}: what here is not our way?",
    ),
    which_says=(
        "Topic: {topic}. I want to note: {told}. Which options are right?",
        "How should this stand in a file: {told}? (Topic: {topic}.)",
        "About {topic}: for {told}, what should be written?",
    ),
    mixed="our ways here",
    fits="this one is as I want it.",
    breaks="this one is not as I want it.",
    other="this one says something else.",
    right=("Good, thank you.", "Right, that is how I like it.", "Fine, go on."),
    wrong="That is not how I want it.",
    missing="What I asked for must be in the file, word by word.",
    changed="This has changed.",
    greeting=(
        (
            "Good morning, {user} here! Today is {weekday}, {date}. What we need today is in"
            " {folder}/."
        ),
        (
            "Hello, this is {user}. It is {weekday}, {date}. Have a look at {folder}/, we have"
            " things to do."
        ),
        "Hi, {user} again! {weekday}, {date}: our files of the day are in {folder}/.",
    ),
    reply="Good morning! I am ready. What shall I begin with?",
)
