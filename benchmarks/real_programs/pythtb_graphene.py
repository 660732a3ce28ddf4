"""PythTB: bands of graphene along a path, of a ribbon, and the Berry phases of Haldane's model."""

import numpy as np
from pythtb import tb_model, wf_array


def haldane(delta, t2):
    model = tb_model(2, 2, [[1.0, 0.0], [0.5, np.sqrt(3) / 2]], [[1 / 3, 1 / 3], [2 / 3, 2 / 3]])
    model.set_onsite([-delta, delta])
    for r in ([0, 0], [-1, 0], [0, -1]):
        model.set_hop(-1.0, 0, 1, r)
    for i, j, r in ((0, 0, [1, 0]), (1, 1, [1, -1]), (1, 1, [0, 1])):
        model.set_hop(1j * t2, i, j, r)
    for i, j, r in ((1, 1, [1, 0]), (0, 0, [1, -1]), (0, 0, [0, 1])):
        model.set_hop(-1j * t2, i, j, r)
    return model


model = haldane(0.2, 0.15)
path, _, _ = model.k_path([[0, 0], [2 / 3, 1 / 3], [0.5, 0.5], [0, 0]], 401, report=False)
bands = model.solve_all(path)
ribbon = model.cut_piece(20, 1)
edges = ribbon.solve_all(ribbon.k_path("full", 101, report=False)[0])
grid = wf_array(model, [41, 41])
grid.solve_on_grid([0.0, 0.0])
phases = grid.berry_phase([0], 1, contin=True)
print(bands.min(), edges.max(), phases[-1], grid.berry_flux([0]))
