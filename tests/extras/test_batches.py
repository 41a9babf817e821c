"""Every form of batch gives the inputs and labels that a person would have picked."""

from collections import UserDict, namedtuple

import numpy as np
import pytest
import torch
from torch import nn

from trustsets import InputError
from trustsets.extras.batches import Accepts, BatchReader
from trustsets.extras.torch import extract_outputs

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
Z = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 0, 1, 2])
IDS = torch.arange(6)


class Pair(nn.Module):
    """Two inputs; swapped or forgotten ones change the logits."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(4, 3)

    def forward(self, first, second=None, labels=None):
        assert labels is None
        return {"logits": self.fc(first if second is None else first - 2 * second)}


class Anything(Pair):
    """Takes inputs by any name, as wrappers do."""

    def forward(self, **named):
        return super().forward(**named)


def expected(first=X, second=None):
    with torch.no_grad():
        return Pair()(first, second)["logits"].numpy()


Both = namedtuple("Both", "first second")

PAIRS = [
    {"first": X, "second": Z, "labels": Y},
    {"second": Z, "first": X, "label": Y.tolist(), "ids": IDS, "texts": ["a"] * 6, "none": None},
    UserDict(first=X, second=Z, target=Y),
    {"first": X, "second": Z, "label_ids": Y.numpy()},
    ((X, Z), Y),
    ([X, Z], Y),
    (Both(X, Z), Y),
    (X, Z, Y),
    [X, Z, Y],
    ({"first": X, "second": Z}, Y),
    ({"first": X, "second": Z, "mask": X > 0}, Y, torch.ones(6)),
]


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_two_inputs_in_every_form(number):
    outputs = extract_outputs(Pair(), [PAIRS[number]])
    np.testing.assert_array_equal(outputs.logits, expected(X, Z))
    assert outputs.labels.tolist() == Y.tolist()


@pytest.mark.parametrize("key", ["inputs", "pixel_values", "image", "x", "anything"])
def test_one_input_of_any_name(key):
    for batch in ({key: X, "y": Y}, {key: X, "labels": Y, "paths": ["p"] * 6}):
        outputs = extract_outputs(Pair(), [batch])
        np.testing.assert_array_equal(outputs.logits, expected())
        assert outputs.labels.tolist() == Y.tolist()


def test_models_that_take_any_name_get_all_entries():
    outputs = extract_outputs(Anything(), [{"first": X, "second": Z, "labels": Y}])
    np.testing.assert_array_equal(outputs.logits, expected(X, Z))
    one = extract_outputs(Anything(), [{"first": X}])
    np.testing.assert_array_equal(one.logits, expected())
    with pytest.raises(TypeError, match="ids"):
        extract_outputs(Anything(), [{"first": X, "ids": IDS}])
    chosen = extract_outputs(Anything(), [{"first": X, "ids": IDS}], inputs=["first"])
    np.testing.assert_array_equal(chosen.logits, expected())


def test_items_are_chosen_by_place_or_key():
    for batch, inputs, labels, second in [
        ((X, Y, IDS), 0, 1, None),
        ((X, Y, IDS), None, 1, None),
        ((IDS, X, Y, Z), (1, 3), 2, Z),
        ((X, Z, Y, IDS), None, 2, Z),
        ({"a": X, "b": Z, "c": Y, "labels": IDS}, "a", "c", None),
        ({"first": X, "second": Z, "c": Y}, ("first",), "c", None),
        ({"first": X, "second": Z, "c": Y}, None, "c", Z),
    ]:
        outputs = extract_outputs(Pair(), [batch], inputs=inputs, labels=labels)
        np.testing.assert_array_equal(outputs.logits, expected(X, second))
        assert outputs.labels.tolist() == Y.tolist()
    assert extract_outputs(Pair(), [(X, Y, IDS)], inputs=0).labels is None


def test_an_input_called_y_is_an_input_where_the_model_needs_it():
    class Needs(Pair):
        def forward(self, x, y):
            return super().forward(x, y)

    outputs = extract_outputs(Needs(), [{"x": X, "y": Z, "labels": Y}])
    np.testing.assert_array_equal(outputs.logits, expected(X, Z))
    assert extract_outputs(Needs(), [{"x": X, "y": Z}]).labels is None


@pytest.mark.parametrize(
    ("batch", "options", "words"),
    [
        ((X, Y, IDS), {}, "not clear which are inputs .* such as inputs=0, labels=1"),
        ((X, Y, X), {}, "not clear which are inputs"),
        ((), {}, "a batch has 0 items"),
        ({}, {}, "Say which are the inputs"),
        (torch.tensor(3.0), {}, "a tensor of at least one row"),
        ({"first": X[:0]}, {}, "a tensor of at least one row"),
        ((X, Y), {"labels": 2}, "must be places in a batch of 2 items"),
        ((X, Y), {"inputs": "first"}, "must be places in a batch of 2 items"),
        ((Y, X), {"labels": 0}, "inputs=None and labels=0 must be places"),
        ({"a": X, "b": Z}, {}, r'such as inputs="image"'),
        ({"labels": Y}, {}, "Say which are the inputs"),
        ({"a": X}, {"inputs": "b"}, r"a batch has no 'b'; it has \['a'\]"),
        ({"a": X}, {"labels": "y"}, "a batch has no 'y'"),
        ((X, torch.eye(6)), {}, "Of one-hot labels, take argmax"),
        (({"first": X.numpy()}, Y), {}, "inputs of type ndarray"),
        ({"first": X, "second": Z.numpy()}, {}, "inputs of type ndarray"),
        ({"first": X, "second": Z.tolist()}, {}, "inputs of type float"),
        ((["a", "b"], Y), {}, "inputs of type list"),
    ],
)
def test_unclear_batches_are_refused_with_a_remedy(batch, options, words):
    with pytest.raises(InputError, match=words):
        extract_outputs(Pair(), [batch], **options)


def test_labels_that_are_places_get_their_names():
    names = ["ant", "bee", "cat"]
    outputs = extract_outputs(Pair(), [(X, Y)], classes=names)
    assert outputs.labels.tolist() == [names[each] for each in Y]
    with pytest.raises(InputError, match="places in the 3 classes; got -1"):
        extract_outputs(Pair(), [(X, Y - 1)], classes=names)


def test_a_reader_of_arrays_takes_lists_of_texts():
    reader = BatchReader(Accepts())
    assert reader.read((["a", "b"], [0, 1])).size == 2
    assert reader.read({"text": ["a", "b"], "label": [0, 1]}).inputs == {"text": ["a", "b"]}


def test_shards_know_several_inputs_again(tmp_path):
    batches = [{"first": X, "second": Z, "labels": Y}]
    whole = extract_outputs(Pair(), batches, shards=tmp_path / "run")
    again = extract_outputs(Pair(), batches, shards=tmp_path / "run")
    np.testing.assert_array_equal(whole.logits, again.logits)
    for other in (
        {"first": X, "second": Z + 1, "labels": Y},
        {"first": Z, "second": X, "labels": Y},
        {"second": X, "first": Z, "labels": Y},  # the same arrays in the same order
    ):
        with pytest.raises(InputError, match="other inputs than are stored"):
            extract_outputs(Pair(), [other], shards=tmp_path / "run")
    with pytest.raises(InputError, match="features was None, is 'flatten'"):
        extract_outputs(Pair(), batches, features="flatten", shards=tmp_path / "run")
