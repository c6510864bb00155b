"""The queue: tasks, their edges and events, workers, pauses, and one row about the schema itself.

Everything is created in one transaction in an empty schema, so plain CREATE INDEX is right here; a later
migration that adds an index to a living table builds it concurrently.
"""

from __future__ import annotations

from alembic import context, op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TASKS = r"""
create table {schema}.tasks (
  id uuid not null primary key,
  queue text not null,
  action text not null,
  agent text,
  account text,
  status text not null default 'pending',
  active boolean not null generated always as (status in ('pending', 'running')) stored,
  priority smallint not null default 0,
  payload jsonb,
  result jsonb,
  attempts integer not null default 0,
  max_attempts integer not null default 3,
  fence integer not null default 0,
  not_before timestamptz not null default clock_timestamp(),
  waiting_on integer not null default 0,
  blocked boolean not null generated always as (waiting_on > 0) stored,
  requires text[] not null default '{{}}',
  on_parent_failure text not null default 'cancel',
  dedupe_key text,
  dedupe_forever boolean not null default false,
  lease_token uuid,
  lease_owner text,
  lease_expires_at timestamptz,
  cancel_requested boolean not null default false,
  progress smallint not null default 0,
  message text,
  last_error text,
  timeout interval,
  trigger jsonb,
  metadata jsonb,
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp(),
  started_at timestamptz,
  finished_at timestamptz,
  constraint tasks_status_known check (status in ('pending', 'running', 'completed', 'dead', 'cancelled')),
  constraint tasks_leased_while_running check (
    (status = 'running') = (lease_expires_at is not null) and (status = 'running') = (lease_owner is not null)
    and (status <> 'running' or lease_token is not null)),
  constraint tasks_finished_when_terminal check (
    (status in ('completed', 'dead', 'cancelled')) = (finished_at is not null)),
  constraint tasks_no_cancel_request_on_pending check (not (cancel_requested and status = 'pending')),
  constraint tasks_waiting_on_counts check (
    waiting_on >= 0 and (waiting_on = 0 or status in ('pending', 'cancelled'))),
  constraint tasks_attempts_within_fence check (attempts between 0 and fence),
  constraint tasks_max_attempts_range check (max_attempts between 1 and 1000),
  constraint tasks_priority_range check (priority between -9 and 9),
  constraint tasks_progress_range check (progress between 0 and 100),
  constraint tasks_on_parent_failure_known check (on_parent_failure in ('cancel', 'run')),
  constraint tasks_forever_needs_a_key check (dedupe_key is not null or not dedupe_forever),
  constraint tasks_timeout_positive check (timeout > interval '0' and timeout < interval '4000 days'),
  constraint tasks_names_printable check ((
    queue || action || coalesce(agent, '') || coalesce(account, '') || coalesce(dedupe_key, '')
    || coalesce(lease_owner, '')) !~ '[\x01-\x1f\x7f]'),
  constraint tasks_names_length check (
    octet_length(queue) between 1 and 512 and octet_length(action) between 1 and 512
    and octet_length(agent) between 1 and 512 and octet_length(account) between 1 and 512
    and octet_length(dedupe_key) between 1 and 512 and octet_length(lease_owner) between 1 and 512),
  constraint tasks_instants_readable check (
    not_before between '1970-01-01 00:00:00+00' and '9999-01-01 00:00:00+00'
    and created_at between '1970-01-01 00:00:00+00' and '9999-01-01 00:00:00+00'
    and updated_at between '1970-01-01 00:00:00+00' and '9999-01-01 00:00:00+00'
    and started_at between '1970-01-01 00:00:00+00' and '9999-01-01 00:00:00+00'
    and finished_at between '1970-01-01 00:00:00+00' and '9999-01-01 00:00:00+00'
    and lease_expires_at between '1970-01-01 00:00:00+00' and '9999-01-01 00:00:00+00')
) with (
  -- Room on the page for the versions that claim, renew and settle make.
  fillfactor = 70,
  -- Thresholds, not shares of the table: a queue turns over at the same rate however long its history is.
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000,
  autovacuum_vacuum_cost_delay = 1,
  -- Truncation takes an exclusive lock and cancels queries on replicas.
  vacuum_truncate = off)
"""

