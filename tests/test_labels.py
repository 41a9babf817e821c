"""A label that is no class is refused; -1, the mark of "no label", is none."""

import numpy as np
import pytest

from trustsets import InputError, ModelOutputs, oracle_sets


@pytest.mark.parametrize("dtype", [np.int8, np.int64, object])
@pytest.mark.parametrize("classes", [[0, 1, 2], [3, 1, 2], ["a", "b", "c"]])
def test_minus_one_is_no_label(classes, dtype):
    """The usual mark of an unlabelled sample must never count as the last class."""
    bad = np.array([1, -1, 2, 1], dtype=dtype)
    if isinstance(classes[0], str):
        bad = np.array(["a", -1, "b", "c"], dtype=object)
    with pytest.raises(InputError, match=r"labels must be among the 3 classes; row 1 holds .*-1"):
        ModelOutputs(logits=np.zeros((4, 3)), labels=bad, classes=classes)
    sets = oracle_sets(np.full((4, 3), 1 / 3), 0.1, classes=classes)
    with pytest.raises(InputError, match=r"labels must be among the 3 classes; row 1 holds .*-1"):
        sets.covers(bad)


def test_minus_one_does_not_pass_for_the_name_of_a_column():
    """Six columns, labels -1 to 4: six numbers, and yet they do not name the columns."""
    labels = np.arange(-1, 5)
    with pytest.raises(InputError, match=r"labels hold -1 .* pass classes="):
        ModelOutputs(logits=np.zeros((6, 6)), labels=labels)
    named = ModelOutputs(logits=np.zeros((6, 6)), labels=labels, classes=labels)
    assert named.codes.tolist() == [0, 1, 2, 3, 4, 5]
    # Two classes called -1 and 1 are a common convention, and no positions.
    pair = ModelOutputs(logits=np.zeros((2, 2)), labels=[1, -1])
    assert pair.classes.tolist() == [-1, 1]
