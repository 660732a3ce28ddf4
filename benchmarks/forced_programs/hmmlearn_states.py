"""hmmlearn: a Gaussian hidden Markov model of 120 observations of four numbers."""

import numpy as np
from hmmlearn import hmm

rng = np.random.default_rng(0)
x = np.concatenate([rng.normal(mean, 1 + 0.2 * mean, (40, 4)) for mean in (0.0, 2.0, 4.0)])
model = hmm.GaussianHMM(n_components=3, covariance_type="full", n_iter=20, random_state=1).fit(x)
print(model.score(x), *model.means_.ravel(), *model.predict(x), sep="\n")