INDEXES = """
create unique index uniq_running_per_agent on {schema}.tasks (agent) where status = 'running' and agent is not null;
-- Before the unique ones: on an empty table the planner takes, of equals, the index that was made last, and a plan that
-- was prepared then would go on reading an agent's or a key's whole history to find the one active task of the key.
create index by_agent on {schema}.tasks (agent, id desc) where agent is not null;
create index dedupe_history on {schema}.tasks (agent, dedupe_key, id desc) where dedupe_key is not null;
create unique index uniq_active_dedupe on {schema}.tasks (agent, dedupe_key) nulls not distinct
  where active and dedupe_key is not null;
create unique index uniq_forever_dedupe on {schema}.tasks (agent, dedupe_key) nulls not distinct
  where dedupe_forever and dedupe_key is not null;
create index claim_due on {schema}.tasks (queue, priority, not_before, id)
  where status = 'pending' and agent is null and not blocked and requires = '{{}}';
create index claim_agent on {schema}.tasks (queue, agent, priority desc, not_before, id)
  where status = 'pending' and agent is not null and not blocked;
create index due_agent on {schema}.tasks (queue, not_before, agent)
  where status = 'pending' and agent is not null and not blocked;
create index claim_conditional on {schema}.tasks (queue, requires, priority, not_before, id)
  where status = 'pending' and agent is null and not blocked and requires <> '{{}}';
create index running on {schema}.tasks (lease_expires_at) where status = 'running';
create index blocked on {schema}.tasks (id) where status = 'pending' and blocked;
create index dead on {schema}.tasks (id desc) where status = 'dead';
create index prunable on {schema}.tasks (finished_at) where finished_at is not null and not dedupe_forever
"""

REST = """
create table {schema}.task_dependencies (
  child_id uuid not null,
  parent_id uuid not null,
  look_at timestamptz,
  lifted_at timestamptz,
  primary key (child_id, parent_id),
  constraint task_dependencies_no_self check (child_id <> parent_id)
);
create index task_dependencies_parent on {schema}.task_dependencies (parent_id) where lifted_at is null;
create index task_dependencies_look_at on {schema}.task_dependencies (look_at) where look_at is not null;
create table {schema}.task_events (
  id bigint not null generated always as identity primary key,
  task_id uuid not null,
  at timestamptz not null default clock_timestamp(),
  event text not null,
  from_status text,
  to_status text not null,
  attempt integer not null default 0,
  fence integer not null default 0,
  by text,
  detail text
);
create index task_events_task on {schema}.task_events (task_id, id);
create table {schema}.workers (
  id uuid not null primary key,
  name text not null,
  host text not null,
  pid integer not null,
  version text not null,
  queues text[] not null,
  actions text[] not null,
  offers text[] not null default '{{}}',
  concurrency integer not null,
  started_at timestamptz not null default clock_timestamp(),
  seen_at timestamptz not null default clock_timestamp()
);
create table {schema}.pauses (
  kind text not null,
  name text not null,
  by text,
  since timestamptz not null default clock_timestamp(),
  primary key (kind, name),
  constraint pauses_kind_known check (kind in ('queue', 'agent'))
);
create table {schema}.meta (
  single_row boolean not null default true primary key,
  oldest_program text not null,
  journal text not null default 'failures',
  constraint meta_one_row check (single_row),
  constraint meta_journal_known check (journal in ('failures', 'full'))
);
insert into {schema}.meta (oldest_program) values ('0.1.0')
"""

# Final statuses are final for hand-written SQL too. SECURITY DEFINER with a fixed search_path, as every trigger
# function of this schema: the role that writes may have no rights beyond its own statement.
GUARD = """
create function {schema}.refuse_leaving_final_status() returns trigger language plpgsql
security definer set search_path = {schema}, pg_temp as $$
begin
  raise exception 'task % is %, which is final: it cannot become %', old.id, old.status, new.status
    using errcode = 'check_violation', hint = 'Enqueue a new task instead.';
end $$;
create trigger final_is_final before update on {schema}.tasks for each row
  when (old.status in ('completed', 'cancelled') and old.status is distinct from new.status)
  execute function {schema}.refuse_leaving_final_status()
"""


def _run(script: str) -> None:
    schema = context.config.attributes["schema_quoted"]
    op.execute(script.format(schema=schema))


def upgrade() -> None:
    for script in (TASKS, INDEXES, REST, GUARD):
        _run(script)


def downgrade() -> None:
    _run(
        "drop table {schema}.tasks, {schema}.task_dependencies, {schema}.task_events, {schema}.workers,"
        " {schema}.pauses, {schema}.meta; drop function {schema}.refuse_leaving_final_status()"
    )
