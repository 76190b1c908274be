"""Compute the items of an iterator ahead of time, in a thread that ends when the consumer is closed or gone."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterator
from typing import Any, Generic, TypeVar

__all__ = ["Ahead"]

Item = TypeVar("Item")

#: How long `close` waits for the thread, in seconds: it may be running user code.
PATIENCE = 10.0


class _Shared(Generic[Item]):
    """The state shared by the thread and its owner: the items that are ready, the end, and errors."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.condition = threading.Condition()
        self.ready: deque[Item] = deque()
        self.ended = False
        self.error: BaseException | None = None
        self.at_closing: BaseException | None = None
        self.unwanted = False

    def put(self, item: Item) -> bool:
        """Wait for room and add the item; return whether the consumer still wants items."""
        with self.condition:
            self.condition.wait_for(lambda: self.unwanted or len(self.ready) < self.size)
            if not self.unwanted:
                self.ready.append(item)
            self.condition.notify_all()
            return not self.unwanted

    def end(self, error: BaseException | None) -> None:
        """Record that no more items follow, and the error that ended them."""
        with self.condition:
            self.ended, self.error = True, error
            self.condition.notify_all()

    def take(self) -> Item:
        """Return the next item, or raise the generator's error in its place.

        Raises:
            StopIteration: there are no more items.
        """
        with self.condition:
            # Without a timeout Ctrl-C would not interrupt the wait on every system.
            while not self.condition.wait_for(lambda: self.ready or self.ended, timeout=1.0):
                pass
            if self.ready:
                item = self.ready.popleft()
                self.condition.notify_all()
                return item
            error, self.error = self.error, None
        if error is not None:
            raise error
        raise StopIteration

    def cancel(self) -> None:
        """Record that the consumer wants no more items."""
        with self.condition:
            self.unwanted = True
            self.ready.clear()
            self.condition.notify_all()


class Ahead(Iterator[Item]):
    """The items of a generator, in order, computed in a thread at most `size` items ahead of the consumer.

    An error of the generator is raised unchanged, after the items before it. The thread holds no reference to this object, so
    that it ends when the object is closed or gone.

    Args:
        items: the generator. It is closed, in the thread, when the thread ends.
        size: the largest number of items that are ready; 0 to compute each on request, without a thread.

    Attributes:
        thread: the thread; None without one.
    """

    def __init__(self, items: Generator[Item, None, None], size: int) -> None:
        self._items = items
        self._shared: _Shared[Item] | None = None
        self.thread: threading.Thread | None = None
        if size:
            self._shared = _Shared(size)
            # A daemon, since it may wait for the user's source for ever.
            arguments = (self._shared, items)
            self.thread = threading.Thread(target=_work, args=arguments, name="embgrad.stream", daemon=True)
            self.thread.start()

    def __next__(self) -> Item:
        return next(self._items) if self._shared is None else self._shared.take()

    def close(self) -> None:
        """End the thread and close the generator.

        An error that the generator raises while it is closed is raised here. An error in place of an item that was not taken is
        dropped.
        """
        if self._shared is None or self.thread is None:
            self._items.close()
            return
        self._shared.cancel()
        if self.thread is not threading.current_thread():
            self.thread.join(PATIENCE)
        error, self._shared.at_closing = self._shared.at_closing, None
        if error is not None:
            raise error

    def __del__(self) -> None:
        shared = getattr(self, "_shared", None)
        if shared is not None:
            shared.cancel()


def _work(shared: _Shared[Any], items: Generator[Any, None, None]) -> None:
    error: BaseException | None = None
    try:
        for item in items:
            if not shared.put(item):
                break
            del item
    except BaseException as exception:  # of any class: it is raised where the items are taken
        error = exception
    try:
        items.close()
    except BaseException as exception:  # and this is raised by `close`
        shared.at_closing = exception
    shared.end(error)
