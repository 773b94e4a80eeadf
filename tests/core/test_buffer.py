"""The bounded buffer: never above its capacity, never a loss that is not counted."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from monitor_core.buffer import BoundedBuffer
from monitor_core.record import Record


def record(seq: int, writer: int = 1) -> Record:
    return Record(seq, writer, seq, None, 0.0, {})


def seqs(records: list[Record]) -> list[int]:
    return [found.seq for found in records]


def filled(capacity: int, count: int) -> BoundedBuffer:
    buffer = BoundedBuffer(capacity)
    for seq in range(count):
        buffer.put(record(seq))
    return buffer


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Let threads interrupt each other as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_records_come_out_in_order() -> None:
    buffer = filled(10, 5)
    assert len(buffer) == 5
    assert seqs(buffer.drain(3)) == [0, 1, 2]
    assert seqs(buffer.drain(3)) == [3, 4]
    assert buffer.drain(3) == []
    assert (len(buffer), buffer.dropped) == (0, 0)


def test_when_full_the_oldest_go_and_are_counted() -> None:
    buffer = filled(3, 10)
    assert (len(buffer), buffer.dropped) == (3, 7)
    assert seqs(buffer.drain(99)) == [7, 8, 9]
    assert buffer.dropped == 7


def test_restored_records_stand_in_front() -> None:
    buffer = filled(10, 4)
    taken = buffer.drain(2)
    buffer.restore(taken)
    assert seqs(buffer.drain(99)) == [0, 1, 2, 3]
    assert buffer.dropped == 0


@pytest.mark.parametrize(
    ("put_meanwhile", "left", "dropped"), [(1, [1, 2, 3, 4], 1), (3, [3, 4, 5, 6], 3), (4, [4, 5, 6, 7], 4)]
)
def test_restoring_keeps_the_bound_and_counts_the_oldest_as_dropped(
    put_meanwhile: int, left: list[int], dropped: int
) -> None:
    buffer = filled(4, 4)
    taken = buffer.drain(4)
    for seq in range(4, 4 + put_meanwhile):
        buffer.put(record(seq))
    buffer.restore(taken)
    assert (len(buffer), buffer.dropped) == (4, dropped)
    assert seqs(buffer.drain(99)) == left


def test_restoring_into_a_full_buffer_drops_all_that_was_restored() -> None:
    buffer = filled(2, 2)
    taken = buffer.drain(2)
    buffer.put(record(2))
    buffer.put(record(3))
    buffer.restore(taken)
    assert (seqs(buffer.drain(9)), buffer.dropped) == ([2, 3], 2)


def test_a_capacity_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at least 1 record, got 0"):
        BoundedBuffer(0)


@pytest.mark.parametrize("capacity", [50, 100_000])
def test_several_producers_and_one_consumer_account_for_every_record(eager_switching: None, capacity: int) -> None:
    buffer = BoundedBuffer(capacity)
    producers, each = 4, 10_000
    taken: list[Record] = []
    done = threading.Event()

    def produce(writer: int) -> None:
        for seq in range(each):
            buffer.put(record(seq, writer))

    def consume() -> None:
        turn = 0
        while not done.is_set() or len(buffer):
            some = buffer.drain(37)
            assert len(buffer) <= capacity
            if some and turn % 5 == 0 and not done.is_set():
                buffer.restore(some)
            else:
                taken.extend(some)
            turn += 1

    threads = [threading.Thread(target=produce, args=(writer,)) for writer in range(producers)]
    consumer = threading.Thread(target=consume)
    for thread in [*threads, consumer]:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    consumer.join()
    assert len(taken) + buffer.dropped == producers * each
    for writer in range(producers):
        mine = [found.seq for found in taken if found.attempt == writer]
        assert len(set(mine)) == len(mine), "no record twice"
    if capacity == 100_000:
        assert buffer.dropped == 0
