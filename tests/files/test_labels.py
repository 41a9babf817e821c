"""What the labels of a file mean: positions or names of classes, and never "no label"."""

import numpy as np
import pytest
from outputs_files import CLASSES, simulated, write_npz

import trustsets
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.files import open_outputs, read_training
from trustsets.files.calibration import Recipe, calibrate_file
from trustsets.files.evaluation import Comparison, evaluate_files


def with_label(label, **changes):
    """Outputs whose sample 7 has the label -1, or another stranger."""
    arrays = simulated() | changes
    arrays["labels"] = arrays["labels"].copy()
    arrays["labels"][7] = label
    return {name: own for name, own in arrays.items() if own is not None}


@pytest.mark.parametrize("label", [-1, -5, 5])
@pytest.mark.parametrize("classes", [CLASSES, None, np.arange(5)], ids=["names", "none", "numbers"])
def test_a_label_that_is_no_class_is_refused(label, classes, tmp_path):
    path = write_npz(tmp_path / "a", with_label(label, classes=classes))
    # Its row, or that the numbers do not name the columns.
    message = rf"a\.npz.*(row 7 holds .*{label}|6 distinct values|labels hold -1)"
    with pytest.raises(InputError, match=message):
        open_outputs(path).read()
    # Other ranges of the file are read as ever.
    assert len(open_outputs(path).read(8, 20)) == 12


def test_training_labels_of_minus_one_are_refused(tmp_path):
    arrays = with_label(-1)
    path = write_npz(tmp_path / "a", {name: arrays[name] for name in ("features", "labels")})
    with pytest.raises(InputError, match=r"a\.npz.*'labels'.*row 7 holds -1"):
        read_training(path, CLASSES)


@pytest.fixture
def files(tmp_path):
    """Named outputs; training samples by position, by name, and by position in another order."""
    train, outputs = simulated(200, seed=1), simulated(300, seed=2)
    by_position = {"features": train["features"], "labels": train["labels"]}
    order = np.array([3, 0, 4, 1, 2])
    turned = {"labels": np.argsort(order)[train["labels"]], "classes": CLASSES[order]}
    write_npz(tmp_path / "position", by_position)
    write_npz(tmp_path / "name", by_position | {"labels": CLASSES[train["labels"]]})
    write_npz(tmp_path / "turned", by_position | turned)
    write_npz(tmp_path / "outputs", outputs)
    return tmp_path


@pytest.mark.parametrize("form", ["position", "turned"])
def test_integer_training_labels_are_positions_of_named_classes(form, files):
    """The trust score knows the classes by name, whichever way the training file has them."""
    recipe = Recipe(degree=1)
    models = {}
    for train in ("name", form):
        target = files / f"{train}.trustsets"
        calibrate_file(files / "outputs.npz", target, recipe, train=files / f"{train}.npz")
        models[train] = trustsets.load(target)
    assert models[form].trust.classes_.tolist() == CLASSES.tolist()
    new = open_outputs(files / "outputs.npz").read(0, 50)
    scores = [one.trust.score(new.features, new.predicted) for one in models.values()]
    np.testing.assert_array_equal(*scores)
    assert (scores[0] > 0.0).all()
    found = [
        evaluate_files(
            Comparison(
                files / "outputs.npz",
                {"model": files / "name.trustsets"},
                train=files / f"{train}.npz",
                metrics=("conf_trust",),
                n_bootstrap=5,
            )
        )["model"].to_json()
        for train in ("name", form)
    ]
    assert found[0] == found[1]


def test_calibration_on_the_training_file_is_noticed(files):
    own = files / "outputs.npz"
    with pytest.warns(TrustSetsWarning, match="is both the calibration file and the training file"):
        calibrate_file(own, files / "own.trustsets", Recipe(degree=1), train=own)
