"""Of classes with tied p-values, the point prediction is the one of lowest score."""

import numpy as np
import pytest

from trustsets import (
    APS,
    RAPS,
    SAPS,
    ConditionalConformal,
    Groups,
    Intercept,
    ModelOutputs,
    MondrianConformal,
    Softmax,
    StandardConformal,
)
from trustsets.scores import MarginScore

# Scores that increase as a class gets less likely, so that the most likely class has the lowest.
SCORES = [APS(), APS(scale="tail"), RAPS(), SAPS(), Softmax(), MarginScore()]
PREDICTORS = {
    "standard": lambda score: StandardConformal(score=score),
    "groups": lambda score: MondrianConformal(by=Groups(), score=score),
    "conditional": lambda score: ConditionalConformal(score=score, basis=Intercept()),
}


def outputs_of(n, seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, 6))
    labels = (logits + 2.0 * rng.gumbel(size=logits.shape)).argmax(axis=1)
    groups = rng.choice(["a", "b"], n)
    return ModelOutputs(logits=logits, labels=labels, groups=groups)


@pytest.mark.parametrize("alphas", [[0.02], [0.05, 0.3], [0.1, 0.2, 0.4]])
@pytest.mark.parametrize("score", SCORES, ids=str)
@pytest.mark.parametrize("name", PREDICTORS)
def test_ties_go_to_the_class_of_lowest_score(name, score, alphas):
    predictor = PREDICTORS[name](score).calibrate(outputs_of(400, 0))
    new = outputs_of(200, 1)
    p = predictor.predict_p(new, alphas)
    tied = (p == p.max(axis=1, keepdims=True)).sum(axis=1) > 1
    assert tied.any()
    found = predictor.predict_confidence(new, alphas)
    np.testing.assert_array_equal(found.labels, new.predicted)
