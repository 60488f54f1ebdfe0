"""Record what a real server sends for a small story, with what it means, into files that the corpus tests replay.

    .venv/bin/python tests/corpus/record_postgres.py

Each story becomes `postgres/<name>.txt`: the SQL, the shapes of its tables, the server's messages as hex, and the
decoded changes as text. A file is read by `test_postgres_corpus.py` without any server, so that a change in a decoder
shows as a difference in what was recorded, on every machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.servers.postgres import PostgresServer  # noqa: E402
from tests.support.postgres.corpus import STORIES, recorded  # noqa: E402  # found by the lines above
from tests.support.postgres.wire import Lab  # noqa: E402


def main() -> None:
    place = HERE / "postgres"
    with PostgresServer() as server:
        for number, (name, story) in enumerate(STORIES.items()):
            database = server.create_database(f"corpus_{number}")
            lab = Lab(database)
            (place / f"{name}.txt").write_text(recorded(lab, name, story))
            lab.close()
            database.drop()  # with its slot
            print(f"recorded {name}")


if __name__ == "__main__":
    main()
