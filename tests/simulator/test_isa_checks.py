"""One valid call of every Vector, Scalar and GpSimd instruction, and what all of them refuse alike."""

import numpy as np
import pytest

from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.chip.errors import SimulatorError
from nkisim.run.launch import Kernel, run
from tests.simulator.tiles import filled, refused


def test_members_of_enumerations_are_taken_by_their_numbers_and_others_refused_with_the_list():
    def kernel(x):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(dst=tile, src=x, dge_mode=3)
        nisa.tensor_copy(tile, tile, 5)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, tile)
        return out

    x = np.ones((4, 4), np.float32)
    assert [i.engine for i in run(kernel, (x,)).trace.instructions] == ["dma", "vector", "dma"]
    for call in (lambda t: nisa.tensor_copy(t, t, 9), lambda t: nisa.tensor_copy(t, t, engine="vector")):
        refused(lambda call=call: call(filled((4, 4))), "engine=.*0 unknown, 1 tensor, 2 scalar", 10)


TILE, COLUMN = ((16, 8), "float32"), ((16, 1), "float32")
BYTES, WORDS, EIGHT = ((16, 8), "uint8"), ((16, 8), "uint32"), ((16, 8), "float32")

# name -> (tensors written, tensors read, other arguments, engine, target)
CALLS = {
    "tensor_tensor": ({"dst": TILE}, {"data1": TILE, "data2": TILE}, {"op": nl.add}, "vector", "trn1"),
    "tensor_scalar": (
        {"dst": TILE}, {"data": TILE, "operand0": COLUMN, "operand1": COLUMN}, {"op0": nl.add, "op1": nl.multiply},
        "vector", "trn1",
    ),
    "scalar_tensor_tensor": (
        {"dst": TILE}, {"data": TILE, "operand0": COLUMN, "operand1": TILE}, {"op0": nl.add, "op1": nl.multiply},
        "vector", "trn1",
    ),
    "reciprocal": ({"dst": TILE}, {"data": TILE}, {}, "vector", "trn1"),
    "tensor_reduce": ({"dst": COLUMN}, {"data": TILE}, {"op": nl.add, "axis": 1}, "vector", "trn1"),
    "tensor_partition_reduce": ({"dst": ((1, 8), "float32")}, {"data": TILE}, {"op": nl.add}, "gpsimd", "trn1"),
    "tensor_scalar_reduce": (
        {"dst": TILE, "reduce_res": COLUMN}, {"data": TILE, "operand0": COLUMN}, {"op0": nl.add, "reduce_op": nl.add},
        "vector", "trn1",
    ),
    "exponential": (
        {"dst": TILE, "reduce_res": COLUMN}, {"src": TILE, "max_value": COLUMN, "reduce_init": COLUMN},
        {"reduce_cmd": nisa.reduce_cmd.load_reduce}, "vector", "trn3",
    ),
    "activation": (
        {"dst": TILE, "reduce_res": COLUMN}, {"data": TILE, "bias": COLUMN, "scale": COLUMN},
        {"op": nl.exp, "reduce_op": nl.add, "reduce_cmd": nisa.reduce_cmd.reset_reduce}, "scalar", "trn1",
    ),
    "activation_reduce": (
        {"dst": TILE, "reduce_res": COLUMN}, {"data": TILE, "bias": COLUMN, "scale": COLUMN},
        {"op": nl.exp, "reduce_op": nl.add}, "scalar", "trn1",
    ),
    "activate2": (
        {"dst": TILE}, {"data": TILE, "imm0": COLUMN, "imm1": COLUMN, "relu_param": COLUMN},
        {"op": nl.prelu, "op0": nl.multiply, "op1": nl.add}, "scalar", "trn3",
    ),
    "tensor_tensor_scan": (
        {"dst": TILE}, {"data0": TILE, "data1": TILE, "initial": COLUMN}, {"op0": nl.multiply, "op1": nl.add},
        "vector", "trn1",
    ),
    "tensor_scalar_cumulative": (
        {"dst": TILE}, {"src": TILE, "imm0": COLUMN, "imm1": COLUMN},
        {"op0": nl.add, "op1": nl.add, "reduce_cmd": nisa.reduce_cmd.load_reduce}, "vector", "trn1",
    ),
    "select_reduce": (
        {"dst": TILE, "reduce_res": COLUMN}, {"predicate": BYTES, "on_true": TILE, "on_false": COLUMN},
        {"reduce_cmd": nisa.reduce_cmd.reset_reduce}, "vector", "trn1",
    ),
    "range_select": (
        {"dst": TILE, "reduce_res": COLUMN}, {"on_true_tile": TILE, "bound0": COLUMN, "bound1": COLUMN},
        {"comp_op0": nl.greater, "comp_op1": nl.less}, "vector", "trn2",
    ),
    "tensor_copy": ({"dst": TILE}, {"src": TILE}, {}, "vector", "trn1"),
    "tensor_copy_predicated": ({"dst": TILE}, {"src": TILE, "predicate": BYTES}, {}, "vector", "trn1"),
    "memset": ({"dst": TILE}, {}, {"value": 1.0}, "vector", "trn1"),
    "nc_stream_shuffle": ({"dst": TILE}, {"src": TILE}, {"shuffle_mask": [0] * 32}, "vector", "trn1"),
    "iota": ({"dst": WORDS}, {}, {"pattern": [[1, 8]]}, "gpsimd", "trn1"),
    "affine_select": (
        {"dst": TILE}, {"on_true_tile": TILE}, {"pattern": [[1, 8]], "channel_multiplier": 1, "on_false_value": 0.0},
        "gpsimd", "trn1",
    ),
    "nc_n_gather": ({"dst": TILE}, {"data": TILE, "indices": WORDS}, {}, "gpsimd", "trn1"),
    "local_gather": (
        {"dst": ((16, 16), "float32")}, {"src_buffer": TILE, "index": ((16, 1), "uint16")},
        {"num_elem_per_idx": 1, "num_valid_indices": 16}, "gpsimd", "trn1",
    ),
    "nonzero_with_count": ({"dst": ((16, 9), "int32")}, {"src": TILE}, {}, "gpsimd", "trn2"),
    "sequence_bounds": ({"dst": ((1, 2, 8), "int32")}, {"segment_ids": ((1, 8), "int32")}, {}, "gpsimd", "trn1"),
    "max8": ({"dst": EIGHT}, {"src": TILE}, {}, "vector", "trn1"),
    "nc_find_index8": ({"dst": WORDS}, {"data": TILE, "vals": EIGHT}, {}, "vector", "trn1"),
    "nc_match_replace8": (
        {"dst": TILE, "dst_idx": WORDS}, {"data": TILE, "vals": EIGHT}, {"imm": 0.0}, "vector", "trn2"
    ),
    "topk": (
        {"val_dst": ((16, 4), "bfloat16"), "idx_dst": ((16, 4), "uint32")}, {"src": ((16, 3), "bfloat16")}, {"n": 42},
        "gpsimd", "trn1",
    ),
    "bn_stats": ({"dst": ((16, 6), "float32")}, {"data": TILE}, {}, "vector", "trn1"),
    "bn_aggr": ({"dst": ((16, 2), "float32")}, {"data": ((16, 6), "float32")}, {}, "vector", "trn1"),
    "rng": ({"dst": WORDS}, {}, {}, "vector", "trn1"),
    "rand2": ({"dst": TILE}, {"max": COLUMN}, {"min": 0.0}, "vector", "trn3"),
    "dropout": ({"dst": TILE}, {"data": TILE, "prob": COLUMN}, {}, "vector", "trn1"),
    "set_rng_seed": ({}, {"src_seeds": ((1, 1), "int32")}, {}, "vector", "trn1"),
    "rand_set_state": ({}, {"src_seeds": ((16, 6), "uint32")}, {}, "gpsimd", "trn2"),
    "rand_get_state": ({"dst": ((16, 6), "uint32")}, {}, {}, "gpsimd", "trn2"),
}  # fmt: skip
READS = [(name, role) for name, call in CALLS.items() for role in call[1]]
WRITES = [(name, role) for name, call in CALLS.items() for role in call[0]]


