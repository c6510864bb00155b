"""What makes dependencies and the full journal work: triggers, and what they look up in `meta`.

The trigger functions are SECURITY DEFINER with a fixed search_path, as every trigger function of this schema: a
producer with INSERT alone would fail at COMMIT otherwise.
"""

from __future__ import annotations

from alembic import context, op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COLUMNS = """
alter table {schema}.meta add column orphan_grace interval not null default interval '5 minutes';
alter table {schema}.meta add column full_since timestamptz;
alter table {schema}.meta add constraint meta_orphan_grace_positive check (orphan_grace >= interval '0');
-- What a replay needs and the other columns do not carry: of an enqueue the fields that may change later.
alter table {schema}.task_events add column changes jsonb;
-- Dead rows wait for a person: an index that held them too would be walked over at every pass.
drop index {schema}.prunable;
create index prunable on {schema}.tasks (finished_at)
  where status in ('completed', 'cancelled') and not dedupe_forever;
-- Look-ups by agent and action find what waits through claim_agent, which holds no gated task; `blocked` holds those of
-- all agents. One entry per gated task of an agent: nobody else pays.
create index blocked_agent on {schema}.tasks (agent, action)
  where status = 'pending' and blocked and agent is not null
"""

# Run at COMMIT, when the child's transaction may have been open for long. It must not wait (waiting for parents, in the
# order of the caller's enqueues, deadlocked 19 of 3,200 commits) and never raises: a parent that is locked, absent or
# ended is left to the sweep. KEY SHARE conflicts only with the FOR UPDATE of whoever ends a task, not with a renewal.
EDGES = """
create function {schema}.look_at_parent() returns trigger language plpgsql
security definer set search_path = {schema}, pg_temp as $$
declare
  parent text;
  seen boolean := false;
begin
  if current_setting('transaction_isolation') in ('read committed', 'read uncommitted') then
    select status into parent from tasks where id = new.parent_id for key share skip locked;
    seen := found;
  end if;
  -- Alive, and locked until this transaction has committed: whoever ends it will see the edge.
  if seen and parent in ('pending', 'running') then
    return null;
  end if;
  seen := exists (select from tasks where id = new.parent_id);
  -- The edge may have been replaced since, by the same transaction.
  update task_dependencies
  set look_at = case when seen then clock_timestamp()
    else clock_timestamp() + (select orphan_grace from meta) end
  where child_id = new.child_id and parent_id = new.parent_id and lifted_at is null;
  -- An empty payload: edges to look at. One in flight is enough.
  if seen and pg_try_advisory_xact_lock(hashtextextended('{schema}:', 0)) then
    perform pg_notify(left('{schema}', 48) || '_tasks', '');
  end if;
  return null;
end $$;
create constraint trigger edge_is_looked_at after insert on {schema}.task_dependencies
  deferrable initially deferred for each row when (new.lifted_at is null)
  execute function {schema}.look_at_parent()
"""

# The full journal's part of the events; the rest is written by whoever moves the task. Per statement, not per row. What
# looks like no move of the program's is not written: the audit finds it. The triggers themselves come and go with the
# journal's setting: at rest they would cost 20 us of CPU a statement, and the collecting of every row.
JOURNAL = """
create function {schema}.journal_enqueues() returns trigger language plpgsql
security definer set search_path = {schema}, pg_temp as $$
begin
  insert into task_events (task_id, event, to_status, attempt, fence, changes)
  select id, 'enqueue', status, attempts, fence,
    jsonb_build_object('priority', priority, 'max_attempts', max_attempts, 'dedupe_key', dedupe_key)
  from inserted;
  return null;
end $$;
-- The plan is made at a session's first statement and kept: made for one row, a nested loop would then pair a thousand
-- with a thousand.
create function {schema}.journal_moves() returns trigger language plpgsql
security definer set search_path = {schema}, pg_temp set enable_nestloop = off as $$
begin
  insert into task_events (task_id, event, from_status, to_status, attempt, fence, by)
  select id, event, was, becomes, attempt, fence, by
  from (
    select o.id, o.status as was, n.status as becomes, greatest(o.attempts, n.attempts) as attempt, n.fence,
      coalesce(n.lease_owner, o.lease_owner) as by,
      case
        when o.status = 'pending' and n.status = 'running' and n.fence = o.fence + 1 and n.attempts = o.attempts + 1
          then 'claim'
        when o.status = 'running' and n.fence = o.fence and n.lease_token = o.lease_token then case
          when n.status = 'completed' and n.attempts = o.attempts and n.last_error is null and n.progress = 100
            then 'complete'
          -- A release keeps its place in the line; a failure keeps its attempt.
          when n.status = 'pending' and n.attempts = o.attempts - 1 and n.not_before > o.not_before
            then 'snooze'
        end
      end as event
    from before o join after n on n.id = o.id
  ) moved
  where event is not null;
  return null;
end $$
"""


def _run(script: str) -> None:
    schema = context.config.attributes["schema_quoted"]
    op.execute(script.format(schema=schema))


def upgrade() -> None:
    for script in (COLUMNS, EDGES, JOURNAL):
        _run(script)


def downgrade() -> None:
    _run(
        "drop trigger if exists moves_are_journalled on {schema}.tasks;"
        " drop trigger if exists enqueues_are_journalled on {schema}.tasks;"
        " update {schema}.meta set journal = 'failures';"
        " drop function {schema}.journal_moves(); drop function {schema}.journal_enqueues();"
        " drop trigger edge_is_looked_at on {schema}.task_dependencies; drop function {schema}.look_at_parent();"
        " alter table {schema}.task_events drop column changes; alter table {schema}.meta drop column full_since;"
        " alter table {schema}.meta drop column orphan_grace; drop index {schema}.prunable;"
        " drop index {schema}.blocked_agent;"
        " create index prunable on {schema}.tasks (finished_at) where finished_at is not null and not dedupe_forever"
    )
