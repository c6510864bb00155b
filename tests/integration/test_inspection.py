"""get, list_tasks, count_tasks, stats, events, find: what there is, and which one is meant."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from pgqueue.client import Client
from pgqueue.errors import AmbiguousId, InputError, TaskNotFound
from pgqueue.ids import new_id
from pgqueue.lifecycle import ACTIVE, Status
from pgqueue.options import NewTask
from tests.support import Sql


def make(client: Client, *tasks: dict[str, Any]) -> list[UUID]:
    new = [NewTask(o.pop("action", "noop"), n, cast("Any", o)) for n, o in enumerate(tasks)]
    return [made.id for made in client.enqueue_many(new)]


def one_of_each(client: Client) -> dict[Status, UUID]:
    """A task in each status."""
    made: dict[Status, UUID] = {}
    for status in (Status.COMPLETED, Status.DEAD, Status.RUNNING):
        made[status] = client.enqueue("noop", agent=status.value).id
        held = client.claim(status.value)
        assert held is not None
        if status is Status.COMPLETED:
            client.complete(held)
        elif status is Status.DEAD:
            client.bury(held, "100% of _them_ failed")
    made[Status.PENDING] = client.enqueue("noop").id
    made[Status.CANCELLED] = client.enqueue("noop").id
    client.cancel(made[Status.CANCELLED])
    return made


def listed(client: Client, **filters: Any) -> list[UUID]:
    return [task.id for task in client.list_tasks(**filters)]


def test_get_of_an_unknown_id_says_what_to_do(face: Client) -> None:
    unknown = new_id()
    with pytest.raises(TaskNotFound, match=f"no task {unknown}.*pgqueue list") as caught:
        face.get(unknown)
    assert caught.value.task_id == unknown


def test_get_reads_the_row_as_it_is(face: Client, sql: Sql) -> None:
    made = face.enqueue("noop", [1], agent="a", account="acme", dedupe_key="k", timeout=90)
    sql("update pgqueue.tasks set requires = '{a,b}', on_parent_failure = 'run', waiting_on = 2")
    task = face.get(made.id)
    assert (task.requires, task.on_parent_failure, task.waiting_on) == (("a", "b"), "run", 2)
    assert (task.timeout, task.dedupe_forever, task.is_active, task.is_final) == (
        timedelta(seconds=90),
        False,
        True,
        False,
    )
    assert task.created_at.utcoffset() == timedelta(0)


@pytest.mark.parametrize("status", Status)
def test_list_by_status_finds_it(face: Client, status: Status) -> None:
    made = one_of_each(face)
    assert listed(face, status=status) == [made[status]]
    assert listed(face, status=status.value) == [made[status]]
    assert face.count_tasks(status=status) == 1


def test_list_is_newest_first(face: Client) -> None:
    made = make(face, *({} for _ in range(7)))
    assert listed(face) == made[::-1]
    assert listed(face, limit=3) == made[:-4:-1]


def test_list_by_several_statuses_finds_those(face: Client) -> None:
    made = one_of_each(face)
    assert set(listed(face, status=[Status.DEAD, "running"])) == {made[Status.DEAD], made[Status.RUNNING]}
    assert face.count_tasks(status=list(ACTIVE)) == 2


@pytest.mark.parametrize(
    ("name", "value", "options"),
    [
        ("queue", "mail", {"queue": "mail"}),
        ("action", "send", {"action": "send"}),
        ("agent", "host-7", {"agent": "host-7"}),
        ("account", "acme", {"account": "acme"}),
        ("key", "k", {"dedupe_key": "k"}),
    ],
)
def test_list_and_count_by_a_name_find_it_alone(face: Client, name: str, value: str, options: dict[str, Any]) -> None:
    _, wanted, _ = make(face, {}, dict(options), {"queue": "other", "agent": "other"})
    assert listed(face, **{name: value}) == [wanted]
    assert face.count_tasks(**cast("Any", {name: value})) == 1
    assert listed(face, **{name: value + "x"}) == []
    assert listed(face, **{name: value, "status": "dead"}) == []


@pytest.mark.parametrize(("text", "found"), [("100%", True), ("_them_", True), ("10_%", False), ("of%them", False)])
def test_list_by_a_piece_of_the_error_takes_it_literally(face: Client, text: str, found: bool) -> None:
    dead = one_of_each(face)[Status.DEAD]
    assert listed(face, error_contains=text) == ([dead] if found else [])
    assert listed(face, status="dead", error_contains=text) == ([dead] if found else [])


def test_list_since_a_time_leaves_out_what_is_older(face: Client, sql: Sql) -> None:
    old, new = make(face, {}, {})
    sql("update pgqueue.tasks set created_at = now() - interval '2 days' where id = %s", old)
    assert listed(face, since=datetime.now(UTC) - timedelta(days=1)) == [new]
    assert face.count_tasks(since=datetime.now(UTC) - timedelta(days=3)) == 2


@pytest.mark.parametrize("filters", [{}, {"status": "pending"}, {"agent": "a"}, {"queue": "default"}, {"key": "k"}])
def test_list_by_pages_shows_every_task_once(face: Client, sql: Sql, filters: dict[str, Any]) -> None:
    made = make(face, *({"agent": "a"} for _ in range(10)))
    if "key" in filters:
        sql("update pgqueue.tasks set status = 'dead', finished_at = now(), dedupe_key = 'k'")
    seen: list[UUID] = []
    before = None
    pages = 0
    while pages < 9:
        pages += 1
        page = face.list_tasks(limit=3, before=before, **filters)
        seen += [task.id for task in page]
        before = page.next
        if before is None:
            break
    assert seen == made[::-1]
    assert pages == 4


def test_list_says_how_far_it_looked(face: Client) -> None:
    make(face, *({} for _ in range(10)))
    page = face.list_tasks(queue="nobodys")
    assert (len(page), page.next, page.looked) == (0, None, 10)


def test_list_of_a_rare_filter_looks_back_over_a_bounded_number(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqueue.store.inspect.LOOK_BACK", 4)
    rare, *_ = make(client, {"queue": "rare"}, *({} for _ in range(9)))
    pages = []
    before = None
    for _ in range(4):
        page = client.list_tasks(queue="rare", limit=2, before=before)
        pages.append([task.id for task in page])
        before = page.next
        if before is None:
            break
    assert pages == [[], [], [rare]]


@pytest.mark.parametrize(
    ("field", "filters"),
    [
        ("status", {"status": "done"}),
        ("status", {"status": ["dead", "x"]}),
        ("limit", {"limit": 0}),
        ("limit", {"limit": 10_001}),
    ],
)
def test_list_with_a_bad_filter_is_refused(untouched: Client, field: str, filters: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        untouched.list_tasks(**filters)
    assert caught.value.field == field


def test_stats_names_all_five_statuses_in_order_and_the_total(face: Client) -> None:
    empty = face.stats()
    assert list(empty) == [*(s.value for s in Status), "total"]
    assert set(empty.values()) == {0}
    one_of_each(face)
    assert face.stats() == {**dict.fromkeys((s.value for s in Status), 1), "total": 5}


def test_events_of_an_ordinary_task_are_none(face: Client) -> None:
    made = face.enqueue("noop", agent="a")
    held = face.claim("a")
    assert held is not None
    face.complete(held)
    assert face.events(made.id) == []
    assert face.events(new_id()) == []


def test_events_tell_what_the_row_no_longer_says(face: Client, sql: Sql) -> None:
    made = face.enqueue("noop", agent="a", max_attempts=2)

    def claim() -> Any:
        sql("update pgqueue.tasks set not_before = now()")
        held = face.claim("a", owner="me")
        assert held is not None
        return held

    face.fail(claim(), "first")
    face.release(claim())
    face.fail(claim(), "second")
    face.retry(made.id, by="ann")
    face.cancel(claim().id, by="bob")
    sql("update pgqueue.tasks set lease_expires_at = now() - interval '1 s'")
    face.reap()
    told = [(e.event, e.from_status, e.to_status, e.attempt, e.fence, e.by, e.detail) for e in face.events(made.id)]
    assert told == [
        ("fail", "running", "pending", 1, 1, "me", "first"),
        ("release", "running", "pending", 2, 2, "me", None),
        ("fail", "running", "dead", 2, 3, "me", "second"),
        ("revive", "dead", "pending", 2, 3, "ann", None),
        ("request_cancel", "running", "running", 1, 4, "bob", None),
        ("expire", "running", "cancelled", 1, 4, "me", told[5][6]),
    ]
    ids = [event.id for event in face.events(made.id)]
    assert ids == sorted(ids)
    assert all(event.task_id == made.id for event in face.events(made.id))


# -- find


def with_ids(client: Client, *ids: str) -> list[UUID]:
    made = [UUID(text) for text in ids]
    client.enqueue_many(NewTask("noop", None, {"id": task_id}) for task_id in made)
    return made


def test_find_takes_a_whole_id_in_any_dress(face: Client) -> None:
    made = face.enqueue("noop").id
    for text in (str(made), str(made).upper(), made.hex, f"  {made} "):
        assert face.find(text) == made


def test_find_takes_a_unique_tail(face: Client) -> None:
    made = [face.enqueue("noop").id for _ in range(5)]
    for task_id in made:
        for text in (str(task_id)[-6:], "…" + str(task_id)[-6:], str(task_id)[-12:].upper(), task_id.hex[-14:]):
            assert face.find(text) == task_id


def test_find_takes_a_unique_prefix(face: Client) -> None:
    one, two = with_ids(face, "11111111-2222-4333-8444-555555555555", "11111111-9222-4333-8444-666666666666")
    assert face.find("11111111-2") == one
    assert face.find("111111119") == two
    assert face.find("11111111-2222-4333-8444-55") == one


def test_find_of_an_ambiguous_tail_lists_the_candidates_newest_first(face: Client, sql: Sql) -> None:
    base = new_id().hex
    one, two = (UUID(base[:20] + middle + "d8dd91") for middle in ("000001", "000002"))
    with_ids(face, str(one), str(two))
    with pytest.raises(AmbiguousId) as caught:
        face.find("d8dd91")
    assert caught.value.matches == (two, one)
    assert "fits 2 tasks, nothing was done" in str(caught.value)
    assert f"{two} (noop, pending), {one} (noop, pending)" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_find_of_an_ambiguous_prefix_lists_the_candidates(face: Client) -> None:
    ids = with_ids(face, "11111111-2222-4333-8444-555555555555", "11111111-9222-4333-8444-666666666666")
    with pytest.raises(AmbiguousId) as caught:
        face.find("111111")
    assert set(caught.value.matches) == set(ids)


def test_find_looks_first_among_those_that_the_verb_can_act_on(face: Client) -> None:
    base = new_id().hex
    dead, pending = (UUID(base[:20] + middle + "d8dd91") for middle in ("000001", "000002"))
    face.enqueue("noop", id=dead, agent="a")
    held = face.claim("a")
    assert held is not None
    face.bury(held, "no")
    face.enqueue("noop", id=pending)
    assert face.find("d8dd91", statuses=[Status.DEAD]) == dead
    assert face.find("d8dd91", statuses=ACTIVE) == pending
    assert face.find(str(dead)[-8:], statuses=ACTIVE) == dead


def test_find_by_tail_looks_back_over_the_last_days_and_further_among_statuses(face: Client) -> None:
    month_ago = int((datetime.now(UTC) - timedelta(days=30)).timestamp() * 1000)
    old = UUID(int=(month_ago << 80) | (7 << 76) | (2 << 62) | 0xABCDEF)
    face.enqueue("noop", id=old)
    with pytest.raises(TaskNotFound, match="last 7 days"):
        face.find("abcdef")
    assert face.find("abcdef", days=60) == old
    assert face.find("abcdef", statuses=ACTIVE) == old


def test_find_of_nothing_says_where_it_looked(face: Client) -> None:
    with pytest.raises(TaskNotFound, match="pgqueue list"):
        face.find("abcdef")
    with pytest.raises(TaskNotFound):
        face.find(str(uuid4()))


@pytest.mark.parametrize(
    "text", ["", "  ", "xyz", "12345", "…", "d8dd9", "0" * 33, "not-an-id", "d8dd91; drop table", "%%%%%%", "______"]
)
def test_find_of_what_is_no_part_of_an_id_is_refused(untouched: Client, text: str) -> None:
    with pytest.raises(InputError) as caught:
        untouched.find(text)
    assert caught.value.field == "id"
    assert "\n" not in str(caught.value)
