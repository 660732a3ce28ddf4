"""NumPy's einsum grammar: the labels of a call, their sizes, and the cost of a loop over them."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from trnpy._call import guards
from trnpy._call.dispatch import Reason, Unsupported

# NumPy's original function, bound before patching: sums and diagonals of one operand.
_numpy_einsum = np.einsum

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # einsum's labels, in the order of its integers
SPLIT = re.compile(r"\.\s+\.|-\s+>")  # NumPy accepts spaces between labels, but not inside these
THIN = 8  # with fewer rows, columns or terms, a matrix product is no faster than a loop
WITHOUT_BLAS = "?bBhHiIlLqQe"  # dtypes whose matrix products NumPy computes with loops instead of BLAS
Shapes = tuple[tuple[int, ...], ...]
Optimize = str | tuple[tuple[int, ...], ...]  # the name of an opt_einsum search, or a path


def parse(operands: Sequence[Any]) -> tuple[tuple[str, ...], str, tuple[np.ndarray, ...]]:
    """Labels of each input and of the output, and the arrays, of an einsum call in either form.

    Only calls that NumPy accepts pass: all others are Unsupported, so that NumPy raises the error.
    """
    if not operands:
        raise Unsupported(Reason.PARAM, "no operands")
    if isinstance(operands[0], str):
        subscripts, arrays = operands[0], tuple(operands[1:])
    else:
        pairs = len(operands) // 2
        arrays = tuple(operands[0 : 2 * pairs : 2])
        sublists = [*operands[1 : 2 * pairs : 2], *operands[2 * pairs :]]
        if not arrays or any(isinstance(s, (str, np.ndarray)) for s in sublists):
            raise Unsupported(Reason.PARAM, "operands and sublists do not alternate")
        words = ["".join("..." if s is Ellipsis else _letter(s) for s in sublist) for sublist in sublists]
        subscripts = ",".join(words[:pairs]) + ("->" + words[pairs] if len(words) > pairs else "")
    plain = tuple([guards.array(a) for a in arrays])
    return (*_parsed(subscripts, tuple([a.ndim for a in plain])), plain)


@functools.lru_cache(maxsize=4096)
def _parsed(subscripts: str, dimensions: tuple[int, ...]) -> tuple[tuple[str, ...], str]:
    from opt_einsum.parser import parse_einsum_input

    if SPLIT.search(subscripts):
        raise Unsupported(Reason.PARAM, f"subscripts {subscripts!r} have spaces inside an ellipsis or an arrow")
    subscripts = subscripts.replace(" ", "")
    if not set(subscripts) <= set(LETTERS + ".,->"):
        raise Unsupported(Reason.PARAM, f"subscripts {subscripts!r} have characters that are no labels")
    _check_ellipsis(subscripts)
    inputs, output, _ = parse_einsum_input((subscripts, *[(1,) * n for n in dimensions]), shapes=True)
    return tuple(inputs.split(",")), output


def _letter(index: Any) -> str:
    if isinstance(index, (bool, np.bool_)):
        raise Unsupported(Reason.PARAM, f"label {index!r} is no integer")
    position = operator.index(index)
    if not 0 <= position < len(LETTERS):
        raise Unsupported(Reason.PARAM, f"label {position} is not in 0..{len(LETTERS) - 1}")
    return LETTERS[position]


def _check_ellipsis(subscripts: str) -> None:
    inputs, arrow, output = subscripts.partition("->")
    if arrow and "..." in inputs and "..." not in output:
        raise Unsupported(Reason.PARAM, "an ellipsis is summed")


def label_sizes(inputs: Sequence[str], output: str, shapes: Shapes) -> dict[str, int]:
    """The size of every label; operands of size 1 are broadcast."""
    sizes: dict[str, int] = {}
    for labels, shape in zip(inputs, shapes, strict=True):
        if len(labels) != len(shape):
            raise Unsupported(Reason.PARAM, f"labels {labels!r} for an operand of shape {shape}")
        for label, size in zip(labels, shape, strict=True):
            if sizes.setdefault(label, size) == 1:
                sizes[label] = size
            elif size not in (1, sizes[label]):
                raise Unsupported(Reason.PARAM, f"label {label!r} has sizes {sizes[label]} and {size}")
        if any(
            labels.count(label) > 1 and size == 1 != sizes[label] for label, size in zip(labels, shape, strict=True)
        ):
            raise Unsupported(Reason.PARAM, f"a repeated label of {labels!r} stretches")
    if len(set(output)) != len(output) or not set(output) <= set(sizes):
        raise Unsupported(Reason.PARAM, f"output {output!r} repeats or invents a label")
    return sizes
