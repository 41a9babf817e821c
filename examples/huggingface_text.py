"""How do I get sets from a Hugging Face text classifier?

The model here is made from a configuration and trained for a moment on made-up reviews. Put your
own model and tokenizer in its place; an image model goes in with batches of its processor.
"""

try:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast
except ImportError:
    raise SystemExit("needs torch and transformers: pip install torch transformers") from None
import numpy as np

from trustsets import ConditionalConformal, TrustScore
from trustsets.extract import extract_outputs

NAMES = ["complaint", "praise", "question"]
WORDS = ["late broken rude refund", "lovely fast thanks great", "when where how which"]
WORDS = [kind.split() + "the order it my shop was a box".split() for kind in WORDS]
rng = np.random.default_rng(0)
torch.manual_seed(0)
torch.set_num_threads(1)  # so small a model gains nothing from more


def write(label):
    """A text of 2 to 15 words; some are of another kind."""
    kinds = np.where(rng.random(rng.integers(2, 16)) < 0.75, label, rng.integers(3))
    return " ".join(rng.choice(WORDS[kind]) for kind in kinds)


words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *sorted({word for kind in WORDS for word in kind})]
words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
words.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
config = BertConfig(vocab_size=40, intermediate_size=64, num_labels=3, **sizes)
model = BertForSequenceClassification(config)
labels = rng.integers(3, size=2000)
texts = [write(label) for label in labels]


def loader(rows, size=20):
    """Batches padded to their longest text: mappings, as the model takes them."""
    for start in range(rows.start, rows.stop, size):
        batch = tokenizer(texts[start : start + size], padding=True, return_tensors="pt")
        yield batch | {"labels": torch.tensor(labels[start : start + size])}


optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for batch in [*loader(range(1000)), *loader(range(1000))]:
    model(**batch).loss.backward()
    optimizer.step(), optimizer.zero_grad()

train = extract_outputs(model, loader(range(1000)), classes=NAMES)  # features: those of the head
held_out = extract_outputs(model, loader(range(1000, 2000)), classes=NAMES)
predictor = ConditionalConformal(trust=TrustScore().fit(train.features, train.labels))
sets = predictor.calibrate(held_out[:600]).predict_set(held_out[600:], alpha=0.1)
print(f"{sets.covers(held_out[600:].labels).mean():.3f} covered, {sets.sizes.mean():.2f} classes")
for i in np.argsort(-sets.sizes, kind="stable")[:4]:
    print(f"{texts[1600 + i][:60]:62} {', '.join(sets[int(i)])}")
