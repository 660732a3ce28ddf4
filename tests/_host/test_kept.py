"""A remembered route keeps no operand alive: the arrays of the first call are freed, as by NumPy and SciPy."""

import contextlib
import gc
import weakref

import numpy as np
import pytest
import scipy.sparse

import trnpy
import trnpy.linalg
import trnpy.sparse

RNG = np.random.default_rng(7)


def normal(*shape):
    return RNG.standard_normal(shape)


def definite(n, *stack):
    a = normal(*stack, n, n)
    return a @ a.swapaxes(-1, -2) / n + np.eye(n)


def integers(*shape, dtype="i8", most=2**40):
    return RNG.integers(-most, most, shape).astype(dtype)


def diagonal_blocks():
    found = scipy.sparse.kron(scipy.sparse.eye_array(20), np.ones((16, 16)), format="bsr")
    return trnpy.sparse.bsr_array(found)


CALLS = {
    "integers of full range": (trnpy.matmul, lambda: (integers(120, 120), integers(120, 120))),
    "small integers": (trnpy.dot, lambda: (integers(200, 200, most=9), integers(200, 200, most=9))),
    "float16": (trnpy.matmul, lambda: (normal(90, 90).astype("f2"), normal(90, 90).astype("f2"))),
    "bools": (trnpy.matmul, lambda: (RNG.random((200, 200)) < 0.02, RNG.random((200, 200)) < 0.02)),
    "sums first": (trnpy.einsum, lambda: ("a,b->b", integers(171), integers(10_227))),
    "pairwise": (trnpy.einsum, lambda: ("ij,jk,kl->il", normal(60, 70), normal(70, 80), normal(80, 90))),
    "one product": (trnpy.einsum, lambda: ("ij,jk->ik", normal(130, 70), normal(70, 90))),
    "evd": (trnpy.linalg.eigh, lambda: (definite(120),)),
    "eigenvectors": (trnpy.linalg.sqrtm, lambda: (definite(80),)),
    "logm": (trnpy.linalg.logm, lambda: (definite(20),)),
    "stack": (trnpy.linalg.solve, lambda: (definite(4, 600), normal(600, 4, 1))),
    "inv": (trnpy.linalg.inv, lambda: (definite(90),)),
    "pinvh": (trnpy.linalg.pinvh, lambda: (definite(100),)),
    "multi_einsum": (trnpy.multi_einsum, lambda: ([("ij,jk->ik", normal(20, 20), normal(20, 20))] * 9,)),
    "bsr": (lambda a, x: a @ x, lambda: (diagonal_blocks(), normal(320, 32))),
}  # fmt: skip


def referred(values):
    for value in values:
        if isinstance(value, np.ndarray):
            yield weakref.ref(value)
        elif isinstance(value, (list, tuple)):
            yield from referred(value)


@pytest.mark.parametrize("recorded", [False, True], ids=["plain", "recorded"])
@pytest.mark.parametrize("name", CALLS)
def test_a_remembered_route_keeps_no_operand(name, recorded):
    function, made = CALLS[name]

    def calls():
        found = []
        for _ in range(3):  # decided, remembered, and run through what was remembered
            args = made()
            function(*args)
            found.extend(referred(args))
        return found

    gc.freeze()  # what is older is not searched for cycles
    try:
        with trnpy.policy(device="none"), trnpy.profile() if recorded else contextlib.nullcontext():
            refs = calls()
        gc.collect()
    finally:
        gc.unfreeze()
    assert refs and [ref().shape for ref in refs if ref() is not None] == []
