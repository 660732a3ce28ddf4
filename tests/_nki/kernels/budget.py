"""What every compiled kernel must keep to: its compile budget, and the memory of its machine."""

from nkisim.hardware import MACHINES, PSUM_BANKS
from nkisim.price.cost import compile_s
from trnpy._nki.kernels import budget


def kept(trace):
    """Whether a trace is within the compile budget of its kernel and fits on the chip."""
    limit, seconds = budget(trace.kernel), compile_s(trace)
    print(
        f"{trace.kernel} for {trace.target}: {len(trace.instructions):,} instructions, {len(trace.loops)} loops, "
        f"compiled in {seconds:.0f} s (modelled), {trace.sbuf_peak_bytes:,} bytes a partition"
    )
    return (
        len(trace.instructions) <= limit.instructions
        and len(trace.loops) <= limit.regions
        and seconds <= limit.seconds
        and trace.sbuf_peak_bytes <= MACHINES[trace.target].sbuf_bytes_per_partition
        and trace.psum_peak_banks <= PSUM_BANKS
    )
