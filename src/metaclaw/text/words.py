"""Word lists: stop words, common words, product names, and verbs of command."""

_ENGLISH = """
a about above after again all almost also although always am an and another any anybody anyone anything are around as at away back
be became because become been before being below besides between both but by came can cannot come comes could did didn do does
doesn doing don done down during each either else enough etc even ever every everything few for from further get gets getting give
given gives go goes going gone got had has have having he hello help her here hers hey hi him himself his how however i if im in
into is isn it its itself ive just keep know let lets like likely ll look looking made make makes making many may maybe me might
mine more most much must my myself near need needed needs never no nobody none nor not nothing now of off often ok okay on once
one ones only onto or other others otherwise our ours out over own per perhaps please put quite rather re really s same say says
see seem seems several shall she should shouldn show since so some somebody someone something still such sure t take taken takes
tell than thank thanks that the their theirs them themselves then there therefore these they thing things this those though
through thus till to today together told too toward try trying two under unless until up upon us use used uses using usually ve
very via want wanted wants was way we well were what whatever when whenever where wherever whether which while who whoever whole
whom whose why will wish with within without won would yes yet you your yours yourself big bit hundred nine old less better best
three four five six seven eight ten eleven twelve twenty thirty thousand anymore already actually able ago afterwards afternoon
tonight tomorrow week kind lot bad good great nice quick quickly
"""

_OTHER_LANGUAGES = """
aber als am an auch auf aus bei bin bis bitte das dass dein dem den der des die dies diese doch du ein eine einen einer eines er
es fur habe haben hat ich ihr im ist ja kann kein mein mir mit nach nicht noch nur oder sein sich sie sind uber um und uns von vor
war warum was wenn wer wie wir wird zu zum zur au aux avec ce ces cette comme dans de des du elle en est et il ils je la le les
leur lui mais mes moi mon ne nous ou par pas pour que qui sa sans ses si son sont sur te tu un une vos votre vous al ante con como
cual de del desde el ella en entre es esta este esto hay la las lo los mas me mi muy para pero por porque que quien se ser sin
sobre su sus te una uno unos yo com da das do dos ela ele em essa esse eu mais mas meu minha na nao nas no nos os ou para pela
pelo por se sem seu sua um uma voce che chi con cosa cui da dal dei del della di gli ho il io la le lo ma mi nel non per piu
quando questo se si sono su ti tra un una
"""

STOP_WORDS = frozenset((_ENGLISH + _OTHER_LANGUAGES).split())
"""Words that are no search terms."""

_VERY_COMMON = """
add agent answer app apply ask assistant build change check code command complete content create current data day delete detail do
edit error example execute explain file final find finish first fix folder follow format full function generate good help
implement include information input issue item keep language last line list local long model name new next note number open order
output page part path person point prepare problem process project prompt provide question read reply request require respond
response result return review rule run same save script second section send set show simple single start state step stop task team
test text time tool turn two type update user value version view week word work write year
"""

_COMMON = """
access account action active analysis analyze api area article array attach author automatic available base basic batch best block
board body book bug button call case category channel character clean clear client close column comment common compare component
condition config configure connect connection console context control convert copy correct cost count cover custom customize
database date debug decide default define depend describe description design desktop develop device different direct directory
discuss display document domain draft draw drive drop due easy effect empty enable end engine ensure enter entry environment event
exist expect export express extend extract fail failure fast feature feedback field figure fill filter flow focus font form free
front general global goal group guide handle hand hard head high history home host hour http idea identify image import improve
index info install instance instruction integrate interface internal json key kind large launch layout learn level library light
limit link load log logic low machine main manage map mark match mean meet member memory menu message method minute mode module
monitor month morning move multiple native network node normal notes notice object office old online operation option organize
original overview own package parse paste pattern performance phone pick plan platform play policy port position post power
present press preview price print private product production profile program progress property protect public publish pull purpose
push query quick random range rate raw reason receive recent recommend record reduce refer reference register release remember
remote remove rename repair repeat replace report reset resource restart right root row safe sample scan schema scope screen
search secure security select sentence separate server service session setting setup share sheet shell short side sign site size
small software solution solve sort source space special specific split stage standard status storage store story stream string
structure style subject submit suggest suite summarize summary support switch system tab table tag target template term terminal
title token topic total track train tree trigger true try understand unit unknown upload url usage validate variable verify visit
wait warning watch web website weekly window wrong yesterday
"""

VERY_COMMON_WORDS = tuple(_VERY_COMMON.split())
COMMON_WORDS = tuple(_COMMON.split())

_BRANDS = """
airbnb airtable bigquery bitbucket chatgpt circleci clickhouse cloudflare cloudformation cloudwatch cockroachdb codeql deepmind
deepseek devops dynamodb ebay elasticsearch excalidraw facebook fastapi figjam flutterflow github gitlab gitops graphql grpc
hubspot huggingface icloud influxdb ios ipad iphone javascript jquery kubectl langchain langgraph latex libreoffice linkedin
litellm llamaindex lmstudio macbook macos mariadb matlab metaclaw mlflow mongodb mysql nestjs netflix nextjs nodejs numpy oauth
onedrive onenote openai openapi openclaw opencode opentelemetry openvpn paypal pgvector phpmyadmin playstation postgresql postgres
postcss powerpoint powershell protobuf pydantic pypi pytest pytorch rabbitmq redbubble redshift restful salesforce scikit
sharepoint soundcloud sqlalchemy sqlite stackoverflow sveltekit swiftui tailwindcss tensorflow textedit tiktok toml typescript
ubuntu unicode vscode webassembly webgl webhook webpack webrtc websocket whatsapp wifi woocommerce wordpress xcode youtube
zookeeper
"""

