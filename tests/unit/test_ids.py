"""Task ids: order, uniqueness over threads and forks, and their written forms."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from random import Random
from uuid import UUID, uuid4

import pytest

from pgqueue.errors import InputError
from pgqueue.ids import Mint, new_id, parse_id, tail

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
MS = 1_000_000


def clock_of(*milliseconds: int) -> Callable[[], int]:
    times = iter(milliseconds)
    last = [0]

    def read() -> int:
        last[0] = next(times, last[0])
        return last[0] * MS

    return read


def test_is_a_uuid_of_version_7_of_now() -> None:
    before = time.time_ns() // MS
    made = new_id()
    assert type(made) is UUID
    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert before <= made.int >> 80 <= time.time_ns() // MS + 1


def test_grows_strictly() -> None:
    made = [new_id() for _ in range(20_000)]
    assert all(one < other for one, other in itertools.pairwise(made))
    assert [str(one) for one in made] == sorted(str(one) for one in made)


def test_grows_strictly_over_threads() -> None:
    made: list[list[UUID]] = [[] for _ in range(8)]
    start = threading.Barrier(8)

    def mint(into: list[UUID]) -> None:
        start.wait()
        into.extend(new_id() for _ in range(2000))

    threads = [threading.Thread(target=mint, args=(into,)) for into in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one for into in made for one in into}) == 16_000
    assert all(into == sorted(into) for into in made)


@pytest.mark.parametrize(
    "times",
    [
        (1000, 1000, 1000, 1000),
        (1000, 500, 999, 1),  # set back
        (1_800_000_010_100, 1_800_000_009_900, 1_800_000_010_200, 1_800_000_010_300),  # back over a second's edge
        (1000, 2000, 1000, 2000),
        (0, 0, 0, 0),
    ],
)
def test_grows_whatever_the_clock_does(times: tuple[int, ...]) -> None:
    mint = Mint(clock=clock_of(*times))
    made = [mint() for _ in times]
    assert all(one < other for one, other in itertools.pairwise(made))
    assert {one.version for one in made} == {7}


class Highest(Random):
    """Every draw has all bits set."""

    def getrandbits(self, k: int, /) -> int:
        return (1 << k) - 1


def test_a_full_counter_runs_into_the_next_millisecond() -> None:
    mint = Mint(clock=clock_of(1000), random=Highest())
    mint._last = (1000 << 74) | ((1 << 74) - 1)
    after = mint()
    assert after.int >> 80 == 1001
    assert (after.version, after.variant) == (7, "specified in RFC 4122")


def test_tails_of_one_millisecond_differ() -> None:
    mint = Mint(clock=clock_of(1000), random=Random(1))
    assert len({tail(mint()) for _ in range(300)}) > 295


def test_a_fork_begins_another_millisecond_and_another_random_state() -> None:
    parent, child = (Mint(clock=clock_of(5000), random=Random(3)) for _ in range(2))
    assert parent() == child()  # as a copied process begins
    before = parent()
    child.reseed()
    made = child()
    assert made > before
    assert made.int >> 80 == 5001
    assert parent().int >> 80 == 5000


def test_a_fork_frees_the_lock_that_a_lost_thread_held() -> None:
    mint = Mint()
    holder = threading.Thread(target=mint._lock.acquire)
    holder.start()
    holder.join()
    mint.reseed()
    assert mint().version == 7


def minted_in_child(count: int) -> list[UUID]:
    end, start = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(start, b"".join(new_id().bytes for _ in range(count)))
        finally:
            os._exit(0)
    os.close(start)
    with os.fdopen(end, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    return [UUID(bytes=data[at : at + 16]) for at in range(0, len(data), 16)]


@forks
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_parent_and_children_never_share_what_they_count_on_from() -> None:
    parents, children = [], []
    for _ in range(30):
        parents.append(new_id())
        children.append(minted_in_child(3))
        parents += [new_id() for _ in range(3)]
        assert children[-1] == sorted(children[-1])
        assert parents[-4] < children[-1][0]
    # Not just the last digits differ: what an id counts on from, time and counter, is nobody else's.
    heads = [{one.int >> 32 for one in family} for family in (parents, *children)]
    assert len(set().union(*heads)) == sum(map(len, heads))


def test_siblings_forked_in_one_millisecond_differ() -> None:
    frozen = Mint(clock=clock_of(7000))
    frozen()
    made = set()
    for _ in range(20):
        # What each child does first, from the same parent's state.
        child = Mint(clock=clock_of(7000))
        child._last = frozen._last
        child.reseed()
        made.add(child().int >> 32)
    assert len(made) == 20


def test_an_id_minted_while_another_is_in_the_making_comes_first() -> None:
    inner: list[UUID] = []
    nested = [False]

    def clock() -> int:
        if nested[0]:
            nested[0] = False
            inner.append(mint())
        return 1000 * MS

    mint = Mint(clock=clock, random=Highest())
    before = mint()
    nested[0] = True
    outer = mint()
    assert before < inner[0] < outer


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no interval timer")
@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer changes where signals arrive")
def test_a_signal_handler_may_mint_while_its_thread_does() -> None:
    made: list[UUID] = []

    def interrupt(number: int, frame: object) -> None:
        made.append(new_id())

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    try:
        until = time.monotonic() + 0.15
        while time.monotonic() < until:
            made.append(new_id())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert len(made) == len(set(made)) > 1000


def test_tail_is_the_last_six_digits() -> None:
    assert tail(UUID("01998f3e-5d5c-7c07-8a2f-5b6fd3d8dd91")) == "…d8dd91"


@pytest.mark.parametrize("form", [str, lambda made: str(made).upper()])
def test_parse_reads_the_canonical_form(form: Callable[[UUID], str]) -> None:
    for made in (new_id(), uuid4()):
        assert parse_id(form(made)) == made


WHOLE = "01998f3e-5d5c-7c07-8a2f-5b6fd3d8dd91"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "d8dd91",
        "…d8dd91",
        WHOLE.replace("-", ""),
        "{" + WHOLE + "}",
        "urn:uuid:" + WHOLE,
        WHOLE + "\n",
        " " + WHOLE,
        WHOLE[:-1],
        WHOLE + "0",
        WHOLE[:-1] + "g",
        WHOLE[:-1] + "\uff11",
        WHOLE.replace("-", "_"),
        WHOLE[:8] + WHOLE[9:24] + "-" + WHOLE[24:],
        "x" * 10_000,
        "\ud800" * 36,
        None,
        7,
        WHOLE.encode(),
    ],
)
def test_parse_refuses_every_other_form(text: object) -> None:
    with pytest.raises(InputError, match=r"^task is not a whole task id: .*; give all 36") as caught:
        parse_id(text, field="task")  # type: ignore[arg-type]
    assert caught.value.field == "task"
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 400
