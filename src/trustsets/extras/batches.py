"""What loaders give, read as inputs and labels; and the loop over them. No optional dependency.

Inputs are one array, a tuple of arrays (``model(*inputs)``) or a dict of arrays
(``model(**inputs)``).
"""

import hashlib
import inspect
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Array, to_numpy
from trustsets._common.atomic import StrPath
from trustsets._common.progress import Advance, progress_bar
from trustsets._common.resuming import locked
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.extras.pooling import TOKEN_POLICIES, Features
from trustsets.extras.shards import BatchStore, OutputBatches
from trustsets.outputs import ModelOutputs

_log = logging.getLogger(__name__)

LABEL_KEYS = ("labels", "label", "targets", "target", "label_ids", "y")
"""Names under which a mapping may hold its labels."""
INPUT_KEYS = ("inputs", "input", "pixel_values", "images", "image", "x")
"""Names of the one input, where the model does not take inputs by name."""
MASK = "attention_mask"
# Rows that are looked at to tell probabilities from logits.
_LOOKED_AT = 1000

Choice = str | int | Sequence[str] | Sequence[int] | None
"""Keys of a mapping or positions in a tuple; None chooses by the usual names and places."""


class Batch(NamedTuple):
    """Inputs of n samples with their labels and their numbers in some table, where known.

    `digest` is that of the inputs, where a later run is to recognise them.
    """

    inputs: Any
    labels: Array | None
    rows: NDArray[np.int64] | None = None
    digest: NDArray[np.uint8] | None = None

    @property
    def size(self) -> int:
        """Number of samples: rows of the first input that has any."""
        return next(len(value) for _, value in leaves(self.inputs) if getattr(value, "ndim", 1))

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and named arguments of the model."""
        if isinstance(self.inputs, dict):
            return (), self.inputs
        return (self.inputs if isinstance(self.inputs, tuple) else (self.inputs,)), {}


def leaves(inputs: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All arrays of inputs, with their names; a lone array has none."""
    if isinstance(inputs, Mapping):
        for key, value in inputs.items():
            yield from leaves(value, f"{name}/{key}")
    elif is_nested(inputs):
        for number, value in enumerate(inputs):
            yield from leaves(value, f"{name}/{number}")
    else:
        yield name, inputs


def convert(inputs: Any, function: Callable[[Any], Any]) -> Any:
    """The same inputs with every array put through a function."""
    if isinstance(inputs, Mapping):
        return {key: convert(value, function) for key, value in inputs.items()}
    if is_nested(inputs):
        return tuple(convert(value, function) for value in inputs)
    return function(inputs)


def is_nested(value: Any) -> bool:
    """Whether this is a tuple or list of inputs; a list of texts is one input."""
    return isinstance(value, tuple | list) and not _is_texts(value)


def _is_texts(value: Any) -> bool:
    if not isinstance(value, tuple | list) or not value:
        return False
    return all(isinstance(each, str) for each in value)


def is_array(value: Any) -> bool:
    """Whether this is an array of any library, or a list of texts."""
    return _is_texts(value) or hasattr(value, "shape")


@final
@dataclass(frozen=True)
class Accepts:
    """What a model takes: inputs by these names (or any), and whether also without a name."""

    names: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    any_name: bool = True
    unnamed: bool = False

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Accepts":
        """What the signature of a function says."""
        own = inspect.signature(function).parameters.values()
        named = [
            each for each in own if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        ]
        return cls(
            names=frozenset(each.name for each in named),
            required=frozenset(each.name for each in named if each.default is each.empty),
            any_name=any(each.kind is each.VAR_KEYWORD for each in own),
            unnamed=any(each.kind not in (each.KEYWORD_ONLY, each.VAR_KEYWORD) for each in own),
        )


