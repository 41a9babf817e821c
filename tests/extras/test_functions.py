"""Plain functions over batches: the way in for JAX, Flax, Keras and anything else."""

import numpy as np
import pytest

from trustsets import InputError, TrustSetsWarning
from trustsets.extras import shards as shards_module
from trustsets.extras.functions import extract_outputs

WEIGHTS = np.random.default_rng(0).normal(size=(4, 3))


def classify(inputs):
    features = np.tanh(inputs)
    return features @ WEIGHTS, features


def batches(sizes=(5, 5, 2), seed=1):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(size, 4)), rng.integers(3, size=size)) for size in sizes]


def test_outputs_are_those_of_the_function():
    outputs = extract_outputs(classify, batches())
    inputs = np.concatenate([x for x, _ in batches()])
    logits, features = classify(inputs)
    np.testing.assert_array_equal(outputs.logits, logits.astype(np.float32))
    np.testing.assert_array_equal(outputs.features, features.astype(np.float32))
    assert outputs.labels.tolist() == np.concatenate([y for _, y in batches()]).tolist()
    assert outputs.logits.dtype == outputs.features.dtype == np.float32


def test_mappings_keep_their_names_without_the_labels():
    def named(inputs):
        assert set(inputs) == {"a", "b"}
        return classify(inputs["a"] + inputs["b"])

    given = [{"a": x, "b": 2 * x, "label": y} for x, y in batches()]
    outputs = extract_outputs(named, given)
    plain = extract_outputs(lambda x: classify(3 * x), batches())
    np.testing.assert_allclose(outputs.logits, plain.logits, rtol=1e-6)
    keras = [({"a": x, "b": 2 * x}, y) for x, y in batches()]
    np.testing.assert_array_equal(extract_outputs(named, keras).logits, outputs.logits)
    chosen = extract_outputs(classify, given, inputs="a")
    np.testing.assert_array_equal(chosen.logits, extract_outputs(classify, batches()).logits)


def test_texts_and_tokens():
    def count(texts):
        lengths = np.array([[len(text), text.count(" ")] for text in texts], dtype=np.float32)
        return lengths @ WEIGHTS[:2], lengths

    outputs = extract_outputs(count, [(["a b", "c"], ["x", "y"])], classes=["x", "y", "z"])
    assert outputs.features.tolist() == [[3.0, 1.0], [1.0, 0.0]]
    assert outputs.labels.tolist() == ["x", "y"]

    def tokens(inputs):
        values = np.repeat(inputs["input_ids"][:, :, None], 4, axis=2).astype(np.float32)
        return values[:, 0] @ WEIGHTS, values

    ids = np.array([[5, 3, 0], [2, 9, 4]])
    batch = {"input_ids": ids, "attention_mask": (ids > 0).astype(int)}
    found = extract_outputs(tokens, [batch], features="mean")
    assert found.features[:, 0].tolist() == [4.0, 5.0]
    for options, words in [
        ({}, 'features="cls"'),
        ({"features": "mean", "inputs": ("input_ids",)}, "with an 'attention_mask'"),
    ]:
        with pytest.raises(InputError, match=words):
            extract_outputs(tokens, [batch], **options)


def test_probabilities_in_place_of_logits_are_noticed():
    def softmax(inputs):
        powers = np.exp(classify(inputs)[0])
        return powers / powers.sum(axis=1, keepdims=True), inputs

    with pytest.warns(TrustSetsWarning, match="look like probabilities"):
        extract_outputs(softmax, batches())
    extract_outputs(lambda x: (np.abs(classify(x)[0]), x), batches())
    extract_outputs(lambda x: (np.log(softmax(x)[0]), x), batches())


def test_a_run_that_died_continues(tmp_path, monkeypatch):
    monkeypatch.setattr(shards_module, "SHARD_ROWS", 5)
    seen = []

    def counted(inputs):
        seen.append(len(inputs))
        return classify(inputs)

    def dies():
        yield from batches()[:2]
        raise OSError("away")

    run = {"shards": tmp_path / "run", "version": "1"}
    with pytest.raises(OSError, match="away"):
        extract_outputs(counted, dies(), **run)
    again = extract_outputs(counted, batches(), **run)
    assert seen == [5, 5, 2]
    np.testing.assert_array_equal(again.logits, extract_outputs(classify, batches()).logits)
    with pytest.raises(InputError, match="version was '1', is '2'"):
        extract_outputs(counted, batches(), **(run | {"version": "2"}))
    with pytest.raises(InputError, match="other inputs"):
        extract_outputs(counted, [(x + 1, y) for x, y in batches()], **run)


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (3, {}, "must be callable; got a int"),
        (lambda x: x, {}, r"must return \(logits, features\); it returned a ndarray"),
        (lambda x: (x, x, x), {}, "returned a tuple of 3"),
        (lambda x: (x[:, 0], x), {}, r"logits of shape \(n, K\), here \(5, K\); got \(5,\)"),
        (lambda x: (x, x[:2]), {}, "must be one array with 5 rows"),
        (lambda x: (x * np.nan, x), {}, "logits must be finite"),
        (classify, {"shards": "run"}, "need version="),
        (classify, {"features": "average"}, "features must be one of 'cls'"),
    ],
)
def test_bad_functions_are_named(function, options, words):
    with pytest.raises(InputError, match=words):
        extract_outputs(function, batches(), **options)
