"""Working days in German."""

from metaclaw_bench.workdays.words.wording import Words

GERMAN = Words(
    things={
        "office": (
            "Plakat Hefter Ordner Ausweis Memo Budget Server Laptop Drucker Vertrag Umfrage Banner"
            " Tisch Rechnung Paket Lampe"
        ),
        "kitchen": (
            "Mehl Salz Pfeffer Butter Zitrone Zwiebel Reis Basilikum Quark Tomate Ofen Kessel"
            " Fenchel Ingwer Gerste Pflaume"
        ),
        "laboratory": (
            "Probe Becher Sonde Pipette Reagenz Filter Kultur Puffer Sensor Kolben Magnet Enzym"
            " Agar Prisma Laser Farbstoff"
        ),
        "library": (
            "Roman Atlas Journal Regal Gedicht Katalog Globus Lexikon Karte Tagebuch Archiv Essay"
            " Fabel Rolle Comic Register"
        ),
        "workshop": (
            "Bohrer Hammer Bolzen Feile Zwinge Zange Dichtung Pumpe Ventil Zahnrad Schraube Winde"
            " Niete Feder Drehbank Amboss"
        ),
    },
    titles="liste plan bericht notiz test auftrag entwurf revision",
    said="bereit kontrolliert offen knapp vermisst voll verlegt verkauft",
    months="Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    weekdays="Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag",
    long_date="{day}. {month} {year}",
    states={"pending": "noch offen", "in_progress": "in Arbeit", "done": "fertig"},
    currencies={"EUR": "Euro", "USD": "Dollar", "GBP": "Pfund"},
    units={
        "g": "Gramm",
        "kg": "Kilogramm",
        "ml": "Milliliter",
        "l": "Liter",
        "cm": "Zentimeter",
        "m": "Meter",
    },
    titled=(
        "Der Titel ist „{title}“, das Datum {date}.",
        "Titel: „{title}“, Datum: {date}.",
        "Wir nennen es „{title}“, heute ist der {date}.",
    ),
    about=(
        "Es kommt von {person}, {date}, {state}.",
        "Von {person} am {date}, {state}.",
        "{person} steht dahinter ({date}, {state}).",
    ),
    numbered=(
        "Das ist Aufgabe {task}, erledigt am {date}.",
        "Aufgabennummer: {task}, Datum: {date}.",
        "Damit ist Aufgabe {task} am {date} fertig.",
    ),
    weeks=("Woche {week} von {year}", "Woche {week}, {year}", "im Jahr {year}, Woche {week}"),
    branches=(
        "Name des Branchs für {kind} {number} „{title}“",
        "{kind} {number} „{title}“, Name des Branchs",
        "wie der Branch zu {kind} {number} „{title}“ heißt",
    ),
    lists=(
        "Dazu die Liste: {things}.",
        "Liste dann auf: {things}.",
        "Darunter eine Liste aus {things}.",
    ),
    signed=("{person} unterschreibt.", "Unterschrift: {person}.", "Gezeichnet wird von {person}."),
    write=(
        "Schreib in {path}: {lines}.",
        "Bitte notiere in {path}: {lines}.",
        "Trag in {path} ein: {lines}.",
        "In {path} soll stehen: {lines}.",
    ),
    make=(
        "Leg in {folder}/ eine .{ext}-Datei an: {lines}.",
        "Bitte in {folder}/ als .{ext} speichern: {lines}.",
        "Neue .{ext}-Datei in {folder}/: {lines}.",
        "Ich brauche eine .{ext}-Datei in {folder}/, darin: {lines}.",
    ),
    change=(
        "In {path} steht „{original}“. Ersetze das durch: {lines}.",
        "Bitte ändere {path} (jetzt „{original}“) zu: {lines}.",
        "{path} lautet „{original}“; richtig ist: {lines}.",
        "Statt „{original}“ muss in {path} stehen: {lines}.",
    ),
    collect=(
        "Lies {notes} und schreib nach {path}, was dort über {labels} steht.",
        "Bitte übertrage aus {notes} nach {path}, was {labels} betrifft.",
        "{notes} nennt {labels}: genau das soll nach {path}.",
    ),
    second=("Außerdem: {task}", "Und dann: {task}", "Zweitens: {task}"),
    which_fit=(
        "Thema: {topic}. Welche Optionen sind so, wie ich es will?",
        "Denk an {topic}. Was davon nehme ich an?",
        "Zu {topic}: was ist hier nach unserer Art?",
    ),
    which_break=(
        "Thema: {topic}. Welche Optionen sind nicht so, wie ich es will?",
        "Denk an {topic}. Was davon schicke ich zurück?",
        "Zu {topic}: was ist hier nicht nach unserer Art?",
    ),
    which_says=(
        "Thema: {topic}. Ich will notieren: {told}. Welche Optionen sind richtig?",
        "Wie soll das in einer Datei stehen: {told}? (Thema: {topic}.)",
        "Zu {topic}: was soll für {told} geschrieben werden?",
    ),
    mixed="unsere Arbeitsweise",
    fits="so will ich es haben.",
    breaks="so will ich es nicht haben.",
    other="hier steht etwas anderes.",
    right=("Gut, danke.", "Richtig, so mag ich das.", "Passt, weiter."),
    wrong="So will ich das nicht.",
    missing="Was ich genannt habe, gehört wörtlich in die Datei.",
    changed="Das hat sich geändert.",
    greeting=(
        (
            "Guten Morgen, hier ist {user}! Es ist {weekday}, der {date}. Was wir brauchen, liegt"
            " in {folder}/."
        ),
        "Hallo, {user} hier. Wir haben {weekday}, den {date}. Schau in {folder}/, es gibt zu tun.",
        "Moin, ich bin es, {user}! {weekday}, {date}: die Dateien des Tages sind in {folder}/.",
    ),
    reply="Guten Morgen! Ich bin bereit. Womit soll ich anfangen?",
)
