"""For Hugging Face users: sets for a text classifier, whatever the lengths of the texts.

The model here is made from a configuration and trained for a moment on made-up reviews. Put your
own pipeline in its place; a Trainer goes into `trainer_outputs`.
"""

try:
    from trustsets.extras.transformers import pipeline_outputs  # noqa: I001
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
except ImportError as error:
    raise SystemExit(f"needs {error.name}: pip install 'trustsets[transformers]'") from None
import numpy as np

from trustsets import ConditionalConformal, TrustScore

NAMES = ["complaint", "praise", "question"]
WORDS = [
    "late broken rude refund never",
    "lovely fast thanks great kind",
    "when where how which is",
]
WORDS = [own.split() + "the order it my shop was a box".split() for own in WORDS]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
rng = np.random.default_rng(0)
torch.manual_seed(0)
torch.set_num_threads(1)  # so small a model gains nothing from more


def write(label):
    """A text of 2 to 15 words; some are of another kind."""
    kinds = np.where(rng.random(rng.integers(2, 16)) < 0.75, label, rng.integers(3))
    return " ".join(rng.choice(WORDS[kind]) for kind in kinds)


vocabulary = [*SPECIAL, *sorted({word for own in WORDS for word in own})]
words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(vocabulary)}, unk_token="[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
words.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
config = transformers.BertConfig(
    vocab_size=len(vocabulary), intermediate_size=64, id2label=dict(enumerate(NAMES)), **sizes
)
model = transformers.BertForSequenceClassification(config)
labels = rng.integers(3, size=2000)
texts = [write(label) for label in labels]
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for start in 2 * list(range(0, 1000, 20)):
    batch = tokenizer(texts[start : start + 20], padding=True, return_tensors="pt")
    model(**batch, labels=torch.tensor(labels[start : start + 20])).loss.backward()
    optimizer.step(), optimizer.zero_grad()

pipe = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)
outputs = pipeline_outputs(pipe, texts, labels, features="mean")  # by the attention mask
trust = TrustScore().fit(outputs[:1000].features, outputs[:1000].labels)
predictor = ConditionalConformal(trust=trust).calibrate(outputs[1000:1600])
sets = predictor.predict_set(outputs[1600:], alpha=0.1)
print(f"{sets.covers(outputs[1600:].labels).mean():.3f} covered, {sets.sizes.mean():.2f} classes")
