"""Hugging Face models made of configurations: pipelines, a Trainer, and plain loaders of batches.

Needs no download: the tokenizer has a dozen words, and the weights are random.
"""

from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from trustsets import InputError
from trustsets.extras.torch import extract_outputs
from trustsets.extras.transformers import pipeline_outputs, trainer_outputs

# After trustsets, which lets an odd torchvision be imported.
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = "[PAD] [UNK] [CLS] [SEP] a bad film good great not poor the very was".split()
NAMES = ["bad", "fair", "good"]
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}


@pytest.fixture(scope="module")
def tokenizer():
    own = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    own.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=own, sep_token="[SEP]", **special)


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), intermediate_size=32, id2label=dict(enumerate(NAMES)), **SIZES
    )
    return transformers.BertForSequenceClassification(config).eval()


@pytest.fixture(scope="module")
def vit():
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        intermediate_size=32, image_size=32, patch_size=8, num_labels=3, **SIZES
    )
    return transformers.ViTForImageClassification(config).eval()


def texts(n=13):
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS[4:], size=rng.integers(1, 12))) for _ in range(n)]


LABELS = np.arange(13) % 3


POLICIES = {
    None: lambda output: output.pooler_output[0],
    "cls": lambda output: output.last_hidden_state[0, 0],
    "mean": lambda output: output.last_hidden_state[0].mean(0),
    "last token": lambda output: output.last_hidden_state[0, -1],
}


def test_texts_of_all_lengths_are_as_if_alone(bert, tokenizer):
    """Whatever the batches and their padding, as each text by itself without any."""
    pipe = transformers.pipeline("text-classification", model=bert, tokenizer=tokenizer)
    with torch.no_grad():
        encoded = [tokenizer(text, return_tensors="pt") for text in texts()]
        logits = np.array([bert(**own).logits[0] for own in encoded])
        inner = [bert.base_model(**own) for own in encoded]
    assert len({own.last_hidden_state.shape for own in inner}) > 5
    for policy, features_of in POLICIES.items():
        features = np.array([features_of(own) for own in inner])
        for size in (1, 4) if policy == "mean" else (4,):
            outputs = pipeline_outputs(pipe, texts(), LABELS, batch_size=size, features=policy)
            np.testing.assert_allclose(outputs.logits, logits, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(outputs.features, features, rtol=1e-4, atol=1e-5)
    assert outputs.labels.tolist() == [NAMES[label] for label in LABELS]
    assert outputs.classes.tolist() == NAMES


def test_loaders_of_encodings_give_the_same(bert, tokenizer):
    pipe = transformers.pipeline("text-classification", model=bert, tokenizer=tokenizer)
    expected = pipeline_outputs(pipe, texts(), LABELS, features="mean")
    encoded = tokenizer(texts(), padding="max_length", max_length=20, return_tensors="pt")
    labels = torch.from_numpy(LABELS)
    ids, mask = encoded["input_ids"], encoded["attention_mask"]
    whole = transformers.BatchEncoding(encoded | {"labels": labels, "ids": torch.arange(13)})
    for batch in (
        whole,
        dict(whole),
        (encoded, labels),
        (ids, mask, labels),
        ((ids, mask), labels),
    ):
        found = extract_outputs(bert, [batch], features="mean")
        np.testing.assert_allclose(found.features, expected.features, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.logits, expected.logits, rtol=1e-4, atol=1e-5)


def test_features_by_name_module_and_function(bert, tokenizer):
    encoded = tokenizer(texts(), padding=True, return_tensors="pt")
    with torch.no_grad():
        inner = bert.base_model(**encoded)
    rows = (encoded["attention_mask"][:, :, None] * inner.last_hidden_state).sum(1)
    means = (rows / encoded["attention_mask"].sum(1, keepdim=True)).numpy()
    for layer, features, expected in [
        ("pooler_output", None, inner.pooler_output),
        ("last_hidden_state", "mean", means),
        ("bert.encoder", "mean", means),
        (bert.bert.encoder.layer[1], "mean", means),
        ("bert", lambda output: output.last_hidden_state[:, 0], inner.last_hidden_state[:, 0]),
        (None, lambda output: output.logits * 2, None),
    ]:
        found = extract_outputs(bert, [encoded], layer, features=features)
        wanted = found.logits * 2 if expected is None else np.asarray(expected)
        np.testing.assert_allclose(found.features, wanted, rtol=1e-5, atol=1e-6)
    for layer, words in [
        ("bert.encoder.layer.1", "several vectors a sample"),
        ("last_hidden_state", 'features="cls"'),
        ("pooled_output", r"near names are \['pooler_output'.*outputs are \['last_hidden_state'"),
    ]:
        with pytest.raises(InputError, match=words):
            extract_outputs(bert, [encoded], layer)


def test_a_model_that_decides_by_its_last_token(tokenizer):
    """The logits are a linear function of the features, so these are the right ones."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(WORDS), n_embd=16, n_layer=2, n_head=2, num_labels=3,
        pad_token_id=0, bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    model = transformers.GPT2ForSequenceClassification(config)
    encoded = tokenizer(texts(), padding=True, return_tensors="pt")
    found = extract_outputs(model, [encoded], features="last token")
    weights = model.score.weight.detach().numpy()
    np.testing.assert_allclose(found.logits, found.features @ weights.T, rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match='"last token"'):
        extract_outputs(model, [encoded])
    bare = {"input_ids": encoded["input_ids"]}
    with pytest.raises(InputError, match="which tokens are padding"):
        extract_outputs(model, [bare], features="last token")


def images(n=5):
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(256, size=(20, 24, 3), dtype=np.uint8)) for _ in range(n)]


def test_images(vit):
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    pipe = transformers.pipeline("image-classification", model=vit, image_processor=processor)
    pixels = processor(images(), return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        logits, tokens = vit(pixels).logits.numpy(), vit.vit(pixels).last_hidden_state.numpy()
    items = [{"image": image, "label": number % 3} for number, image in enumerate(images())]
    for data, labels in [(images(), np.arange(5) % 3), (items, None), (iter(items), None)]:
        for policy, features in [(None, tokens[:, 0]), ("mean", tokens.mean(1))]:
            if data is not items and policy:
                continue
            found = pipeline_outputs(pipe, data, labels, batch_size=2, features=policy)
            np.testing.assert_allclose(found.logits, logits, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(found.features, features, rtol=1e-4, atol=1e-5)
            assert found.labels.tolist() == [0, 1, 2, 0, 1]


class Collator:
    """Pads the items of a batch, as DataCollatorWithPadding does."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, items):
        own = [{key: item[key] for key in item if key != "label"} for item in items]
        batch = self.tokenizer.pad(own, return_tensors="pt")
        return batch | {"labels": torch.tensor([item["label"] for item in items])}


def dataset(tokenizer):
    rows = zip(texts(), LABELS.tolist(), strict=True)
    return [dict(tokenizer(text)) | {"label": label, "note": text} for text, label in rows]


def bare_trainer(model, tokenizer):
    """A Trainer without its accelerator, which is another package; its loaders are its own."""
    trainer = object.__new__(transformers.trainer.Trainer)
    options = {
        f"dataloader_{name}": None for name in ("multiprocessing_context", "prefetch_factor")
    }
    options |= dict.fromkeys(("dataloader_pin_memory", "dataloader_persistent_workers"), False)
    trainer.args = SimpleNamespace(
        eval_batch_size=4, world_size=1, remove_unused_columns=True, dataloader_num_workers=0,
        dataloader_drop_last=False, dataloader_in_order=True, train_sampling_strategy="random",
        **options,
    )  # fmt: skip
    trainer.accelerator = SimpleNamespace(prepare=lambda loader: loader)
    trainer.model, trainer.data_collator = model, Collator(tokenizer)
    trainer.eval_dataset, trainer.label_names = dataset(tokenizer), ["labels"]
    trainer._signature_columns = None
    return trainer


def real_trainer(model, tokenizer, folder):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_eval_batch_size=4, report_to=[], use_cpu=True
    )
    own = dataset(tokenizer)
    collator = Collator(tokenizer)
    return transformers.Trainer(model, arguments, data_collator=collator, eval_dataset=own)


