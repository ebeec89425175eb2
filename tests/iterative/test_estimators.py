"""The estimators against scikit-learn's own, and against its checks of any estimator."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

import codedla
from codedla.engine.stragglers import parse_fault

pytest.importorskip("sklearn", reason="the estimators need scikit-learn (codedla[learn])")

from sklearn.base import clone
from sklearn.datasets import load_digits, make_regression
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import check_estimator


@pytest.mark.parametrize("estimator", [codedla.CodedLogisticRegression(), codedla.CodedRidge()])
@pytest.mark.filterwarnings("ignore")  # some checks give what cannot converge
def test_scikit_learn_accepts_them(estimator):
    results = check_estimator(estimator, on_skip=None)
    assert {result["status"] for result in results} <= {"passed", "skipped"}
    assert sum(result["status"] == "passed" for result in results) > 40


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:400] / 16.0, y[:400]


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_logistic_regression_is_that_of_scikit_learn(digits, kind, classes, fit_intercept):
    X, y = digits
    X, y = X[y < classes], y[y < classes]
    weights = 1.0 + np.arange(len(y)) % 3
    options = {"C": 0.5, "fit_intercept": fit_intercept}
    mine = codedla.CodedLogisticRegression(tol=1e-9, **options).fit(kind(X), y, weights)
    theirs = LogisticRegression(tol=1e-9, max_iter=5000, **options).fit(X, y, weights)
    assert mine.coef_.shape == theirs.coef_.shape
    np.testing.assert_allclose(mine.coef_, theirs.coef_, atol=2e-4)
    np.testing.assert_allclose(mine.intercept_, theirs.intercept_, atol=2e-4)
    np.testing.assert_allclose(mine.predict_proba(X), theirs.predict_proba(X), atol=1e-4)
    assert np.array_equal(mine.predict(kind(X)), theirs.predict(X))


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_ridge_is_that_of_scikit_learn(kind, targets, fit_intercept):
    X, y = make_regression(120, 15, n_targets=targets, noise=3.0, random_state=61, bias=7.0)
    X = X + 4.0
    weights = 1.0 + np.arange(len(y)) % 3
    options = {"alpha": 2.0, "fit_intercept": fit_intercept}
    mine = codedla.CodedRidge(**options).fit(kind(X), y, weights)
    theirs = Ridge(**options).fit(X, y, weights)
    assert mine.coef_.shape == theirs.coef_.shape
    np.testing.assert_allclose(mine.coef_, theirs.coef_, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(mine.predict(kind(X)), theirs.predict(X), rtol=1e-8)


def test_late_workers_are_not_waited_for_and_clones_stay_on_the_pool(digits):
    X, y = digits
    plain = codedla.CodedLogisticRegression(stragglers=0, scheme="uncoded").fit(X, y)
    with codedla.SerialPool(5, [parse_fault("delay:2:1"), parse_fault("delay:4:1")]) as pool:
        model = codedla.CodedLogisticRegression(stragglers=2, pool=pool)
        assert clone(model).pool is pool
        search = GridSearchCV(model, {"C": [0.1, 1.0]}, cv=2).fit(X, y)
        assert set(search.best_estimator_.stragglers_) == {2, 4}
        best = clone(plain).set_params(C=search.best_params_["C"]).fit(X, y)
        np.testing.assert_allclose(search.best_estimator_.coef_, best.coef_, atol=1e-3)
        assert pool._resident == {}, "nothing stays on the workers"


def test_too_few_steps_are_said(digits):
    X, y = digits
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        codedla.CodedLogisticRegression(max_iter=2).fit(X, y)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        codedla.CodedRidge(max_iter=2).fit(X, y)


def test_without_scikit_learn_the_extra_is_named():
    code = (
        "import sys; sys.modules['sklearn'] = None; sys.modules['sklearn.base'] = None\n"
        "import codedla\n"
        "try: codedla.CodedRidge\n"
        "except codedla.UsageError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "codedla[learn]" in done.stdout
