"""The floor: claim and settle in one loop on one bare psycopg connection. `python -m benchmarks.floor URL SCHEMA BATCH`

What any queue with these rows must do, and nothing else: no handlers, no threads, no leases to renew. It stays as it
is, so that figures can be compared over the years.
"""

import sys
from datetime import UTC, datetime

import psycopg

LEVELS = list(range(9, -10, -1))

CLAIM = """
with due as materialized (
  select t.id
  from unnest(%(levels)s::smallint[]) with ordinality as level(priority, place)
  cross join lateral (
    select id from tasks
    where queue = 'default' and priority = level.priority
      and not_before <= now() and not_before >= %(floor)s
      and status = 'pending' and agent is null and not blocked and requires = '{}'
    order by not_before, id
    limit %(batch)s
    for update skip locked
  ) t
  limit %(batch)s
)
update tasks
set status = 'running', lease_token = gen_random_uuid(), lease_expires_at = now() + interval '60s',
    lease_owner = 'floor', attempts = attempts + 1, fence = fence + 1, started_at = now(), updated_at = now()
where id = any (array (select id from due))
returning id, action, payload::text, attempts, lease_token, not_before
"""

SETTLE = """
update tasks t
set status = 'completed', lease_token = null, lease_expires_at = null, lease_owner = null,
    finished_at = now(), updated_at = now(), progress = 100
from unnest(%s::uuid[], %s::uuid[]) done(id, token)
where t.id = done.id and t.lease_token = done.token
returning t.id
"""


def drain(url: str, schema: str, batch: int) -> None:
    long_ago = datetime(2000, 1, 1, tzinfo=UTC)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("select set_config('search_path', %s, false)", [schema])
        while rows := connection.execute(CLAIM, {"levels": LEVELS, "batch": batch, "floor": long_ago}).fetchall():
            connection.execute(SETTLE, ([row[0] for row in rows], [row[4] for row in rows])).fetchall()


if __name__ == "__main__":
    drain(sys.argv[1], sys.argv[2], int(sys.argv[3]))