@final
@dataclass(frozen=True)
class BatchReader:
    """Tells the inputs of a batch from its labels and from the rest.

    `accepts` is what the model takes, `kind` what an input is (an array of the library), and
    `inputs` and `labels` are the choice of the user.
    """

    accepts: Accepts
    kind: Callable[[Any], bool] = is_array
    inputs: Choice = None
    labels: str | int | None = None

    def read(self, item: Any) -> Batch:
        """Inputs and labels of a batch, in any of the accepted forms."""
        if isinstance(item, Mapping):
            inputs, labels = self._from_mapping(item)
        elif is_nested(item):
            inputs, labels = self._from_tuple(item)
        else:
            inputs, labels = item, None
        inputs = self._checked(inputs)
        if labels is None:
            return Batch(inputs, None)
        array, n = to_numpy(labels, "labels"), Batch(inputs, None).size
        if array.shape != (n,):
            hint = " Of one-hot labels, take argmax(1)." if array.ndim == 2 else ""
            raise InputError(
                f"labels of a batch must have shape ({n},), one per input; got {array.shape}.{hint}"
                " Say which items are what with inputs= and labels=."
            )
        return Batch(inputs, array)

    def _from_tuple(self, item: Sequence[Any]) -> tuple[Any, Any]:
        if self.inputs is not None or self.labels is not None:
            return self._chosen_places(item)
        if len(item) == 1:
            return self._fitting(item[0]), None
        if len(item) == 2 or (item and (isinstance(item[0], Mapping) or is_nested(item[0]))):
            return self._fitting(item[0]), item[1]
        flat = [len(getattr(each, "shape", ())) == 1 for each in item]
        if item and flat == [False] * (len(item) - 1) + [True]:
            return tuple(item[:-1]), item[-1]
        raise InputError(
            f"a batch has {len(item)} items, {_described(item)}, and it is not clear which are "
            "inputs and which are labels. Give their places, such as inputs=0, labels=1, or "
            "inputs=(0, 1), labels=2."
        )

    def _chosen_places(self, item: Sequence[Any]) -> tuple[Any, Any]:
        label = self.labels
        asked = _listed(self.inputs)
        if not asked and isinstance(label, int):
            asked = list(range(label))
        wanted = [*asked, *_listed(label)]
        inside = all(isinstance(each, int) and 0 <= each < len(item) for each in wanted)
        if not asked or not inside:
            raise InputError(
                f"inputs={self.inputs!r} and labels={label!r} must be places in a batch of "
                f"{len(item)} items, {_described(item)}, counted from 0."
            )
        chosen = tuple(item[each] for each in asked)
        labels = None if label is None else item[int(label)]
        return (chosen[0] if len(chosen) == 1 else chosen), labels

    def _from_mapping(self, item: Mapping[str, Any]) -> tuple[Any, Any]:
        usual = [key for key in LABEL_KEYS if key in item and key not in self.accepts.required]
        label = self.labels if self.labels is not None else next(iter(usual), None)
        asked = _listed(self.inputs)
        absent = [key for key in [*asked, *_listed(label)] if key not in item]
        if absent:
            raise InputError(f"a batch has no {absent[0]!r}; it has {list(item)}.")
        labels = None if label is None else item[str(label)]
        if isinstance(self.inputs, str):
            return item[self.inputs], labels
        if asked:
            return {key: item[key] for key in asked}, labels
        rest = {key: value for key, value in item.items() if key != label and key not in usual}
        return self._fitting(rest), labels

    def _fitting(self, inputs: Any) -> Any:
        """Inputs of a mapping by name if the model takes them so, and otherwise the one input."""
        if not isinstance(inputs, Mapping):
            return inputs
        accepts = self.accepts
        # What the model asks for is never left out: if it is of a wrong kind, that is an error.
        asked = {key for key in accepts.names if inputs.get(key) is not None}
        rest = {k: value for k, value in inputs.items() if k in asked or self._usable(value)}
        alone = accepts.unnamed and len(rest) == 1 and not accepts.names & rest.keys()
        if accepts.any_name and rest and not alone:
            return rest
        named = {key: value for key, value in rest.items() if key in accepts.names}
        if named:
            _log.debug("the model does not take %s of a batch", sorted(rest.keys() - named.keys()))
            return named
        known = [key for key in INPUT_KEYS if key in rest] or list(rest)
        if accepts.unnamed and known and (len(known) == 1 or known[0] in INPUT_KEYS):
            return rest[known[0]]
        raise InputError(
            f"a batch has {list(inputs)}, and the model takes inputs named "
            f'{sorted(accepts.names)}. Say which are the inputs, such as inputs="image".'
        )

    def _usable(self, value: Any) -> bool:
        if isinstance(value, Mapping) or is_nested(value):
            own = [each for _, each in leaves(value)]
            return bool(own) and all(map(self.kind, own))
        return self.kind(value)

    def _checked(self, inputs: Any) -> Any:
        inputs = convert(inputs, lambda value: value)  # BatchEncoding and lists, to dict and tuple
        own = [value for _, value in leaves(inputs)]
        wrong = [value for value in own if not self.kind(value)]
        rows = [] if wrong else [len(value) for value in own if getattr(value, "ndim", 1)]
        if not rows or rows[0] == 0:
            got = type((wrong or own or [inputs])[0]).__name__
            raise InputError(
                "loader must give batches (inputs, labels), inputs alone, or mappings, with inputs "
                f"a tensor of at least one row; got inputs of type {got}."
            )
        return inputs


def _listed(choice: Choice) -> list[Any]:
    if choice is None or isinstance(choice, str | int):
        return [] if choice is None else [choice]
    return list(choice)


