"""Working days in French."""

from metaclaw_bench.workdays.words.wording import Words

FRENCH = Words(
    things={
        "office": (
            "affiche agrafeuse classeur badge dossier budget serveur ordinateur imprimante contrat"
            " sondage bureau facture colis lampe chaise"
        ),
        "kitchen": (
            "farine sel poivre beurre citron oignon riz basilic fromage tomate four bouilloire"
            " fenouil gingembre orge prune"
        ),
        "laboratory": (
            "flacon entonnoir sonde pipette produit filtre culture tampon capteur ballon aimant"
            " enzyme tube prisme laser colorant"
        ),
        "library": (
            "roman atlas revue rayon conte catalogue globe lexique carte journal archive essai"
            " fable rouleau album index"
        ),
        "workshop": (
            "perceuse marteau boulon scie serre pince joint pompe vanne engrenage ciseau poulie"
            " rivet ressort tour enclume"
        ),
    },
    titles="liste plan rapport note bilan commande brouillon projet",
    said="complet conforme ouvert perdu absent plein transmis vendu",
    months="janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    weekdays="lundi mardi mercredi jeudi vendredi samedi dimanche",
    long_date="{day} {month} {year}",
    states={"pending": "en attente", "in_progress": "en cours", "done": "terminé"},
    currencies={"EUR": "euros", "USD": "dollars", "GBP": "livres"},
    units={
        "g": "grammes",
        "kg": "kilogrammes",
        "ml": "millilitres",
        "l": "litres",
        "cm": "centimètres",
        "m": "mètres",
    },
    titled=(
        "Le titre est « {title} », la date {date}.",
        "Titre : « {title} », date : {date}.",
        "On l'appelle « {title} » ; nous sommes le {date}.",
    ),
    about=(
        "Cela vient de {person}, {date}, {state}.",
        "Par {person}, le {date}, {state}.",
        "{person} s'en occupe ({date}, {state}).",
    ),
    numbered=(
        "C'est la tâche {task}, finie le {date}.",
        "Numéro de tâche : {task}, date : {date}.",
        "La tâche {task} s'achève ainsi le {date}.",
    ),
    weeks=("semaine {week} de {year}", "semaine {week}, {year}", "en {year}, semaine {week}"),
    branches=(
        "nom de la branche pour {kind} {number} « {title} »",
        "{kind} {number} « {title} », nom de sa branche",
        "comment s'appelle la branche de {kind} {number} « {title} »",
    ),
    lists=(
        "Plus la liste : {things}.",
        "Puis énumère {things}.",
        "En dessous, une liste de {things}.",
    ),
    signed=("{person} signe.", "Signature : {person}.", "C'est {person} qui signe."),
    write=(
        "Écris dans {path} : {lines}.",
        "Merci de noter dans {path} : {lines}.",
        "Mets dans {path} : {lines}.",
        "{path} doit dire : {lines}.",
    ),
    make=(
        "Crée un fichier .{ext} dans {folder}/ : {lines}.",
        "Merci d'enregistrer dans {folder}/ en .{ext} : {lines}.",
        "Nouveau fichier .{ext} dans {folder}/ : {lines}.",
        "Il me faut un fichier .{ext} dans {folder}/ qui dise : {lines}.",
    ),
    change=(
        "{path} contient « {original} ». Remplace par : {lines}.",
        "Merci de changer {path} (maintenant « {original} ») en : {lines}.",
        "{path} dit « {original} » ; il faut : {lines}.",
        "Au lieu de « {original} », {path} doit contenir : {lines}.",
    ),
    collect=(
        "Lis {notes} et écris dans {path} ce qui y est dit de {labels}.",
        "Merci de recopier de {notes} vers {path} ce qui concerne {labels}.",
        "{notes} parle de {labels} : cela, et rien d'autre, va dans {path}.",
    ),
    second=("Aussi : {task}", "Et puis : {task}", "Deuxièmement : {task}"),
    which_fit=(
        "Sujet : {topic}. Quelles options sont comme je veux ?",
        "Pense à ceci : {topic}. Que puis-je accepter ici ?",
        "Au sujet de : {topic}. Qu'est-ce qui est à notre façon ?",
    ),
    which_break=(
        "Sujet : {topic}. Quelles options ne sont pas comme je veux ?",
        "Pense à ceci : {topic}. Que vais-je renvoyer ici ?",
        "Au sujet de : {topic}. Qu'est-ce qui n'est pas à notre façon ?",
    ),
    which_says=(
        "Sujet : {topic}. Je veux noter : {told}. Quelles options sont justes ?",
        "Comment écrire ceci dans un fichier : {told} ? (Sujet : {topic}.)",
        "Au sujet de : {topic}. Pour {told}, que faut-il écrire ?",
    ),
    mixed="nos habitudes",
    fits="c'est comme je veux.",
    breaks="ce n'est pas comme je veux.",
    other="cela dit autre chose.",
    right=("Bien, merci.", "Juste, c'est ainsi que j'aime.", "Parfait, continue."),
    wrong="Ce n'est pas comme je veux.",
    missing="Ce que j'ai donné doit être dans le fichier, mot pour mot.",
    changed="Cela a changé.",
    greeting=(
        "Bonjour, ici {user} ! Nous sommes {weekday}, le {date}. Ce qu'il faut est dans {folder}/.",
        (
            "Salut, c'est {user}. Nous sommes {weekday}, le {date}. Regarde dans {folder}/, il y a"
            " à faire."
        ),
        (
            "Coucou, {user} à l'appareil ! {weekday}, {date} : les fichiers du jour sont dans"
            " {folder}/."
        ),
    ),
    reply="Bonjour ! Je suis prêt. Par quoi commencer ?",
)
