"""Working days in Spanish."""

from metaclaw_bench.workdays.words.wording import Words

SPANISH = Words(
    things={
        "office": (
            "cartel grapadora carpeta tarjeta sobre presupuesto servidor teclado impresora contrato"
            " encuesta mesa factura paquete mapa silla"
        ),
        "kitchen": (
            "harina sal pimienta mantequilla pomelo cebolla arroz albahaca queso tomate horno"
            " tetera hinojo jengibre cebada ciruela"
        ),
        "laboratory": (
            "muestra vaso sonda pipeta reactivo filtro cultivo tubo sensor matraz electrodo enzima"
            " agar prisma foco colorante"
        ),
        "library": (
            "novela atlas revista estante poema libro globo cuento plano diario archivo ensayo"
            " relato rollo verso registro"
        ),
        "workshop": (
            "taladro martillo perno sierra prensa llave junta bomba tuerca engranaje cincel polea"
            " remache muelle torno yunque"
        ),
    },
    titles="lista plan informe nota control pedido borrador resumen",
    said="listo revisado abierto tarde ausente lleno movido vendido",
    months=(
        "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre"
    ),
    weekdays="lunes martes miércoles jueves viernes sábado domingo",
    long_date="{day} de {month} de {year}",
    states={"pending": "pendiente", "in_progress": "en curso", "done": "terminado"},
    currencies={"EUR": "euros", "USD": "dólares", "GBP": "libras"},
    units={
        "g": "gramos",
        "kg": "kilogramos",
        "ml": "mililitros",
        "l": "litros",
        "cm": "centímetros",
        "m": "metros",
    },
    titled=(
        "El título es «{title}», la fecha {date}.",
        "Título: «{title}», fecha: {date}.",
        "Lo llamamos «{title}»; estamos a {date}.",
    ),
    about=(
        "Viene de {person}, {date}, {state}.",
        "De {person}, el {date}, {state}.",
        "{person} está detrás ({date}, {state}).",
    ),
    numbered=(
        "Es la tarea {task}, hecha el {date}.",
        "Número de tarea: {task}, fecha: {date}.",
        "Con esto acaba la tarea {task} el {date}.",
    ),
    weeks=("semana {week} de {year}", "semana {week}, {year}", "en {year}, semana {week}"),
    branches=(
        "nombre de la rama para {kind} {number} «{title}»",
        "{kind} {number} «{title}», nombre de su rama",
        "cómo se llama la rama de {kind} {number} «{title}»",
    ),
    lists=("Más la lista: {things}.", "Luego enumera {things}.", "Debajo, una lista de {things}."),
    signed=("Firma {person}.", "Firmado: {person}.", "Lo firma {person}."),
    write=(
        "Escribe en {path}: {lines}.",
        "Por favor, anota en {path}: {lines}.",
        "Pon en {path}: {lines}.",
        "{path} debe decir: {lines}.",
    ),
    make=(
        "Crea un archivo .{ext} en {folder}/: {lines}.",
        "Por favor, guarda en {folder}/ como .{ext}: {lines}.",
        "Nuevo archivo .{ext} en {folder}/: {lines}.",
        "Quiero un archivo .{ext} en {folder}/ que diga: {lines}.",
    ),
    change=(
        "{path} contiene «{original}». Cámbialo por: {lines}.",
        "Por favor, cambia {path} (ahora «{original}») a: {lines}.",
        "{path} dice «{original}»; lo correcto es: {lines}.",
        "En vez de «{original}», {path} ha de contener: {lines}.",
    ),
    collect=(
        "Lee {notes} y escribe en {path} lo que dice de {labels}.",
        "Por favor, copia de {notes} a {path} lo que toca a {labels}.",
        "{notes} habla de {labels}: eso, y nada más, va a {path}.",
    ),
    second=("Además: {task}", "Y después: {task}", "Segundo: {task}"),
    which_fit=(
        "Tema: {topic}. ¿Qué opciones son como yo quiero?",
        "Piensa en {topic}. ¿Qué aceptaría yo?",
        "Sobre {topic}: ¿qué está hecho a nuestro modo?",
    ),
    which_break=(
        "Tema: {topic}. ¿Qué opciones no son como yo quiero?",
        "Piensa en {topic}. ¿Qué devolvería yo?",
        "Sobre {topic}: ¿qué no está hecho a nuestro modo?",
    ),
    which_says=(
        "Tema: {topic}. Quiero anotar: {told}. ¿Qué opciones son correctas?",
        "¿Cómo debe estar esto en un archivo: {told}? (Tema: {topic}.)",
        "Sobre {topic}: para {told}, ¿qué hay que escribir?",
    ),
    mixed="nuestro modo de trabajar",
    fits="así lo quiero.",
    breaks="así no lo quiero.",
    other="aquí dice otra cosa.",
    right=("Bien, gracias.", "Correcto, así me gusta.", "Perfecto, sigue."),
    wrong="Así no lo quiero.",
    missing="Lo que he dado debe estar en el archivo, palabra por palabra.",
    changed="Esto ha cambiado.",
    greeting=(
        "¡Buenos días, soy {user}! Es {weekday}, {date}. Lo que necesitamos está en {folder}/.",
        "Hola, aquí {user}. Estamos a {weekday}, {date}. Mira en {folder}/, hay trabajo.",
        "¡Buenas, habla {user}! {weekday}, {date}: los archivos del día están en {folder}/.",
    ),
    reply="¡Buenos días! Estoy listo. ¿Por dónde empiezo?",
)
