"""pymanopt: the three largest eigenvalues of a matrix by steepest descent on the Stiefel manifold."""

import autograd.numpy as anp
import numpy as np
import pymanopt
from pymanopt.manifolds import Stiefel
from pymanopt.optimizers import SteepestDescent

rng = np.random.default_rng(0)
a = rng.standard_normal((30, 30))
a = a + a.T
manifold = Stiefel(30, 3)


@pymanopt.function.autograd(manifold)
def cost(x):
    return -anp.trace(x.T @ a @ x)


start = np.linalg.qr(rng.standard_normal((30, 3)))[0]
problem = pymanopt.Problem(manifold, cost)
# The number of steps depends on rounding errors; the minimum does not.
print(SteepestDescent(verbosity=0, max_iterations=400).run(problem, initial_point=start).cost)
