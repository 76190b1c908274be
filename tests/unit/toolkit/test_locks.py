"""Locks: one a model, re-entrant, in one order, and gone with their use."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from typing import Any

import pytest

from embgrad.toolkit import locks
from embgrad.toolkit.locks import model_lock, process_lock


class Model:
    pass


class Slotted:
    """An object without weak references."""

    __slots__ = ()


def free_for_another_thread(parts: Any) -> bool:
    """Return whether another thread can take the parts' locks now."""
    taken = threading.Event()

    def take() -> None:
        with model_lock(parts):
            taken.set()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    return taken.wait(0.2)


@pytest.mark.parametrize("kind", [Model, Slotted])
def test_a_held_model_keeps_other_threads_out(kind: Any) -> None:
    model, other = kind(), kind()
    with model_lock([model]):
        assert not free_for_another_thread([model])
        assert free_for_another_thread([other])
    assert free_for_another_thread([model])


def test_a_lock_keeps_no_model() -> None:
    """A dictionary, as of weights in JAX, takes no weak references: its lock must not stand for one."""
    model = {"weight": Model()}
    weight = weakref.ref(model["weight"])
    with model_lock([model]):
        pass
    del model
    assert weight() is None


def test_the_lock_is_reentrant() -> None:
    model = Model()
    with model_lock([model]), model_lock([model]), model_lock([model, model]):
        assert not free_for_another_thread([model])
    assert free_for_another_thread([model])
    with process_lock, process_lock:
        pass


def test_waiting_for_one_part_locks_all_parts() -> None:
    parts, held, done = [Model(), Model(), Model()], threading.Event(), threading.Event()

    def take() -> None:
        with model_lock(parts):
            held.set()
            done.wait(5)

    for busy in parts:
        held.clear()
        done.clear()
        with model_lock([busy]):
            thread = threading.Thread(target=take, daemon=True)
            thread.start()
            assert not held.wait(0.1)
        assert held.wait(5)
        assert not any(free_for_another_thread([part]) for part in parts)
        done.set()
        thread.join()
        assert free_for_another_thread(parts)


def test_an_interrupted_wait_holds_no_lock() -> None:
    parts = sorted([Model(), Model()], key=id)  # in the order in which they are taken
    held, done, main = threading.Event(), threading.Event(), threading.main_thread()

    def take() -> None:
        with model_lock(parts[1:]):
            held.set()
            time.sleep(0.2)
            signal.pthread_kill(main.ident or 0, signal.SIGINT)
            done.wait(5)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    assert held.wait(5)
    with pytest.raises(KeyboardInterrupt), model_lock(parts):
        pass
    done.set()
    thread.join()
    assert free_for_another_thread(parts)


def test_two_orders_of_the_same_parts_do_not_wait_for_each_other() -> None:
    parts = [Model(), Model()]
    rounds: list[int] = []

    def work(order: list[Model]) -> None:
        for number in range(200):
            with model_lock(order):
                rounds.append(number)

    threads = [threading.Thread(target=work, args=(order,), daemon=True) for order in (parts, parts[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(rounds) == 400


def test_equal_models_have_their_own_locks() -> None:
    class Equal(Model):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None

    item, other = Equal(), Equal()
    with model_lock([item]):
        assert free_for_another_thread([other])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_locks_that_another_thread_holds_are_free_in_a_forked_child() -> None:
    model = Model()
    holding, done = threading.Event(), threading.Event()

    def hold() -> None:
        with model_lock([model]), process_lock:
            holding.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait()
    (lock,) = locks.locks_of([model])
    child = os.fork()
    if child == 0:  # which must not come back into the test
        os._exit(0 if process_lock.acquire(timeout=5) and lock.acquire(timeout=5) else 1)
    _, status = os.waitpid(child, 0)
    assert not process_lock.acquire(timeout=0.01)  # here they are still held
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
