"""hmmlearn: Gaussian hidden Markov models of several orders, fitted and compared."""

import numpy as np
from hmmlearn import hmm

truth = hmm.GaussianHMM(n_components=3, covariance_type="full", random_state=0)
truth.startprob_ = np.array([0.6, 0.3, 0.1])
truth.transmat_ = np.array([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.3, 0.6]])
truth.means_ = np.array([[0.0, 0.0], [3.0, -3.0], [5.0, 10.0]])
truth.covars_ = np.tile(np.eye(2), (3, 1, 1))
x, _ = truth.sample(500)
for states in (2, 3, 4):
    model = hmm.GaussianHMM(n_components=states, covariance_type="full", n_iter=25, random_state=1)
    print(states, model.fit(x).score(x), len(set(model.predict(x))))
