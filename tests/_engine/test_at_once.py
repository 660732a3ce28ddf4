"""Work in threads: the order of results, errors and the context of the caller."""

import threading

import numpy as np
import pytest

from trnpy._engine.at_once import beside, in_threads


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 20])
def test_results_have_the_order_of_the_pieces(count):
    assert in_threads(range(7), lambda i: i * i, count) == [i * i for i in range(7)]
    assert in_threads([], lambda i: i, count) == []


def test_pieces_that_follow_one_another_share_a_thread():
    names = in_threads(range(10), lambda _: threading.current_thread().name, 3)
    assert names[:4] == [names[0]] * 4 and "MainThread" not in names
    assert set(in_threads(range(10), lambda _: threading.current_thread().name, 1)) == {"MainThread"}


def test_an_error_of_a_piece_is_raised():
    with pytest.raises(ZeroDivisionError):
        in_threads([1, 2, 0, 4], lambda i: 1 / i, 2)


def test_the_threads_have_the_callers_context():
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        in_threads([1.0, 0.0], lambda x: np.divide(1.0, x), 2)


def test_a_program_that_ends_does_not_wait_for_work_beside_it():
    assert beside(lambda: threading.current_thread().daemon)()