def token_mask(features: Features, named: Mapping[str, Any], batch: Batch, values: Any) -> Any:
    """Attention mask among the named inputs, where a policy needs one.

    Without it, tokens of texts cannot be told from padding, and this is an error.
    """
    mask = named.get(MASK) if features in TOKEN_POLICIES else None
    if mask is not None or features not in ("mean", "last token"):
        return mask
    for _, own in leaves(batch.inputs):
        whole = "int" in str(getattr(own, "dtype", ""))
        if whole and tuple(own.shape) == tuple(values.shape)[:2]:
            raise InputError(
                f"features={features!r} needs to know which tokens are padding; give batches that "
                f"are mappings with an {MASK!r}, as a tokenizer returns them, to a model that "
                "takes it."
            )
    return None


def _described(item: Sequence[Any]) -> str:
    shapes = [
        f"{type(each).__name__} {tuple(getattr(each, 'shape', ()))}".removesuffix(" ()")
        for each in item
    ]
    return "(" + ", ".join(shapes) + ")"


def digest_inputs(inputs: Any, add: Callable[[Any, Any], None]) -> NDArray[np.uint8]:
    """SHA-256 of the inputs of a batch; `add` adds one array to a digest."""
    digest = hashlib.sha256()
    for name, value in leaves(inputs):
        digest.update(name.encode())
        add(digest, value)
    return np.frombuffer(digest.digest(), dtype=np.uint8)


def add_array(digest: Any, value: Any) -> None:
    """Add type, shape and content of an array to a digest."""
    array = to_numpy(value, "inputs")
    digest.update(f" {array.dtype.str} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data)


@final
@dataclass(frozen=True)
class Extraction:
    """One pass over a loader: how batches are read, run and recognised, and what they depend on.

    `setting` is all that the outputs depend on besides the inputs, as JSON data.
    """

    reader: BatchReader
    run: Callable[[Batch], OutputBatches]
    setting: dict[str, Any]
    add: Callable[[Any, Any], None] = add_array

    def outputs(
        self, loader: Iterable[Any], shards: StrPath | None, classes: Any, progress: bool | None
    ) -> ModelOutputs:
        """Run all batches that the shards do not have."""
        lock = nullcontext() if shards is None else locked(Path(shards), f"shards={shards}")
        with lock:
            store = BatchStore(shards, {} if shards is None else self.setting)
            with progress_bar("Model outputs", _length(loader), wanted=progress) as advance:
                self._collect(loader, store, advance, shards is not None)
            whole = store.finish()
        _warn_of_probabilities(whole.logits)
        _log.info("outputs of %d samples, %d batches known before", len(whole), store.n_known)
        return ModelOutputs(
            logits=whole.logits,
            features=whole.features,
            labels=_by_name(whole.labels, classes),
            classes=classes,
        )

    def _collect(
        self, loader: Iterable[Any], store: BatchStore, advance: Advance, kept: bool
    ) -> None:
        """Put every batch into the store, running the model on those it does not have.

        Batches that are `kept` on disk are known again by a digest of their inputs.
        """
        index = -1
        for index, item in enumerate(loader):
            batch = self.reader.read(item)
            if kept:
                batch = batch._replace(digest=digest_inputs(batch.inputs, self.add))
            if index < store.n_known:
                store.check_known(index, batch.size, batch.labels, batch.digest)
            else:
                if store.finished:
                    store.check_count(index + 1)
                store.add(self.run(batch))
            advance(1)
        if index < 0:
            raise InputError("loader is empty; give at least one batch (is the iterator used up?).")
        store.check_count(index + 1)


def _warn_of_probabilities(logits: Array | None) -> None:
    """Warn of a model that ends with a softmax: a second one would follow here."""
    some = np.zeros((0, 0)) if logits is None else logits[:_LOOKED_AT]
    if min(some.shape) > 1 and (some >= 0).all() and np.allclose(some.sum(axis=1), 1.0, atol=1e-3):
        warnings.warn(
            "the logits look like probabilities: none is negative, and every row sums to 1. Return "
            "what the softmax gets instead; its logarithm will do.",
            TrustSetsWarning,
            stacklevel=4,
        )


def _by_name(labels: Array | None, classes: Any) -> Any:
    """Labels that are positions, as the class names there."""
    names = None if classes is None else np.asarray(classes)
    if (
        labels is None
        or names is None
        or labels.dtype.kind not in "iu"
        or names.dtype.kind not in "USO"
    ):
        return labels
    wrong = labels[(labels < 0) | (labels >= len(names))]
    if wrong.size:
        raise InputError(
            f"labels that are numbers must be places in the {len(names)} classes; got {wrong[0]}."
        )
    return names[labels]


def _length(loader: Iterable[Any]) -> int | None:
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:  # an iterator, or a loader of a stream
        return None
