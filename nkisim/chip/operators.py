"""The operators of NKI instructions: arithmetic, valid range and engines.

Two tables from nki/api/nki.api.shared.rst (Neuron 2.32): ``ALU`` has the arithmetic and bit operators of
Vector and GpSimd instructions, ``ACTIVATIONS`` the functions of ScalarEngine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Kind = Literal["arithmetic", "bitvec"]

GEN4 = 4  # NeuronCore-v4 (trn3)


@dataclass(frozen=True, slots=True)
class AluOp:
    """One operator of the ALU table.

    ``compute`` maps float32 to float32 (arithmetic operators) or unsigned bit patterns to unsigned bit
    patterns (bitvec operators); unary operators ignore the second argument. ``identity`` is the initial
    value of an accumulator register in a reduction, or None if the operator does not reduce.
    """

    name: str
    kind: Kind
    compute: Callable[[Array, Any], Array]
    unary: bool = False
    reduce: np.ufunc | None = None
    identity: float | None = None
    comparison: bool = False
    generation: int = 2  # first NeuronCore generation that has it
    gpsimd_only: bool = False


@dataclass(frozen=True, slots=True)
class Activation:
    """One float32 function of ScalarEngine and the range on which the hardware's fit is valid.

    ``low`` and ``high`` bound the valid input (its absolute value if ``symmetric``); outside this range
    the hardware returns garbage without an exception. ``table`` names the function table that must be
    loaded first; None if every table contains the function.
    """

    name: str
    compute: Callable[[Array], Array]
    low: float = -math.inf
    high: float = math.inf
    symmetric: bool = False
    table: str | None = None
    extrapolate: Callable[[Array], Array] | None = None  # what the hardware returns outside the range, if documented

    @property
    def bounded(self) -> bool:
        """Whether some float32 values are outside the valid range."""
        return self.high < math.inf

    def covers(self, x: Array) -> bool:
        """Whether every element of x is inside the valid range; NaN is outside."""
        if not x.size:
            return True
        magnitude = np.abs(x) if self.symmetric else x
        return bool(self.low <= magnitude.min()) and bool(magnitude.max() <= self.high)

    def outside(self, x: Array) -> npt.NDArray[np.bool_]:
        """Mask of the elements of x outside the valid range; NaN is outside."""
        magnitude = np.abs(x) if self.symmetric else x
        mask: npt.NDArray[np.bool_] = ~((magnitude >= self.low) & (magnitude <= self.high))
        return mask


def _truth(compare: np.ufunc) -> Callable[[Array, Any], Array]:
    """Comparisons and logical operators write 1.0 and 0.0."""
    return lambda a, b: compare(a, b).astype(np.float32)


def _abs_max(a: Array, b: Any) -> Array:
    return np.where(np.abs(a) > np.abs(b), a, b)  # a tie returns b (nl.abs_max docstring)


def _abs_min(a: Array, b: Any) -> Array:
    return np.where(np.abs(a) < np.abs(b), a, b)


def _rsqrt(x: Array, _: Any = None) -> Array:
    result: Array = np.float32(1) / np.sqrt(x)
    return result


def _relu(x: Array, _: Any = None) -> Array:
    return np.maximum(x, np.float32(0))


def _shift(ufunc: np.ufunc) -> Callable[[Array, Any], Array]:
    """A shift; callers refuse shifts by the width or more, which have no documented result."""

    def shift(a: Array, b: Any) -> Array:
        result: Array = ufunc(a, np.asarray(b).astype(a.dtype))
        return result

    return shift


def _arithmetic(name: str, ufunc: np.ufunc, **options: Any) -> AluOp:
    return AluOp(name, "arithmetic", ufunc, **options)


def _comparison(name: str, ufunc: np.ufunc) -> AluOp:
    return AluOp(name, "arithmetic", _truth(ufunc), comparison=True)


def _logical(name: str, ufunc: np.ufunc, identity: float) -> AluOp:
    return AluOp(name, "arithmetic", _truth(ufunc), reduce=ufunc, identity=identity)


def _bits(name: str, ufunc: np.ufunc, **options: Any) -> AluOp:
    return AluOp(name, "bitvec", ufunc, **options)


ALU: Mapping[str, AluOp] = MappingProxyType(
    {
        op.name: op
        for op in (
            AluOp("invert", "bitvec", lambda a, _: np.invert(a), unary=True),
            _bits("bitwise_and", np.bitwise_and, reduce=np.bitwise_and),
            _bits("bitwise_or", np.bitwise_or, reduce=np.bitwise_or),
            _bits("bitwise_xor", np.bitwise_xor, reduce=np.bitwise_xor),
            AluOp("left_shift", "bitvec", _shift(np.left_shift)),
            AluOp("right_shift", "bitvec", _shift(np.right_shift)),
            _arithmetic("add", np.add, reduce=np.add, identity=0.0),
            _arithmetic("subtract", np.subtract, reduce=np.subtract, identity=0.0),
            _arithmetic("multiply", np.multiply, reduce=np.multiply, identity=1.0),
            _arithmetic("maximum", np.maximum, reduce=np.maximum, identity=-math.inf),
            _arithmetic("minimum", np.minimum, reduce=np.minimum, identity=math.inf),
            _comparison("equal", np.equal),
            _comparison("not_equal", np.not_equal),
            _comparison("greater_equal", np.greater_equal),
            _comparison("greater", np.greater),
            _comparison("less_equal", np.less_equal),
            _comparison("less", np.less),
            _logical("logical_and", np.logical_and, 1.0),
            _logical("logical_or", np.logical_or, 0.0),
            _logical("logical_xor", np.logical_xor, 0.0),
            _arithmetic("power", np.power, gpsimd_only=True),
            AluOp("abs_max", "arithmetic", _abs_max, identity=0.0, generation=GEN4),
            AluOp("abs_min", "arithmetic", _abs_min, identity=math.inf, generation=GEN4),
            AluOp("abs", "arithmetic", lambda a, _: np.abs(a), unary=True),
            AluOp("square", "arithmetic", lambda a, _: np.square(a), unary=True, generation=GEN4),
            AluOp("relu", "arithmetic", _relu, unary=True, generation=GEN4),
            AluOp("rsqrt", "arithmetic", _rsqrt, unary=True, gpsimd_only=True),
            AluOp("reciprocal", "arithmetic", lambda a, _: np.float32(1) / a, unary=True),
        )
    }
)

# nl.max and nl.min name the same operators in docstrings of reduce_op.
ALIASES: Mapping[str, str] = MappingProxyType({"max": "maximum", "min": "minimum"})

NO_SUCH_INSTRUCTION: Mapping[str, str] = MappingProxyType(
    {
        "divide": "multiply by nisa.reciprocal",
        "mod": "compute it with multiply, subtract and a cast",
        "fmod": "compute it with multiply, subtract and a cast",
    }
)
"""Operators of nki.language that no engine has, and their replacement (release notes of 0.3, known issues)."""


# --- activation functions -------------------------------------------------------------------------------

SQRT_HALF = np.float32(math.sqrt(0.5))
INV_SQRT_2PI = np.float32(1 / math.sqrt(2 * math.pi))
TANH_SCALE = np.float32(math.sqrt(2 / math.pi))
TANH_CUBIC = np.float32(0.044715)  # the common tanh form of GELU (Hendrycks & Gimpel 2016, eq. 2)
SIGMOID_SCALE = np.float32(1.702)  # the common sigmoid form (ibid.)
UNDERFLOW = np.float32(-200)  # below it sigmoid(x) is 0 in float32; the clip makes x·sigmoid(x) 0 instead of inf·0
HALF, ONE = np.float32(0.5), np.float32(1)


def _sigmoid(x: Array) -> Array:
    from scipy.special import expit  # imported late: only activations need SciPy

    result: Array = expit(x)
    return result


def _normal_cdf(x: Array) -> Array:
    from scipy.special import erfc  # imported late: only activations need SciPy

    result: Array = HALF * erfc(-x * SQRT_HALF)
    return result


def _gelu(x: Array) -> Array:
    x = np.maximum(x, UNDERFLOW)
    result: Array = x * _normal_cdf(x)
    return result


def _gelu_dx(x: Array) -> Array:
    y = np.clip(x, UNDERFLOW, -UNDERFLOW)
    result: Array = _normal_cdf(y) + y * INV_SQRT_2PI * np.exp(-HALF * y * y)
    return result


def _gelu_tanh(x: Array) -> Array:
    x = np.maximum(x, UNDERFLOW)
    result: Array = x * HALF * (ONE + np.tanh(TANH_SCALE * (x + TANH_CUBIC * x * x * x)))
    return result


def _gelu_sigmoid(x: Array) -> Array:
    x = np.maximum(x, UNDERFLOW)
    result: Array = x * _sigmoid(SIGMOID_SCALE * x)
    return result


def _gelu_sigmoid_dx(x: Array) -> Array:
    y = np.clip(x, UNDERFLOW, -UNDERFLOW)
    s = _sigmoid(SIGMOID_SCALE * y)
    result: Array = s + SIGMOID_SCALE * y * s * (ONE - s)
    return result


def _silu(x: Array) -> Array:
    x = np.maximum(x, UNDERFLOW)
    result: Array = x * _sigmoid(x)
    return result


def _silu_dx(x: Array) -> Array:
    y = np.clip(x, UNDERFLOW, -UNDERFLOW)
    s = _sigmoid(y)
    result: Array = s * (ONE + y * (ONE - s))
    return result


def _softplus(x: Array) -> Array:
    return np.logaddexp(np.float32(0), x)


def _mish(x: Array) -> Array:
    x = np.maximum(x, UNDERFLOW)
    result: Array = x * np.tanh(_softplus(x))
    return result


def _erf(x: Array) -> Array:
    from scipy.special import erf

    result: Array = erf(x)
    return result


def _erf_dx(x: Array) -> Array:
    result: Array = np.float32(2 / math.sqrt(math.pi)) * np.exp(-x * x)
    return result


def _sin_outside(x: Array) -> Array:
    """ScalarEngine's sine outside [-pi, pi]: the cubic of the last segment, continued.

    The documentation says "extrapolates a cubic" and gives sin(9.0) = 27.65, which is the Taylor
    cubic about the nearer end of the range.
    """
    t = x - np.copysign(np.float32(math.pi), x)
    result: Array = t * t * t / np.float32(6) - t
    return result


def _table(name: str, compute: Callable[[Array], Array], **options: Any) -> Activation:
    """A function with its own table: AWS does not document which functions share one."""
    return Activation(name, compute, table=name, **options)


ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        function.name: function
        for function in (
            Activation("copy", lambda x: x),
            Activation("square", np.square),
            Activation("relu", _relu),
            Activation("prelu", lambda x: x),  # activate2 computes it, with relu_param
            Activation("sign", np.sign),
            Activation("abs", np.abs),
            _table("sigmoid", _sigmoid),
            _table("gelu", _gelu),
            _table("gelu_dx", _gelu_dx),
            _table("gelu_apprx_tanh", _gelu_tanh),
            _table("gelu_apprx_sigmoid", _gelu_sigmoid),
            _table("gelu_apprx_sigmoid_dx", _gelu_sigmoid_dx),
            _table("silu", _silu),
            _table("silu_dx", _silu_dx),
            _table("tanh", np.tanh),
            _table("softplus", _softplus),
            _table("mish", _mish),
            _table("erf", _erf),
            _table("erf_dx", _erf_dx),
            _table("exp", np.exp),
            _table("log", np.log, low=2.0**-64, high=2.0**64),
            _table("sin", np.sin, low=0.0, high=float(np.float32(math.pi)), symmetric=True, extrapolate=_sin_outside),
            _table("arctan", np.arctan, low=0.0, high=float(np.float32(math.pi / 2)), symmetric=True),
            _table("sqrt", np.sqrt, low=2.0**-116, high=2.0**118),
            _table("rsqrt", _rsqrt, low=2.0**-87, high=2.0**97),
            _table("reciprocal", lambda x: ONE / x, low=2.0**-42, high=2.0**42, symmetric=True),
        )
    }
)
