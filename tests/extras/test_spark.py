"""The lines of docs/scale.md on a Spark of this machine; Spark is not among the dependencies."""

import contextlib
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from first_tries import blocks

from trustsets import (
    APS,
    ConditionalConformal,
    Confidence,
    Groups,
    Polynomial,
    StandardConformal,
)

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install pyspark)")
if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
    pytest.skip("Spark needs Java 17 or newer", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning")

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
LINES = re.search(r"Spark 4.*?```python\n(.*?)```", PAGE, flags=re.DOTALL)[1]
PREDICTORS = {
    "standard": StandardConformal(),
    "random, groups": ConditionalConformal(
        APS(own_mass="random"), Polynomial(1, (Confidence(),)) + Groups("site"), randomized=True
    ),
}


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    from pyspark.sql import SparkSession

    # Spark and its workers look for files where Spark was started.
    with contextlib.chdir(tmp_path_factory.mktemp("spark")):
        os.environ["PYSPARK_PYTHON"] = sys.executable
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()


@pytest.mark.parametrize("name", PREDICTORS)
def test_the_lines_of_the_page_give_the_sets_of_the_predictor(name, spark, make_outputs, capsys):
    shutil.rmtree("sets", ignore_errors=True)
    predictor = PREDICTORS[name].calibrate(make_outputs(300, seed=1))
    predictor.save("model.trustsets")
    test = make_outputs(90, seed=2, rows=np.arange(90))
    table = {"id": [f"s{i}" for i in range(90)], "logits": list(test.logits.astype(np.float32))}
    table |= {"site": test.groups["site"], "row": np.arange(90)}
    pq.write_table(pa.table(table), "new.parquet")
    # More partitions than some values of a hash: a few of them are empty.
    frame = spark.read.parquet("new.parquet").repartition(7, "site")
    exec(LINES, {"spark": spark, "frame": frame})
    found = pq.read_table("sets").sort_by("row").to_pylist()
    single = make_outputs(90, seed=2, rows=np.arange(90), logits=test.logits.astype(np.float32))
    sets = predictor.predict_set(single)
    assert [own["id"] for own in found] == table["id"]
    assert [own["set"] for own in found] == [sets[i].tolist() for i in range(90)]
    assert [own["threshold"] for own in found] == sets.thresholds.tolist()
    exec(blocks("Spark")[0], {})
    assert capsys.readouterr().out.count("[") == 20  # sets that Spark shows


def test_mistakes_are_named_before_the_job_starts(spark, make_outputs):
    from pyspark.ml.linalg import Vectors

    Path("model.trustsets").unlink(missing_ok=True)
    logits = make_outputs(3).logits
    frame = spark.createDataFrame([(own.tolist(),) for own in logits], ["logits"])
    with pytest.raises(ValueError, match=r"model\.trustsets: there is no such file"):
        exec(LINES, {"spark": spark, "frame": frame})
    StandardConformal(APS(own_mass="random")).calibrate(make_outputs(50)).save("model.trustsets")
    with pytest.raises(ValueError, match="table needs a column 'row'"):
        exec(LINES, {"spark": spark, "frame": frame})
    StandardConformal().calibrate(make_outputs(50)).save("model.trustsets")
    with pytest.raises(ValueError, match="no column 'logits' or 'probabilities'; it has"):
        exec(LINES, {"spark": spark, "frame": frame.withColumnRenamed("logits", "rawPrediction")})
    vectors = spark.createDataFrame([(Vectors.dense(own),) for own in logits], ["logits"])
    with pytest.raises(ValueError, match="column 'logits' must hold lists of numbers"):
        exec(LINES, {"spark": spark, "frame": vectors})