def hbm(shape, dtype):
    return nl.ndarray(shape, dtype, buffer=nl.shared_hbm)


def issue(name, **replaced):
    """The call of the table, with some of its tensors made otherwise."""
    writes, reads, options, _, _ = CALLS[name]
    tensors = {role: filled(*spec) for role, spec in (writes | reads).items() if role not in replaced}
    made = {role: make(*(writes | reads)[role]) for role, make in replaced.items()}
    getattr(nisa, name)(**tensors, **made, **options)


@pytest.mark.parametrize("mode", ["run", "trace", "reorder"])
@pytest.mark.parametrize("name", CALLS)
def test_the_call_is_accepted_and_recorded(name, mode):
    writes, reads, _, engine, target = CALLS[name]

    def kernel():
        issue(name, **{role: nl.ndarray for role in writes if name != "tensor_copy_predicated"})

    found = run(Kernel(kernel), target=target, mode=mode).trace.instructions[-1]
    assert (found.opcode, found.engine) == (name, engine)
    roles = {operand.role.split("[")[0] for operand in found.reads}
    assert roles == set(reads) and [operand.role for operand in found.writes] == list(writes)


@pytest.mark.parametrize(("name", "role"), READS + WRITES)
def test_operands_in_hbm_are_refused(name, role):
    refused(lambda: issue(name, **{role: hbm}), f"{name}: {role} is in HBM", None, CALLS[name][4])


