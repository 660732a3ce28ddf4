"""Peak memory of each call of ``host_routes``, with routes on the host and without: a program, whose output is JSON."""

import gc
import json
import sys
import tracemalloc

from host_routes import ROWS

from trnpy._call import host_table


def peak(make):
    """Bytes that a second call allocates at most, beyond its operands; the first one also fills caches."""
    call, *operands = make()
    call(*operands)
    call, *operands = make()
    gc.collect()
    tracemalloc.start()
    try:
        result = call(*operands)
        found = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    del result
    return found


def main(options):
    if "--without" in options:
        host_table._table = dict
    print(json.dumps({name: peak(make) for name, make in ROWS.items()}))


if __name__ == "__main__":
    main(sys.argv[1:])