# Written with a capital inside, yet one word: taking these apart would make JavaScript a kind of Java.
BRANDS = frozenset(_BRANDS.split())

_FUNCTION_WORDS = (
    "a an the and or but if then than so as at by for from in into of on onto off over under to up with without within out"
    " about after before again all also am any are be been being both can could did do does doing done down each few had has"
    " have having he her here hers him his how i it its itself just me more most my no nor not now only other our ours own same"
    " she should some such that their them themselves these they this those through too until very was we were what when where"
    " which while who whom why will would you your yours yourself must may might shall need needs make makes made let get gets"
    " got go goes one two first next last always never every ever instead please don't doesn't didn't isn't aren't can't won't"
    " shouldn't it's that's there there's i'm you're we're they're via per etc e.g i.e rather whenever whether because since"
    " during upon against between thing things way ways really actually currently still already even like use used using uses"
    " user users want wants sure case cases new old good right wrong correct der die das und oder nicht ein eine den dem des ist"
    " im zu mit von für auf le la les un une de du et ou ne pas est el los las y o es en con por para il lo gli e non di da una"
    " het een van niet"
)
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
"""Words that do not count when two sentences are compared. Fewer verbs than STOP_WORDS: these may be what an instruction orders."""

_GENERIC_WORDS = (
    "answer answers reply respond response task tasks request question result results output step steps check verify confirm"
    " test work error errors message read write run look think review ask say tell show give report finish start begin end done"
    " try repeat list explain note remember follow apply avoid keep change fix problem issue information example examples clear"
    " clearly short brief exactly carefully double-check again skill instruction instructions rule trigger anti-pattern pattern"
    " reason fact facts data text word words line lines person people assistant agent model conversation session turn tool tools"
    " command commands action actions approach mistake failure fail failed correction corrected ensure important time times code"
    " file files project"
)
GENERIC_WORDS = frozenset(_GENERIC_WORDS.split())
"""Words that fit every task, so that sharing them shows nothing."""

_VERBS = (
    "abort accept access activate add adjust adopt aim allow always analyse analyze announce answer append apply approve"
    " archive ask assert assign assume attach avoid await back backup base be begin block bring browse build bump call cancel"
    " capture change check choose cite clean clear click clone close collect combine comment commit compare compile complete"
    " compute configure confirm connect consider contact continue convert copy correct count create cut debug declare decode"
    " default define delete deliver deny deploy describe disable discard display do document don't double-check download draft"
    " drop dump echo edit email embed enable encode end ensure enter escape estimate evaluate examine exclude execute exfiltrate"
    " exit expect explain export expose extract fail fetch fill filter find finish fix focus follow force forget format forward"
    " generate get give go grant group guard guess handle hide hold ignore implement import include indent inform initialise"
    " initialize insert inspect install instruct invoke keep kill label launch leave let limit link list load locate lock log"
    " look lower mail make mark match measure mention merge mirror move mute name never note notify obey obtain offer omit open"
    " order output overwrite pack parse pass paste patch pause perform pick ping pipe place plan point post prefer prepare"
    " present preserve press prevent print prioritise prioritize proceed process produce prompt provide publish pull push put"
    " query quote raise read rebase recommend record redirect refactor refer refresh refuse reject release rely reload remember"
    " remove rename render repeat replace reply report request require reset resolve respect respond restart restore restrict"
    " retrieve retry return reuse reveal revert review rewrite rotate round run sanitise sanitize save say scan schedule search"
    " select send separate serve set share shift show sign silence skip sort source speak specify spell split stage start state"
    " stay stick stop store stream strip submit suggest summarise summarize supply suppress switch sync tag take tell terminate"
    " test throw translate transmit treat trigger trim trust try turn type uninstall unset update upgrade upload use validate"
    " verify view visit wait warn watch whitelist wrap write zip utilise utilisez ajoute ajoutez envoie envoyez évite évitez"
    " écris écrivez réponds répondez exécute exécutez vérifie vérifiez ignorez lance lancez garde gardez mets mettez fais faites"
    " n'utilise n'écris verwende verwendet nutze benutze schreib schreibe sende schicke antworte führe prüfe ignoriere lösche"
    " füge mach mache nimm vermeide stelle setze gib lies lade starte rufe behalte verwenden benutzen senden usa utiliza escribe"
    " envía responde ejecuta evita añade agrega comprueba verifica ignora borra pon haz mantén utilize escreva envie responda"
    " evite adicione verifique apague mantenha faça scrivi invia rispondi esegui aggiungi controlla cancella metti mantieni fai"
    " gebruik schrijf stuur antwoord voer vermijd controleer negeer verwijder houd"
)
VERBS = frozenset(_VERBS.split())
"""Verbs that begin a command in English, then forms of command in French, German, Spanish, Portuguese, Italian and Dutch."""
