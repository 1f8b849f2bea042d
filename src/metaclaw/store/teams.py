"""Teams: who is in which, so that the database itself can tell whose prompts a team's rules reach."""

from collections.abc import Collection, Mapping

from sqlalchemy import delete, insert, select

from metaclaw.store.database import Database
from metaclaw.store.packing import pack_text
from metaclaw.store.schema import team_members


class SqlTeams:
    """The configured teams in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def replace(self, teams: Mapping[str, Collection[str]]) -> None:
        """These teams, each with its users, instead of those that are there."""
        wanted = {(pack_text(member), pack_text(team)) for team, members in teams.items() for member in members}
        with self._database.reading("reading the teams") as connection:
            stored = {(row.member, row.team) for row in connection.execute(select(team_members))}
        if wanted == stored:
            return
        with self._database.writing("storing the teams") as connection:
            connection.execute(delete(team_members))
            if wanted:
                connection.execute(insert(team_members), [{"member": member, "team": team} for member, team in sorted(wanted)])
