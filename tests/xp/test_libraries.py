"""SciPy and scikit-learn compute with Arrays: the results are Arrays, with the values that NumPy's arrays give."""

import json
import os
import subprocess
import sys

import pytest

# In a process of its own: SciPy reads SCIPY_ARRAY_API when it is imported.
PROGRAM = """
import json, sys
import numpy as np
import trnpy
X = np.random.default_rng(0).standard_normal((200, 12))
Y = X @ np.arange(12.0)
CASES = {
    "scipy": {
        "gammaln": lambda x, y: scipy.special.gammaln(x * x),
        "logsumexp": lambda x, y: scipy.special.logsumexp(x, axis=1),
        "fft": lambda x, y: scipy.fft.fft(x),
        "zscore": lambda x, y: scipy.stats.zscore(x),
        "pearsonr": lambda x, y: scipy.stats.pearsonr(x[:, 0], y).statistic,
        "kmeans": lambda x, y: scipy.cluster.vq.kmeans(x[:, :2], x[:3, :2])[0],
    },
    "sklearn": {
        "PCA": lambda x, y: PCA(3, svd_solver="full").fit(x).transform(x),
        "Ridge": lambda x, y: Ridge(solver="svd").fit(x, y).coef_,
        "GaussianMixture": lambda x, y: GaussianMixture(2, random_state=0, init_params="random").fit(x).means_,
        "StandardScaler": lambda x, y: StandardScaler().fit_transform(x),
    },
}
if sys.argv[1] == "scipy":
    import scipy.cluster.vq, scipy.fft, scipy.special, scipy.stats
else:
    import sklearn
    from sklearn.decomposition import PCA
    from sklearn.linear_model import Ridge
    from sklearn.mixture import GaussianMixture
    from sklearn.preprocessing import StandardScaler
    sklearn.set_config(array_api_dispatch=True)
found = {}
for name, call in CASES[sys.argv[1]].items():
    result, expected = call(trnpy.asarray(X), trnpy.asarray(Y)), call(X, Y)
    share = float(np.abs(np.asarray(result) - expected).max() / np.abs(expected).max())
    found[name] = type(result).__name__, share
print(json.dumps(found))
"""
CLOSE = 1e-12
ITERATED = {"GaussianMixture": 1e-5}  # ends when its bound changes by less than 1e-3


@pytest.mark.parametrize("library", ["scipy", "sklearn"])
def test_a_library_of_the_array_api_computes_with_arrays(library):
    pytest.importorskip(library, reason=f"{library} is not installed")
    environment = os.environ | {"SCIPY_ARRAY_API": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", PROGRAM, library], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, (kind, share) in json.loads(done.stdout).items():
        assert kind == "Array" and share <= ITERATED.get(name, CLOSE), (name, kind, share)
