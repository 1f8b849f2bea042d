"""Word lists for retrieval: words that say nothing, words that say little, and names that only look like identifiers."""

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
