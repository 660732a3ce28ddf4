"""Pymanopt: the dominant invariant subspace of a symmetric matrix, by steps on the Grassmann manifold."""

import numpy as np
import pymanopt
from pymanopt.manifolds import Grassmann
from pymanopt.optimizers import ConjugateGradient, SteepestDescent

rng = np.random.default_rng(0)
n, p = 80, 4
a = rng.standard_normal((n, n))
a = (a + a.T) / 2
manifold = Grassmann(n, p)


@pymanopt.function.numpy(manifold)
def cost(x):
    return -np.trace(x.T @ a @ x)


@pymanopt.function.numpy(manifold)
def gradient(x):
    return -2 * a @ x


problem = pymanopt.Problem(manifold, cost, euclidean_gradient=gradient)
for optimizer in (SteepestDescent, ConjugateGradient):
    for _ in range(4):
        result = optimizer(verbosity=0, max_iterations=150, min_gradient_norm=1e-9).run(
            problem, initial_point=np.linalg.qr(rng.standard_normal((n, p)))[0]
        )
print(result.cost)
