"""The names of scipy.sparse.csgraph. Functions that return sparse graphs return trnpy's classes."""

from __future__ import annotations

import functools as _functools
from typing import Any as _Any

from scipy.sparse import csgraph as _scipy

from trnpy._call.namespace import public as _public
from trnpy._call.namespace import settled as _settled
from trnpy.sparse._classes import adopt as _adopt
from trnpy.sparse._classes import makers as _makers

_PLAIN = """bellman_ford breadth_first_order connected_components construct_dist_matrix csgraph_masked_from_dense
    csgraph_to_dense csgraph_to_masked depth_first_order dijkstra floyd_warshall johnson maximum_bipartite_matching
    min_weight_full_bipartite_matching reverse_cuthill_mckee shortest_path structural_rank test yen"""

__all__ = _scipy.__all__


@_functools.wraps(_scipy.maximum_flow)
def _maximum_flow(*args: _Any, **kwargs: _Any) -> _Any:
    result: _Any = _scipy.maximum_flow(*args, **kwargs)
    result.flow = _adopt(result.flow)
    return result


_names = _public(_scipy) | _makers(_scipy, _PLAIN, __name__) | _settled([_maximum_flow], __name__)
globals().update(_names)


def __dir__() -> list[str]:
    return sorted(_names)
