"""A number added by ScalarE, or by VectorE after a failed self-test (docs/numerics.md#hardware-assumptions)."""

import nki.isa as nisa
import nki.language as nl


def shift(dst, data, number, biases):
    """dst = data + number by ScalarE, or by VectorE on a device whose ScalarE does not add exactly (``biases``)."""
    if biases:
        nisa.activation(dst=dst, op=nl.copy, data=data, bias=number)
    else:
        nisa.tensor_scalar(dst=dst, data=data, op0=nl.add, operand0=number)
