"""geomeTRIC: the geometry of ethane with springs between bonded atoms and repulsion between all others."""

import logging
import tempfile

import geometric.engine
import geometric.molecule
import geometric.optimize
import numpy as np

logging.disable(logging.CRITICAL)
ATOMS = [
    ("C", (0.0, 0.0, 0.765)), ("C", (0.0, 0.0, -0.765)), ("H", (1.02, 0.02, 1.16)), ("H", (-0.51, 0.88, 1.17)),
    ("H", (-0.52, -0.88, 1.15)), ("H", (-1.02, 0.01, -1.16)), ("H", (0.51, 0.88, -1.17)), ("H", (0.51, -0.89, -1.16)),
]  # fmt: skip
BONDS = {(0, 1): 2.89} | {(0, h): 2.06 for h in (2, 3, 4)} | {(1, h): 2.06 for h in (5, 6, 7)}


class Springs(geometric.engine.Engine):
    def calc_new(self, coords, dirname):
        x, energy = coords.reshape(-1, 3), 0.0
        gradient = np.zeros_like(x)
        for i in range(len(x)):
            for j in range(i + 1, len(x)):
                d = x[i] - x[j]
                r = np.sqrt(d @ d)
                if (i, j) in BONDS:
                    energy += 0.2 * (r - BONDS[i, j]) ** 2
                    force = 0.4 * (r - BONDS[i, j]) * d / r
                else:
                    energy += 2.0 / r**4
                    force = -8.0 / r**6 * d
                gradient[i] += force
                gradient[j] -= force
        return {"energy": energy, "gradient": gradient.ravel()}


molecule = geometric.molecule.Molecule()
molecule.elem, places = [name for name, _ in ATOMS], np.array([x for _, x in ATOMS])
molecule.xyzs = [places]
molecule.build_topology()
with tempfile.TemporaryDirectory() as folder:
    steps = geometric.optimize.run_optimizer(
        customengine=Springs(molecule), input=f"{folder}/x.inp", coordsys="tric", prefix=f"{folder}/x", check=1
    )
print(*steps.qm_energies, sep="\n")
