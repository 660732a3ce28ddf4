"""Types of trnpy.sparse.csgraph: written by tests/typing/make_stubs.py."""

from scipy.sparse.csgraph import (
    NegativeCycleError as NegativeCycleError, bellman_ford as bellman_ford,
    breadth_first_order as breadth_first_order, breadth_first_tree as breadth_first_tree,
    connected_components as connected_components, construct_dist_matrix as construct_dist_matrix,
    csgraph_from_dense as csgraph_from_dense, csgraph_from_masked as csgraph_from_masked,
    csgraph_masked_from_dense as csgraph_masked_from_dense, csgraph_to_dense as csgraph_to_dense,
    csgraph_to_masked as csgraph_to_masked, depth_first_order as depth_first_order,
    depth_first_tree as depth_first_tree, dijkstra as dijkstra, floyd_warshall as floyd_warshall, johnson as johnson,
    laplacian as laplacian, maximum_bipartite_matching as maximum_bipartite_matching, maximum_flow as maximum_flow,
    min_weight_full_bipartite_matching as min_weight_full_bipartite_matching,
    minimum_spanning_tree as minimum_spanning_tree, reconstruct_path as reconstruct_path,
    reverse_cuthill_mckee as reverse_cuthill_mckee, shortest_path as shortest_path,
    structural_rank as structural_rank, test as test, yen as yen
)
