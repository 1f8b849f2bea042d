"""Word lists of this room, kept apart from the code that reads them."""

_EMPTY = (
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
EMPTY = frozenset(_EMPTY.split())
"""Words that say nothing on their own."""

_GENERIC = (
    "answer answers reply respond response task tasks request question result results output step steps check verify confirm"
    " test work error errors message read write run look think review ask say tell show give report finish start begin end done"
    " try repeat list explain note remember follow apply avoid keep change fix problem issue information example examples clear"
    " clearly short brief exactly carefully double-check again skill instruction instructions rule trigger anti-pattern pattern"
    " reason fact facts data text word words line lines person people assistant agent model conversation session turn tool tools"
    " command commands action actions approach mistake failure fail failed correction corrected ensure important time times code"
    " file files project"
)
GENERIC = frozenset(_GENERIC.split())
"""Words that are said of every task."""

_COMMON_PAIRS = (
    "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le ve co me de hi ri ro ic ne ea ra"
    " ce li ch ll be ma si om ur ca el ta la ns di fo ho pe ec pr no ct us ac ot il tr ly nc et ut ss so rs un lo wa ge ie wh ee"
    " wi em ad ol rt po we na ul ni ts mo ow pa im mi ai sh ir su id os iv ia am fi ci vi pl ig tu ev ld ry mp fe bl ab gh ty op"
    " wo sa ay ex ke fr oo av ag if ap gr od bo sp rd do uc bu ei ov by rm ep tt oc fa ef cu rn sc gi da yo cr cl du ga qu ue ff"
    " ba ey ls va um pp ua up lu go ht ru ug ds lt pi rc rr eg au ck ew mu br bi pt ak pu ui rg ib tl ny ki rk ys ob mm fu ph og"
    " ms ye ud mb ip ub oi rl gu dr hr cc tw ft wn nu af hu nn eo vo rv nf xp gn sm fl iz ok nl my gl aw ju oa eq sy sl ps jo lf"
    " nv je nk kn gs dy hy ze ks xt bs ik dd rp sk xi oe oy ws lv dl rf eu dg wr xa yi nm eb tc tm kr xc js md db http"
)
COMMON_PAIRS = frozenset(_COMMON_PAIRS.split())
"""The commonest pairs of letters in words and identifiers; a pair drawn by lot is one of them in about one case of three."""

_PLAIN_VALUES = (
    "none null nil undefined true false yes no on off str string text bytes byte int integer number bool boolean object any"
    " array list dict map char varchar required optional empty missing invalid expired wrong incorrect correct valid set unset"
    " default hidden secret password passwd token key auth bearer basic digest value field input type name prompt stdin env file"
    " here it and or the to for is was of with from this that not must should can will has have are be in disabled enabled ok"
    " error failed example changeme placeholder test todo tbd n/a refresh access session optional[str] secretstr self cls ctx"
    " args reset rotate rotated unknown if credential credentials secretbytes apikey api_key"
)
PLAIN_VALUES = frozenset(_PLAIN_VALUES.split())
"""What stands behind a secret's name without being one: types, masks, words of a sentence."""

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
