"""How do I get sets from an ONNX file?

A session is a function on batches. The file here is written by hand from a small network of
scikit-learn; name the output that is the embedding when you export your own model.
"""

try:
    from onnx import TensorProto, helper, numpy_helper, save
    from onnxruntime import InferenceSession
except ImportError as error:
    raise SystemExit(f"needs {error.name}: pip install onnx onnxruntime") from None
import tempfile

import numpy as np
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from sklearn.utils import shuffle

from trustsets import ConditionalConformal, TrustScore
from trustsets.extract import extract_outputs

X, y = shuffle(*load_digits(return_X_y=True), random_state=0)
X = (X / 16.0).astype(np.float32)
network = MLPClassifier([32], max_iter=300, early_stopping=True, random_state=0)
network.fit(X[:800], y[:800])


def write_onnx(path):
    """Two linear layers; a model of yours is exported by its own framework."""
    layers = zip(network.coefs_, network.intercepts_, strict=True)
    weights = [np.float32(part) for layer in layers for part in layer]
    nodes = [
        helper.make_node("Gemm", ["pixels", "w0", "w1"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "w2", "w3"], ["logits"]),
    ]
    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["n", 64])
    active = helper.make_tensor_value_info("active", TensorProto.FLOAT, ["n", 32])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 10])
    stored = [numpy_helper.from_array(part, f"w{i}") for i, part in enumerate(weights)]
    graph = helper.make_graph(nodes, "digits", [pixels], [logits, active], stored)
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)


with tempfile.TemporaryDirectory() as folder:
    write_onnx(f"{folder}/digits.onnx")
    batches = [(X[start : start + 256], y[start : start + 256]) for start in range(0, len(X), 256)]
    session = InferenceSession(f"{folder}/digits.onnx")

outputs = extract_outputs(lambda x: session.run(["logits", "active"], {"pixels": x}), batches)
trust = TrustScore().fit(outputs[:800].features, outputs[:800].labels)
predictor = ConditionalConformal(trust=trust).calibrate(outputs[800:1300])
sets = predictor.predict_set(outputs[1300:], alpha=0.05)
print(
    f"{sets.covers(outputs[1300:].labels).mean():.3f} covered; true digit and set of some samples:"
)
for i in np.argsort(sets.sizes, kind="stable")[[0, -2, -1]]:
    print(f"{y[1300 + i]}: {sets[int(i)].tolist()}")
