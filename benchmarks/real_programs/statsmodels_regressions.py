"""statsmodels: least squares, a generalised linear model, a mixed model and an autoregression, with their summaries."""

import numpy as np
import statsmodels.api as sm

rng = np.random.default_rng(0)
x = sm.add_constant(rng.standard_normal((400, 6)))
truth = rng.standard_normal(7)
for _ in range(15):
    y = x @ truth + rng.standard_normal(400)
    fit = sm.OLS(y, x).fit(cov_type="HC1")
    str(fit.summary())
    counts = rng.poisson(np.exp(0.1 * x @ truth))
    sm.GLM(counts, x, family=sm.families.Poisson()).fit()
groups = np.repeat(np.arange(40), 10)
mixed = sm.MixedLM(y, x, groups=groups).fit()
series = np.cumsum(rng.standard_normal(200))
for order in ((1, 1, 0), (2, 1, 1)):
    model = sm.tsa.ARIMA(series, order=order).fit()
print(fit.rsquared, model.aic)