@pytest.mark.parametrize(("name", "role"), WRITES)
def test_results_that_are_no_tensor_are_refused(name, role):
    refused(lambda: issue(name, **{role: lambda *_: np.zeros((16, 8))}), f"{name}: {role} is ", None, CALLS[name][4])


@pytest.mark.parametrize(("name", "role"), READS)
def test_uninitialised_operands_are_refused(name, role):
    refused(lambda: issue(name, **{role: nl.ndarray}), "uninitialised", 16, CALLS[name][4])


def misplaced(shape, dtype):
    """A tile that starts at partition 16, which no engine can address."""
    return filled((16 + shape[0], *shape[1:]), dtype)[16:]


@pytest.mark.parametrize(("name", "role"), READS + WRITES)
def test_start_partitions_that_no_engine_can_address_are_refused(name, role):
    rule = 13 if (name, role) in SAME_START else 12
    refused(lambda: issue(name, **{role: misplaced}), f"{name}: .*starts? at partition", rule, CALLS[name][4])


# Of two SBUF inputs that must start together, the difference is found first.
SAME_START = {
    (name, role)
    for name, roles in {
        "tensor_tensor": ("data1", "data2"),
        "scalar_tensor_tensor": ("data", "operand1"),
        "tensor_tensor_scan": ("data0", "data1"),
    }.items()
    for role in roles
}


# Operands whose elements per partition, or whose partitions, no other operand fixes.
ANY_ELEMENTS = {
    ("tensor_reduce", "data"), ("memset", "dst"), ("nc_n_gather", "data"), ("max8", "src"), ("nc_find_index8", "data"),
    ("topk", "src"), ("bn_stats", "data"), ("rng", "dst"), ("rand2", "dst"), ("local_gather", "src_buffer"),
    ("local_gather", "index"),
}  # fmt: skip
ANY_PARTITIONS = {
    ("tensor_partition_reduce", "data"), ("memset", "dst"), ("iota", "dst"), ("rng", "dst"),
    ("nc_stream_shuffle", "dst"), ("nc_stream_shuffle", "src"),
    ("rand_set_state", "src_seeds"), ("rand_get_state", "dst"),
}  # fmt: skip


def wider(shape, dtype):
    return filled((*shape[:-1], shape[-1] + 1), dtype)


def taller(shape, dtype):
    return filled((2 * shape[0], *shape[1:]), dtype)


def refuses(name, role, make):
    """A check refuses it: an error of NumPy from inside compute would name its type."""
    with pytest.raises(SimulatorError, match=f"{name}: ") as caught:
        run(Kernel(lambda: issue(name, **{role: make})), target=CALLS[name][4])
    assert "Error" not in caught.value.message


@pytest.mark.parametrize(("name", "role"), [pair for pair in READS + WRITES if pair not in ANY_ELEMENTS])
def test_one_element_too_many_is_refused(name, role):
    refuses(name, role, wider)


@pytest.mark.parametrize(("name", "role"), [pair for pair in READS + WRITES if pair not in ANY_PARTITIONS])
def test_other_partitions_are_refused(name, role):
    refuses(name, role, taller)


def in_psum(shape, dtype):
    return filled(shape, dtype, nl.psum)


@pytest.mark.parametrize(("name", "role"), [pair for pair in READS + WRITES if CALLS[pair[0]][3] == "gpsimd"])
def test_gpsimd_engine_reaches_no_psum(name, role):
    refused(lambda: issue(name, **{role: in_psum}), f"{role} is in PSUM; GpSimd", 27, CALLS[name][4])
