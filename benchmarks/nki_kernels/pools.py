"""The selection of pools of keys for 128 rows, in steps that are issued one by one: scores, rounds, ties, marks."""

import nki
import nki.isa as nisa
import nki.language as nl

ROWS = 128
BANK = 512  # float32 of a PSUM bank
PARTS = 4  # keys of a pool, which is selected as a whole
ROUNDS = 31  # bits of a score that are tried
F32, BF16, I32 = nl.float32, nl.bfloat16, nl.int32


@nki.jit
def chosen_pools(indexer, weights, pools, positions, keep=512):
    """Marks (rows, n) of the pools that ``selection`` chooses for each row, and of those that lie after it."""
    rows, count = weights.shape[0], pools.shape[1]
    out = nl.ndarray((rows, count), dtype=BF16, buffer=nl.shared_hbm)
    choice = selection(indexer, weights, pools, positions, keep)
    for first in range(0, rows, ROWS):
        choose(choice, 0, range(started(choice, first // ROWS)))
        nisa.dma_copy(dst=out[first : first + ROWS], src=choice["chosen"][0])
    return out


def selection(indexer, weights, pools, positions, keep):
    """What a selection keeps on the chip."""
    heads, size, _ = indexer.shape
    count = pools.shape[1]
    choice = {
        "indexer": indexer, "weights": weights, "positions": positions, "keep": keep, "heads": heads, "count": count,
    }  # fmt: skip
    choice["pools"] = loaded(pools)
    choice["bank"] = nl.ndarray((ROWS, BANK), dtype=F32, buffer=nl.psum)
    choice["queries"] = tile((size, heads, ROWS), BF16)
    choice["factors"] = tile((ROWS, heads), F32)
    for name in ("scores", "signed", "work", "ties", "order", "firsts"):
        choice[name] = tile((ROWS, count), F32)
    for name in ("counted", "sign", "rank", "least", "room", "limit", "tried", "kept", "position"):
        choice[name] = tile((ROWS, 1), F32)
    for name in ("prefix", "candidate", "bit"):
        choice[name] = tile((ROWS, 1), I32)
    choice["limits"] = tile((ROWS, PARTS), F32)
    choice["chosen"] = ring(2, (ROWS, count), BF16)
    numbers = tile((ROWS, count), I32)
    nisa.iota(dst=numbers, pattern=[[1, count]], offset=0, channel_multiplier=0)
    nisa.tensor_copy(dst=choice["order"], src=numbers)
    nisa.tensor_scalar(dst=choice["firsts"], data=choice["order"], op0=nl.multiply, operand0=float(PARTS))
    choice["bits"] = []
    for b in range(ROUNDS):
        power = tile((ROWS, 1), I32)
        nisa.iota(dst=power, pattern=[[0, 1]], offset=1 << (ROUNDS - 1 - b), channel_multiplier=0)
        choice["bits"].append(power)
    return choice


def started(choice, at):
    """Load what the selection of 128 rows begins with; returns the number of its steps."""
    heads, first = choice["heads"], at * ROWS
    nisa.dma_copy(dst=choice["queries"], src=choice["indexer"][:, :, first : first + ROWS].permute((1, 0, 2)))
    nisa.dma_copy(dst=choice["factors"], src=choice["weights"][first : first + ROWS])
    nisa.dma_copy(dst=choice["position"], src=choice["positions"][first : first + ROWS])
    for part in range(PARTS):
        limit = choice["limits"][:, part : part + 1]
        nisa.tensor_scalar(dst=limit, data=choice["position"], op0=nl.add, operand0=float(-part))
    nisa.tensor_scalar(
        dst=choice["scores"], data=choice["firsts"], op0=nl.greater, operand0=choice["limits"][:, 3:4],
        op1=nl.multiply, operand1=-1e30,
    )  # fmt: skip
    return heads * pieces(choice) + 1 + ROUNDS + 1 + choice["count"].bit_length() + 1


def pieces(choice):
    return (choice["count"] + BANK - 1) // BANK


def choose(choice, at, steps):
    """Some steps of a selection: scores, the rank and sign, rounds for the least score, its ties, and the marks."""
    for step in steps:
        scores = choice["heads"] * pieces(choice)
        if step < scores:
            pool_scores(choice, step // pieces(choice), step % pieces(choice) * BANK)
        elif step == scores:
            ranked(choice)
        elif step <= scores + ROUNDS:
            tried(choice, step - scores - 1)
        elif step == scores + ROUNDS + 1:
            found(choice)
        elif step < scores + ROUNDS + 2 + choice["count"].bit_length():
            tied(choice, scores + ROUNDS + 1 + choice["count"].bit_length() - step)
        else:
            chosen(choice, choice["chosen"][at % 2])


def pool_scores(choice, head, first):
    n = min(BANK, choice["count"] - first)
    bank, total = choice["bank"][:, 0:n], choice["scores"][:, first : first + n]
    part = choice["pools"][:, first : first + n]
    nisa.nc_matmul(dst=bank, stationary=choice["queries"][:, head], moving=part, accumulate=False)
    nisa.activation(dst=bank, op=nl.relu, data=bank, scale=0.0884)
    nisa.scalar_tensor_tensor(
        dst=total, data=bank, op0=nl.multiply, operand0=choice["factors"][:, head : head + 1], op1=nl.add,
        operand1=total,
    )  # fmt: skip


def counted(choice, data, op, operand, work="work"):
    nisa.tensor_scalar_reduce(
        dst=choice[work], data=data, op0=op, operand0=operand, reduce_op=nl.add, reduce_res=choice["counted"]
    )


def ranked(choice):
    keep = float(choice["keep"])
    counted(choice, choice["scores"], nl.greater_equal, 0.0)
    nisa.tensor_scalar(dst=choice["kept"], data=choice["counted"], op0=nl.less, operand0=keep)
    rest = float(choice["count"] + 1) - 2 * keep
    nisa.tensor_scalar(
        dst=choice["sign"], data=choice["kept"], op0=nl.multiply, operand0=-2.0, op1=nl.add, operand1=1.0
    )
    nisa.tensor_scalar(
        dst=choice["rank"], data=choice["kept"], op0=nl.multiply, operand0=rest, op1=nl.add, operand1=keep
    )
    nisa.tensor_scalar(dst=choice["signed"], data=choice["scores"], op0=nl.multiply, operand0=choice["sign"])
    nisa.memset(dst=choice["prefix"], value=0)


def tried(choice, round_):
    """Keep a bit of the least score if enough scores reach it."""
    nisa.tensor_tensor(dst=choice["candidate"], data1=choice["prefix"], data2=choice["bits"][round_], op=nl.bitwise_or)
    counted(choice, choice["signed"], nl.greater_equal, choice["candidate"].view(F32))
    nisa.tensor_scalar(
        dst=choice["bit"], data=choice["counted"], op0=nl.greater_equal, operand0=choice["rank"], op1=nl.multiply,
        operand1=float(1 << (ROUNDS - 1 - round_)),
    )  # fmt: skip
    nisa.tensor_tensor(dst=choice["prefix"], data1=choice["prefix"], data2=choice["bit"], op=nl.bitwise_or)


def found(choice):
    """Scores above the least, how many of its ties there is room for, and the places of the ties."""
    least = choice["least"]
    nisa.tensor_scalar(dst=least, data=choice["prefix"].view(F32), op0=nl.multiply, operand0=choice["sign"])
    counted(choice, choice["scores"], nl.greater, least, "signed")
    nisa.tensor_scalar(
        dst=choice["room"], data=choice["counted"], op0=nl.multiply, operand0=-1.0, op1=nl.add,
        operand1=float(choice["keep"]),
    )  # fmt: skip
    nisa.tensor_scalar(dst=choice["work"], data=choice["scores"], op0=nl.equal, operand0=least)
    nisa.scalar_tensor_tensor(
        dst=choice["ties"], data=choice["work"], op0=nl.multiply, operand0=-65536.0, op1=nl.add,
        operand1=choice["order"],
    )  # fmt: skip
    nisa.tensor_scalar(dst=choice["ties"], data=choice["ties"], op0=nl.add, operand0=65536.0)
    nisa.memset(dst=choice["limit"], value=0.0)


def tied(choice, bit):
    power = float(1 << bit)
    nisa.tensor_scalar(dst=choice["tried"], data=choice["limit"], op0=nl.add, operand0=power)
    counted(choice, choice["ties"], nl.less, choice["tried"])
    nisa.tensor_scalar(
        dst=choice["kept"], data=choice["counted"], op0=nl.less, operand0=choice["room"], op1=nl.multiply,
        operand1=power,
    )  # fmt: skip
    nisa.tensor_tensor(dst=choice["limit"], data1=choice["limit"], data2=choice["kept"], op=nl.add)


def chosen(choice, marks):
    work, ties = choice["work"], choice["ties"]
    nisa.scalar_tensor_tensor(
        dst=work, data=ties, op0=nl.less_equal, operand0=choice["limit"], op1=nl.add, operand1=choice["signed"]
    )
    nisa.tensor_scalar(dst=ties, data=choice["scores"], op0=nl.greater, operand0=-1e29)
    nisa.tensor_tensor(dst=work, data1=work, data2=ties, op=nl.multiply)
    nisa.scalar_tensor_tensor(dst=marks, data=ties, op0=nl.subtract, operand0=1.0, op1=nl.subtract, operand1=work)
    nisa.tensor_scalar(dst=marks, data=marks, op0=nl.multiply, operand0=-1.0)


def loaded(source):
    here = tile(source.shape, source.dtype)
    nisa.dma_copy(dst=here, src=source)
    return here


def tile(shape, dtype):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)


def ring(count, shape, dtype, buffer=None):
    found = []
    for _ in range(count):
        found.append(nl.ndarray(shape, dtype=dtype, buffer=buffer or nl.sbuf))
    return found
