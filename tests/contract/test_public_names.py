"""The names that users and later work rely on."""

import subprocess
import sys

import pytest
from kinds import some

import trustsets
from trustsets import errors

PINNED = set(
    """
    APS Basis Bins ClassBias Classes ClusteredConformal ConditionalConformal Confidence Custom
    Entropy Evaluation Groups Intercept Learned Margin ModelOutputs MondrianConformal Monitor
    Polynomial PredictionSets Predictor PrincipalComponents RAPS SAPS Score Softmax
    StandardConformal Status TemperatureScaling Trust TrustScore TrustSetClassifier TrustSetsError
    audit compare evaluate explore load plan write_report
    """.split()
)


def test_exported_names_are_the_pinned_ones_and_exist():
    assert set(trustsets.__all__) == PINNED and len(PINNED) <= 40
    for name in PINNED:
        assert getattr(trustsets, name) is not None
    assert set(dir(trustsets)) >= PINNED and trustsets.__version__


def test_unknown_names_raise_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = trustsets.nonsense


def test_every_error_is_of_the_family_and_of_a_standard_kind():
    from sklearn.exceptions import NotFittedError

    assert issubclass(errors.InputError, ValueError)
    assert issubclass(errors.StorageError, ValueError)
    assert issubclass(errors.NotCalibratedError, NotFittedError)
    for error in (errors.InputError, errors.StorageError, errors.NotCalibratedError):
        assert issubclass(error, trustsets.TrustSetsError)


SCIPY = "scipy.stats scipy.optimize scipy.linalg scipy.special"
PREDICTORS = "ConditionalConformal, ModelOutputs, StandardConformal, TrustScore, PredictionSets"


@pytest.mark.parametrize(
    ("code", "unused"),
    [
        ("import trustsets", "numpy numba sklearn pandas pyarrow scipy"),
        # numba compiles the engine; everything else here takes longer to load than a prediction.
        (f"from trustsets import {PREDICTORS}", f"sklearn {SCIPY} pandas pyarrow polars typer"),
        ("import trustsets.plots", ""),
    ],
)
def test_nothing_is_loaded_before_it_is_needed(code, unused):
    heavy = f"{unused} matplotlib torch rich jinja2".split()
    code = f"import sys; {code}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_public_name_is_also_a_module():
    # Importing a module binds its name in the package, which would replace the public name.
    from pkgutil import iter_modules

    modules = {module.name for module in iter_modules(trustsets.__path__)}
    assert "auditing" in modules and not modules & {*PINNED, "audit", "plan"}


def test_what_users_print_is_short_and_shows_no_arrays():
    first, second = some(0, 600), some(1, 600)
    predictor = trustsets.ConditionalConformal().calibrate(first)
    sets = predictor.predict_set(second)
    comparison = trustsets.compare({"default": predictor}, outputs=second, n_bootstrap=20)
    shown = [first, predictor, sets, trustsets.evaluate(sets, second), comparison]
    shown += [predictor.explain(second[0]), predictor.certificate(second[0])]
    shown += [predictor.adapt(second), predictor.adapt(second, shift="covariate")]
    shown += [trustsets.Monitor(predictor), trustsets.audit(predictor)]
    for item in [*shown, trustsets.plan(alpha=0.1, within=0.02, probability=0.95)]:
        text = str(item)
        assert "array(" not in text and " object at " not in text, text
        assert len(text) < 2500
    assert str(comparison) == comparison.to_markdown()
