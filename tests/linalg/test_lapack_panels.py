"""LAPACK's panels in blocked algorithms: stacks of panels are the host's, and few bytes of the trailing matrix move."""

import numpy as np
from doubles import RecordingEngine

import trnpy.linalg
from linalg.rows import NUMPY
from nkisim.hardware import MACHINES
from trnpy._call.decisions import work_of
from trnpy._call.dispatch import Reason
from trnpy._engine.engines import engine


def test_stacks_of_panels_are_the_hosts():
    with engine(RecordingEngine()), trnpy.policy(force=True), trnpy.trace() as log:
        trnpy.linalg.det(np.ones((3, 100, 100)) + np.eye(100))
        NUMPY["cholesky"](np.ones((3, 100, 100)) + np.eye(100))
    assert all(d.reason is Reason.LAYOUT and "panels" in d.detail for d in log)


def test_less_crosses_the_link_than_the_whole_trailing_matrix_at_every_panel():
    n, panels = 4096, 4096 // 128
    a = np.broadcast_to(0.0, (n, n))
    for name, share in (("cholesky", 5), ("lu_factor", 3)):
        op = getattr(trnpy.linalg, name).__trnpy_op__
        tally = work_of(op.prepare(a)).tally(MACHINES["trn2"], trnpy.Policy())
        words = 12 * n * n * panels / 3  # of a product of digits, for each element
        assert tally.bytes_out < words / share
