"""Preparing batches in a background thread while the device computes."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_ahead(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int, ahead: int
) -> Iterator[Result]:
    """`map` in worker threads: results in order, at most `ahead` made before they are asked for.

    An error of the function is raised where its result would have come. With no threads, plain
    `map`.
    """
    if threads == 0:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
        waiting: deque = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def prefetch(items: Iterable[Item], ahead: int) -> Iterator[Item]:
    """The same items in the same order, made up to `ahead` before they are asked for.

    An error in the producer is raised here. Closing the iterator stops the producer.
    """
    if ahead == 0:
        yield from items
        return
    ready: queue.Queue = queue.Queue(maxsize=ahead)
    stop = threading.Event()
    end = object()

    def put(item: object) -> None:
        while not stop.is_set():
            try:
                return ready.put(item, timeout=0.1)
            except queue.Full:
                continue

    def produce() -> None:
        try:
            for item in items:
                put((item, None))
                if stop.is_set():
                    return
            put((end, None))
        except BaseException as error:  # handed to the consumer, which raises it
            put((end, error))

    thread = threading.Thread(target=produce, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is end:
                return
            yield item
    finally:
        stop.set()
        thread.join()
