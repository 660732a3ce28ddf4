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
import scipy.integrate
import scipy.stats
import trnpy
X = np.random.default_rng(0).standard_normal((200, 12))
Y = X @ np.arange(12.0)
SECTIONS = np.array([[0.1, 0.2, 0.1, 1.0, -0.6, 0.2], [0.3, 0.1, 0.0, 1.0, -0.2, 0.1]])
LABELS = (3 * scipy.stats.rankdata(X[:, 0]) / 201).astype(int)
def like(a, x):
    return trnpy.asarray(a) if isinstance(x, trnpy.Array) else a
def written(x):
    x[0] = 7.0
    return x
def mixture(kind, x, **options):
    f = GaussianMixture(3, covariance_type=kind, random_state=0, init_params="random", max_iter=5, **options).fit(x)
    return f.means_
def classified(estimator, x, shift, factor):
    f = estimator.fit(x, like(LABELS * factor + shift, x))
    return xp_of(x).concat([f.classes_, f.predict(x)])
def xp_of(x):
    return trnpy.xp if isinstance(x, trnpy.Array) else np
# By first word: before, the function or estimator is not of the library's array API.
SINCE = {
    "sosfilt": (1, 16), "sosfiltfilt": (1, 16), "GaussianMixture": (1, 8), "mixture": (1, 8), "GaussianNB": (1, 8),
    "RidgeClassifier": (1, 8), "LogisticRegression": (1, 9), "log_loss": (1, 8),
}
CASES = {
    "scipy": {
        "gammaln": lambda x, y: scipy.special.gammaln(x * x),
        "logsumexp": lambda x, y: scipy.special.logsumexp(x, axis=1),
        "fft": lambda x, y: scipy.fft.fft(x),
        "zscore": lambda x, y: scipy.stats.zscore(x),
        "pearsonr": lambda x, y: scipy.stats.pearsonr(x[:, 0], y).statistic,
        "tanhsinh": lambda x, y: scipy.integrate.tanhsinh(lambda t: t * t, x[:, 0], x[:, 1] + 9).integral,
        "sosfilt": lambda x, y: written(scipy.signal.sosfilt(like(SECTIONS, y), y)),
        "sosfiltfilt": lambda x, y: written(scipy.signal.sosfiltfilt(like(SECTIONS, y), y)),
        "circulant": lambda x, y: scipy.linalg.circulant(y),
        "kmeans": lambda x, y: scipy.cluster.vq.kmeans(x[:, :2], x[:3, :2])[0],
    },
    "sklearn": {
        "PCA": lambda x, y: PCA(3, svd_solver="full").fit(x).transform(x),
        "Ridge": lambda x, y: Ridge(solver="svd").fit(x, y).coef_,
        "GaussianMixture": lambda x, y: GaussianMixture(2, random_state=0, init_params="random").fit(x).means_,
        **{f"mixture {kind}": lambda x, y, kind=kind: mixture(kind, x, reg_covar=5.0)
           for kind in ("full", "tied", "diag", "spherical")},
        **{f"{estimator} {shift}": lambda x, y, make=make, shift=shift: classified(make(), x, shift, 7 if shift else 1)
           for estimator, make in {
               "LogisticRegression": lambda: LogisticRegression(), "GaussianNB": lambda: GaussianNB(),
               "discriminant": lambda: LinearDiscriminantAnalysis(),
               "RidgeClassifier": lambda: RidgeClassifier(solver="svd"),
           }.items() for shift in (0, -5, 100)},
        "log_loss": lambda x, y: log_loss(like(LABELS - 1, x), like(np.full((200, 3), 1 / 3) + X[:, :3] / 99, x)),
        "roc_auc": lambda x, y: roc_auc_score(like(LABELS > 0, x), y),
        "StandardScaler": lambda x, y: StandardScaler().fit_transform(x),
    },
}
if sys.argv[1] == "scipy":
    import scipy.cluster.vq, scipy.fft, scipy.linalg, scipy.signal, scipy.special
else:
    import sklearn
    from sklearn.decomposition import PCA
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
    from sklearn.metrics import log_loss, roc_auc_score
    from sklearn.naive_bayes import GaussianNB
    from sklearn.mixture import GaussianMixture
    from sklearn.preprocessing import StandardScaler
    sklearn.set_config(array_api_dispatch=True)
found = {}
version = tuple(map(int, sys.modules[sys.argv[1]].__version__.split(".")[:2]))
for name, call in CASES[sys.argv[1]].items():
    if version < SINCE.get(name.partition(" ")[0], version):
        continue
    result, expected = call(trnpy.asarray(X), trnpy.asarray(Y)), call(X, Y)
    share = float(np.abs(np.asarray(result) - expected).max() / np.abs(expected).max())
    found[name] = type(result).__name__, share
print(json.dumps(found))
"""
CLOSE = 1e-12
# It ends when its bound changes by less than 1e-3.
ITERATED = {"GaussianMixture": 1e-5}
# What SciPy and scikit-learn return instead of an Array.
PLAIN = {"circulant": ["ndarray"], "log_loss": ["float"], "roc_auc": ["float", "float64"]}


@pytest.mark.parametrize("library", ["scipy", "sklearn"])
def test_a_library_of_the_array_api_computes_with_arrays(library):
    pytest.importorskip(library, reason=f"{library} is not installed")
    environment = os.environ | {"SCIPY_ARRAY_API": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", PROGRAM, library], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, (kind, share) in json.loads(done.stdout).items():
        assert kind in PLAIN.get(name, ["Array"]) and share <= ITERATED.get(name, CLOSE), (name, kind, share)
