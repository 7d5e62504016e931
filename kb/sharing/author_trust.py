"""Trust in the authors of measurements that come from a lake: how these measurements are used.

    answer   used like our own, except that a failed configuration is run again before the failure counts
    hint     a warm start tries their best configurations; they replace no experiments and train no simulators
    ignore   stored but not used

An author without a decision has the level `hint`. Trust is looked up whenever a row is used, so changes take effect at
once.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from kb import claims, dates, door
from kb.connect import reader, writer
from kb.records import AutoscoutError
from kb.sharing.signatures import UNSIGNED

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Level = Literal["answer", "hint", "ignore"]


class Author(msgspec.Struct, frozen=True):
    name: str
    level: Level
    key: str
    sessions: int
    measurements: int


def decide(kb: Path, author: str, level: str, key: str = "") -> None:
    """Sets the trust in an author. `key`: the author's public key, which is needed for the first decision. Errors:
    AutoscoutError (exit 2)."""
    door.name(author, "author")
    if level not in get_args(Level):
        raise AutoscoutError(f"'{level}' is not a level of trust; choose one of {', '.join(get_args(Level))}", 2)
    with writer(kb) as con:
        known = keys(con)
        if author == UNSIGNED and key:
            raise AutoscoutError(f"{UNSIGNED} means files without a signature, which have no key; omit --key", 2)
        if author != UNSIGNED and not (key or known.get(author)):
            raise AutoscoutError(f"the public ssh key of {author} is not known yet; pass it with --key FILE.pub", 2)
        con.execute(
            "INSERT INTO trust VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET level = excluded.level, "
            "key = excluded.key, unix_s = excluded.unix_s",
            [author, level, key or known.get(author, ""), dates.now()],
        )


def authors(kb: Path) -> list[Author]:
    """All authors with a decision or with stored sessions: level of trust, numbers of sessions and measurements."""
    with reader(kb) as con:
        found = con.execute(
            """
            WITH brought AS (
                SELECT a.author, count(DISTINCT a.session) AS sessions, count(m.id) AS measurements
                FROM author AS a
                LEFT JOIN origin AS o ON o.session = a.session
                LEFT JOIN measurement AS m ON m.origin = o.key
                GROUP BY a.author
            )

            SELECT
                coalesce(t.author, b.author), coalesce(t.level, 'hint'), coalesce(t.key, ''),
                coalesce(b.sessions, 0), coalesce(b.measurements, 0)
            FROM trust AS t FULL JOIN brought AS b ON b.author = t.author ORDER BY 1
            """
        ).fetchall()
    return [Author(*row) for row in found]


def keys(con: "DuckDBPyConnection") -> dict[str, str]:
    return dict(con.execute("SELECT author, key FROM trust").fetchall())


def admit(con: "DuckDBPyConnection", signed: dict[str, str]) -> dict[str, door.Refused]:
    """Accepts or refuses the files in the temporary table `arrived` by their authors (`signed`: file hash → author),
    and stores the authors of their sessions; returns the refused files.

    Files with sessions of our own are ignored, since we have their journals. Only the author who first signed a session
    can change it; an unsigned version is replaced by a signed one.
    """
    ours = "SELECT id FROM session WHERE id NOT IN (SELECT session FROM author) UNION SELECT session FROM journal"
    con.execute(f"DELETE FROM arrived WHERE session IN ({ours})")
    known = dict(con.execute("SELECT session, author FROM author").fetchall())
    pairs = con.execute("SELECT DISTINCT hash, session FROM arrived ORDER BY ALL").fetchall()
    refused: dict[str, door.Refused] = {}
    for file, session in sorted(pairs, key=lambda pair: signed.get(pair[0], UNSIGNED) == UNSIGNED):
        author = signed.get(file, UNSIGNED)
        before = known.get(session, author)
        if not author:
            refused[file] = door.Refused("the signature does not match the file")
        elif before == UNSIGNED != author:
            claims.remove(con, [session])
            con.execute("UPDATE author SET author = ? WHERE session = ?", [author, session])
        elif before != author:
            refused[file] = door.Refused(f"its session {session} belongs to {before}, who did not sign this file")
        else:
            con.execute("INSERT INTO author VALUES (?, ?) ON CONFLICT DO NOTHING", [session, author])
        if file not in refused:
            known[session] = author
    return refused
