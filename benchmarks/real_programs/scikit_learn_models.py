"""scikit-learn: linear models, principal components, a Gaussian process and cross-validation."""

import numpy as np
from sklearn.datasets import make_classification, make_regression
from sklearn.decomposition import PCA
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

x, y = make_regression(1000, 40, noise=1.0, random_state=0)
for model in (LinearRegression(), Ridge(), BayesianRidge()):
    scores = cross_val_score(make_pipeline(StandardScaler(), model), x, y, cv=10)
features, classes = make_classification(1000, 30, random_state=0)
for _ in range(5):
    logistic = make_pipeline(StandardScaler(), PCA(10), LogisticRegression()).fit(features, classes)
process = GaussianProcessRegressor(normalize_y=True, random_state=0).fit(x[:150, :5], y[:150])
print(scores.mean(), logistic.score(features, classes), np.std(process.predict(x[150:250, :5])))
