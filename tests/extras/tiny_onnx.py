"""Small ONNX classifiers, built node by node."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

RANKS = {"last_hidden_state": [None] * 3}


def perceptron(path, layers, *, outputs=("logits",), batch="n", shape=(12,), softmax=False):
    """Flatten, linear, ReLU, linear: the same numbers as `layers`, pairs of weight and bias.

    Other names of `outputs` are tensors of the graph: ``flat``, ``hidden``, ``features``.
    """
    (first, first_bias), (second, second_bias) = layers
    nodes = [
        helper.make_node("Flatten", ["inputs"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w1", "b1"], ["hidden"], transB=1),
        helper.make_node("Relu", ["hidden"], ["features"]),
        helper.make_node("MatMul", ["features", "w2"], ["product"]),
        helper.make_node("Add", ["product", "b2"], ["sum" if softmax else "logits"]),
    ]
    if softmax:
        nodes.append(helper.make_node("Softmax", ["sum"], ["probabilities"], axis=1))
        outputs = ("probabilities",)
    weights = {
        "w1": first,
        "b1": first_bias,
        "w2": np.ascontiguousarray(second.T),
        "b2": second_bias,
    }
    save(path, nodes, {"inputs": (TensorProto.FLOAT, [batch, *shape])}, outputs, weights)


def pooled_text(path, table, head):
    """Embeddings of tokens, whose masked mean makes the logits; the tokens are an output."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"], axis=0),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "axes"], ["weights"]),
        helper.make_node("Mul", ["last_hidden_state", "weights"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "one"], ["total"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "one"], ["count"], keepdims=1),
        helper.make_node("Div", ["total", "count"], ["mean"]),
        helper.make_node("MatMul", ["mean", "head"], ["logits"]),
    ]
    weights = {"table": table, "head": head, "axes": np.array([2]), "one": np.array([1])}
    ids = (TensorProto.INT64, ["n", "length"])
    inputs = {"input_ids": ids, "attention_mask": ids}
    save(path, nodes, inputs, ("logits", "last_hidden_state"), weights)


def save(path, nodes, inputs, outputs, weights):
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, *own) for name, own in inputs.items()],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, RANKS.get(name, [None] * 2))
            for name in outputs
        ],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
