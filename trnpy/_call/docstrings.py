"""The paragraph that trnpy adds to the docstring of a NumPy or SciPy function."""

from __future__ import annotations

import inspect
import re
import textwrap

import numpy as np

from trnpy._call.decisions import Op

EXACT = "integers, bool, float16"  # the dtypes of products that are multiplied without rounding, or in float32
SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.MULTILINE)  # the first ends the description


def documented(op: Op) -> str | None:
    """The original function's docstring with a paragraph about trnpy at the end of its description."""
    text = op.reference.__doc__
    if not text or not op.dtypes:
        return text
    text = inspect.cleandoc(text)
    first = SECTION.search(text)
    end = len(text) if first is None else first.start()
    return "\n\n".join(part for part in (text[:end].rstrip(), _paragraph(op), text[end:]) if part)


def _paragraph(op: Op) -> str:
    names = [np.dtype(c).name for c in op.dtypes if c in "fdFD"]
    if "?" in op.dtypes:
        names.insert(0, EXACT)
    dtypes = " and ".join([", ".join(names[:-1])] * (len(names) > 1) + names[-1:])
    return textwrap.fill(
        f"In trnpy a Trainium computes such calls on operands of {dtypes} where that is faster; results are checked, "
        f"and in float64 as accurate as on the host. All other calls are those of ``{op.name}``. `trnpy.explain` says "
        f"where a call would run, and `trnpy.policy` changes it.",
        width=79,
    )
