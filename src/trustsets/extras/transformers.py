"""Outputs of Hugging Face classifiers, from a Trainer or a pipeline.

Needs the extra ``trustsets[transformers]``. Where torchvision does not fit the installed torch,
import this before transformers.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from trustsets.errors import InputError
from trustsets.extras import torch as torch_outputs
from trustsets.extras.batches import LABEL_KEYS
from trustsets.extras.pooling import Features
from trustsets.extras.vision import repair_torchvision
from trustsets.outputs import ModelOutputs

repair_torchvision()  # transformers imports it

__all__ = ["pipeline_outputs", "trainer_outputs"]

# Names under which an item of a dataset may hold what a pipeline takes.
_ITEM_KEYS = ("text", "sentence", "image", "img", "pixel_values")


def trainer_outputs(
    trainer: Any, dataset: Any = None, *, features: Features = None, **options: Any
) -> ModelOutputs:
    """Run the model of a Trainer over a dataset, in the batches of its own evaluation.

    Parameters
    ----------
    trainer : transformers.Trainer
        Its model is run as it is now.
    dataset : dataset, optional
        Default: the Trainer's ``eval_dataset``.
    features : str or function, optional
        Default: the input of the last linear layer. See
        `trustsets.extras.torch.extract_outputs` for ``"cls"``, ``"mean"`` and others.
    **options
        Further options of `trustsets.extras.torch.extract_outputs`. By default, `classes` are
        the names in the configuration of the model.
    """
    if getattr(trainer.args, "world_size", 1) > 1:
        raise InputError(
            "this Trainer runs in several processes, each with a part of the dataset; call this in "
            "a program of one process."
        )
    loader = trainer.get_eval_dataloader(dataset)
    return _run(trainer.model, loader, features, options)


def pipeline_outputs(
    pipe: Any,
    data: Iterable[Any],
    labels: Iterable[Any] | None = None,
    *,
    batch_size: int = 32,
    features: Features = None,
    **options: Any,
) -> ModelOutputs:
    """Run the model of a pipeline over texts or images.

    Parameters
    ----------
    pipe : transformers.Pipeline
        For text classification or image classification.
    data : iterable
        Texts, images, or whatever the pipeline takes, one per sample; or the items of a
        dataset: mappings with a ``"text"``, ``"sentence"`` or ``"image"`` and, if `labels` are
        not given, a ``"label"``.
    labels : iterable of length n, optional
        True classes: names, or places in the ``id2label`` of the model.
    batch_size : int
        Samples that are padded to one length and run together.
    features, **options
        See `trainer_outputs`. Options of the tokenizer, such as ``truncation=True``, are given
        to the pipeline when it is made.

    Examples
    --------
    ::

        pipe = pipeline("text-classification", model="my-model", truncation=True)
        outputs = pipeline_outputs(pipe, texts, labels, features="mean")
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1; got {batch_size}.")
    if isinstance(data, str | Mapping):
        raise InputError(f"data must hold one item per sample; got a single {type(data).__name__}.")
    samples = _samples(data, labels)
    return _run(pipe.model, _batches(pipe, samples, batch_size), features, options)


def _run(model: Any, loader: Any, features: Features, options: dict[str, Any]) -> ModelOutputs:
    config = getattr(model, "config", None)
    kind = getattr(config, "problem_type", None)
    if kind in ("regression", "multi_label_classification"):
        raise InputError(
            f"the model is for {kind.replace('_', ' ')}; prediction sets need one class a sample."
        )
    names = getattr(config, "id2label", None) or {}
    own = [names[number] for number in sorted(names)]
    usual = [f"LABEL_{number}" for number in range(len(own))]
    # Names that were never given say nothing that the numbers do not.
    classes = {"classes": own} if own and own != usual else {}
    return torch_outputs.extract_outputs(model, loader, features=features, **(classes | options))


def _samples(data: Iterable[Any], labels: Iterable[Any] | None) -> Iterator[tuple[Any, Any]]:
    """What the pipeline takes, with the label or None."""
    if labels is not None:
        try:
            for item, label in zip(data, labels, strict=True):
                yield _read_item(item)[0], label
        except ValueError as error:
            if "zip()" not in str(error):
                raise
            raise InputError(
                "labels must be as many as the items of data; give one per sample."
            ) from error
        return
    yield from map(_read_item, data)


def _read_item(item: Any) -> tuple[Any, Any]:
    """The part of an item that a pipeline takes, and the label."""
    if not isinstance(item, Mapping):
        return item, None
    label = next((item[key] for key in LABEL_KEYS if key in item), None)
    if "text" in item and "text_pair" in item:
        return {"text": item["text"], "text_pair": item["text_pair"]}, label
    key = next((key for key in _ITEM_KEYS if key in item), None)
    if key is None:
        raise InputError(
            f"an item of data has {list(item)}, and none of {', '.join(_ITEM_KEYS)}; give the "
            "texts or images themselves."
        )
    return item[key], label


def _batches(pipe: Any, samples: Iterator[tuple[Any, Any]], size: int) -> Iterator[dict[str, Any]]:
    """Batches as the pipeline itself makes them, padded to the longest of each."""
    from transformers.pipelines.base import pad_collate_fn

    # Text models have a tokenizer alone, image models an image processor alone.
    own = pipe.feature_extractor or pipe.image_processor
    make: Any = pad_collate_fn
    collate = make(pipe.tokenizer, own) if size > 1 else (lambda items: items[0])
    while chunk := list(islice(samples, size)):
        items = [dict(pipe.preprocess(item, **pipe._preprocess_params)) for item, _ in chunk]
        batch = collate(items)
        labels = [label for _, label in chunk]
        known = sum(label is not None for label in labels)
        if 0 < known < len(labels):
            raise InputError("some items of data have a label and others none; give all or none.")
        yield batch | ({"labels": labels} if known else {})
