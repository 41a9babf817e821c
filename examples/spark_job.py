"""How do I make sets for a Spark data frame of any size?

`mapInArrow` gives each partition to a function of Arrow batches. Without Spark this script calls
that function itself, on batches as Spark would make them.
"""

import tempfile

import numpy as np
import pyarrow as pa

from trustsets import ModelOutputs, StandardConformal, load
from trustsets.files import predict_table

rng = np.random.default_rng(0)
logits = 2.0 * rng.normal(size=(3000, 4))
labels = (logits / 2.0 + rng.gumbel(size=logits.shape)).argmax(axis=1)
predictor = StandardConformal().calibrate(ModelOutputs(logits=logits[:1000], labels=labels[:1000]))
MODEL = f"{tempfile.mkdtemp()}/model.trustsets"  # on a cluster: where all machines see it
predictor.save(MODEL)
new = pa.table({"id": np.arange(2000), "logits": list(logits[1000:])})


def predict_batches(batches):
    """Sets of the batches of one partition; the predictor is loaded once for each."""
    predictor = load(MODEL)
    for batch in batches:
        yield from predict_table(predictor, pa.Table.from_batches([batch]), alpha=0.1).to_batches()


try:
    from pyspark.sql import SparkSession
except ImportError:
    result = pa.Table.from_batches(predict_batches(iter(new.to_batches(max_chunksize=300))))
else:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    # Spark matches the columns of a schema by position, so it is taken from a first row.
    schema = spark.createDataFrame(predict_table(predictor, new.slice(0, 1))).schema
    result = spark.createDataFrame(new).mapInArrow(predict_batches, schema).toArrow().sort_by("id")

expected = predictor.predict_set(ModelOutputs(logits=logits[1000:]), alpha=0.1)
assert result["set"].to_pylist() == [labels.tolist() for labels in expected.labels()]
print(f"{np.mean(result['size']):.2f} classes per set over {len(result):,} rows")
print(result.select(["id", "set", "size", "status"]).slice(0, 4).to_pandas())