@pytest.mark.parametrize("kind", ["bare", "real"])
def test_a_trainer(kind, bert, tokenizer, tmp_path):
    if kind == "real" and find_spec("accelerate") is None:
        pytest.skip("a whole Trainer needs accelerate")
    make = {"bare": lambda: bare_trainer(bert, tokenizer),
            "real": lambda: real_trainer(bert, tokenizer, tmp_path)}  # fmt: skip
    trainer = make[kind]()
    pipe = transformers.pipeline("text-classification", model=bert, tokenizer=tokenizer)
    expected = pipeline_outputs(pipe, texts(), LABELS, features="mean")
    for given in (None, dataset(tokenizer)):
        found = trainer_outputs(trainer, given, features="mean")
        np.testing.assert_allclose(found.features, expected.features, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.logits, expected.logits, rtol=1e-4, atol=1e-5)
        assert found.labels.tolist() == expected.labels.tolist()
    trainer = bare_trainer(bert, tokenizer)
    trainer.args.world_size = 2
    with pytest.raises(InputError, match="several processes"):
        trainer_outputs(trainer)


def test_mistakes_are_named(bert, tokenizer, monkeypatch):
    pipe = transformers.pipeline("text-classification", model=bert, tokenizer=tokenizer)
    for data, labels, words in [
        ("one text", None, "one item per sample; got a single str"),
        (texts(), LABELS[:3], "labels must be as many"),
        (texts()[:3], LABELS, "labels must be as many"),
        ([{"words": "a film"}], None, "none of text, sentence, image"),
        ([{"text": "a", "label": 0}, {"text": "b"}], None, "some items of data have a label"),
        ([], None, "loader is empty"),
    ]:
        with pytest.raises(InputError, match=words):
            pipeline_outputs(pipe, data, labels)
    with pytest.raises(InputError, match="batch_size must be at least 1"):
        pipeline_outputs(pipe, texts(), batch_size=0)
    monkeypatch.setattr(bert.config, "problem_type", "multi_label_classification")
    with pytest.raises(InputError, match="one class a sample"):
        pipeline_outputs(pipe, texts())


def test_pairs_of_texts_and_names_as_labels(bert, tokenizer):
    pipe = transformers.pipeline("text-classification", model=bert, tokenizer=tokenizer)
    items = [{"text": text, "text_pair": "a film", "label": "good"} for text in texts(3)]
    found = pipeline_outputs(pipe, items)
    assert found.labels.tolist() == ["good"] * 3
    encoded = tokenizer(texts(3), ["a film"] * 3, padding=True, return_tensors="pt")
    with torch.no_grad():
        np.testing.assert_allclose(found.logits, bert(**encoded).logits, rtol=1e-4, atol=1e-5)
