"""How much of the labels each client has readings for."""

from __future__ import annotations

from anabranch.errors import AwayError
from anabranch.parties.check.findings import Shared
from anabranch.parties.check.party import Checked

LOOKED_UP, LOOKED_UP_IN_A_DATABASE = 10_000, 300
"""So many labels are looked up at each client; each is a query to a database, which may lack an index."""


def shared(server: Checked, client: Checked) -> Shared:
    """Return how many of a server's labels a client has an event, or any values, for."""
    name, labels = client.findings.party, len(server.names)
    problem = ""
    if (server.key is None) != (client.key is None):
        problem = "one has a source and the other a plain table: their events have other names"
    elif server.key is not None and client.key is not None and server.key != client.key:
        what = "entity key" if server.key[0] != client.key[0] else "grain"
        problem = f"they have another {what}: all parties need the same"
    if problem or not server.names or not client.names:
        return Shared(name, labels, 0, 0, 0, None, problem)
    own = {*client.names}
    same = sum(each in own for each in server.names)
    entities = None
    if server.findings.entities is not None:
        entities = len({each[:16] for each in server.names} & {each[:16] for each in own})
    step = -(-labels // (LOOKED_UP_IN_A_DATABASE if client.is_slow else LOOKED_UP))
    tried = server.names[::step]
    return Shared(name, labels, same, len(tried), sum(_has(client, each) for each in tried), entities)


def _has(client: Checked, event: bytes) -> bool:
    try:
        return client.look(event) is not None
    except AwayError:
        return False
