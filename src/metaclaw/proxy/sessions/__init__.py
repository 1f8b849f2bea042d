"""Who is speaking: the session, kind and place of every request, found from what real clients
send.
"""

from metaclaw.proxy.sessions.origins import Origins
from metaclaw.proxy.sessions.recognition import own_words, scope_of
