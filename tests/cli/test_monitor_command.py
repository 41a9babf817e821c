"""``trustsets monitor`` as cron would call it: again and again, with and without labels."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

COUNTED = ("part", "n", "covered", "coverage")


@pytest.fixture
def batches(folder):
    """Six files of samples with ids; in the last two the labels are wrong."""
    (folder / "conditional.trustsets").rename("model.trustsets")
    every, rng = dict(np.load("test.npz")), np.random.default_rng(0)
    every["id"] = np.arange(1200)
    names = []
    for place in range(6):
        rows = slice(200 * place, 200 * place + 200)
        own = {key: value if key == "classes" else value[rows] for key, value in every.items()}
        if place > 3:
            own["labels"] = rng.permutation(own["labels"])
        names.append(f"batch{place}.npz")
        np.savez(names[-1], **own)
        np.savez(f"labels{place}.npz", id=own["id"], labels=own.pop("labels"))
        np.savez(f"bare{place}.npz", **own)
    return names


def test_a_pipeline_of_batches_ends_with_an_alarm(run, folder, batches):
    run("predict", "model.trustsets", batches[0], "-o", "sets.parquet", "-q")
    for name, code in zip(batches, [0, 0, 0, 0, 3, 3], strict=True):
        words = [name, "--state", "s.trustsets", "--reference", "calibration.npz"]
        done = run("monitor", "model.trustsets", *words, code=code)
    assert "Alarm" in done.out and "all samples" in done.out
    # An alarm lasts, also where nothing new is read.
    run("monitor", "model.trustsets", "--state", "s.trustsets", code=3)
    words = ["monitor", "model.trustsets", batches[0], "--json", "--state"]
    alone = json.loads(run(*words, "a.trustsets").out)
    beside = json.loads(run(*words, "b.trustsets", "--reference", "calibration.npz").out)
    # Regions are those of the reference; all samples are the same.
    assert alone["parts"][0] == beside["parts"][0] and alone["parts"] != beside["parts"]


def test_a_batch_counts_once_and_labels_may_come_later(run, folder, batches):
    one = ["--state", "one.trustsets", "--json"]
    first = run("monitor", "model.trustsets", "batch0.npz", *one)
    again = run("monitor", "model.trustsets", "batch0.npz", *one)
    assert again.out == first.out and "counted before" in again.err
    # A batch is its content, whatever its file is called.
    Path("batch0.npz").rename("renamed.npz")
    assert run("monitor", "model.trustsets", "renamed.npz", *one).out == first.out
    later = ["--state", "later.trustsets", "--json"]
    bare = json.loads(run("monitor", "model.trustsets", "bare0.npz", *later).out)
    assert (bare["labelled"], bare["pending"], bare["parts"]) == (0, 200, [])
    # Labels may come before their samples, are taken when these have come, and then only once.
    for name, waiting in (("labels1.npz", 0), ("labels0.npz", 200), ("labels0.npz", 0)):
        done = run("monitor", "model.trustsets", "--labels", name, *later)
        assert f"{waiting} of 200 ids were waiting" in done.err
    parts = [json.loads(own.out)["parts"] for own in (done, first)]
    for one, other in zip(*parts, strict=True):
        # Intervals depend on the order in which labels come.
        assert [one[name] for name in COUNTED] == [other[name] for name in COUNTED]
    for words in (["bare1.npz"], ["--labels", "labels1.npz"]):
        assert run("monitor", "model.trustsets", *words, *later).code == 0
    # So may the outputs themselves, again and with labels. A state may be begun without any.
    again = ["--state", "again.trustsets", "--json"]
    run("monitor", "model.trustsets", *again, "--alpha", "0.2")
    np.savez("equal.npz", **dict(np.load("bare1.npz")) | {"id": np.arange(-200, 0)})
    for name, *counts in (("equal.npz", 0, 200), ("bare1.npz", 0, 400), ("batch1.npz", 200, 400)):
        found = json.loads(run("monitor", "model.trustsets", name, *again).out)
        assert [found["alpha"], found["labelled"], found["samples"]] == [0.2, *counts]
    shown = run("monitor", "model.trustsets", "--state", "later.trustsets")
    assert "400 samples in 4 batches, 400 of them" in shown.out


def test_wrong_words_are_one_line(run, folder, batches):
    state = ["--state", "s.trustsets"]
    run("monitor", "model.trustsets", "batch0.npz", *state)
    np.savez("other.npz", id=np.arange(3))
    for words in (
        ["batch1.npz", "--state", "s.json"],
        ["batch1.npz", *state, "--alpha", "0.2"],
        ["batch1.npz", *state, "--labels", "labels1.npz"],
        ["--labels", "batch1.npz", "--state", "model.trustsets"],
        ["--labels", "other.npz", *state],
        ["nothing.npz", *state],
    ):
        done = run("monitor", "model.trustsets", *words, code=2)
        assert done.err.count("\n") == 1, (words, done)
    other = run("monitor", "standard.trustsets", "batch1.npz", *state, code=2)
    assert "another calibration" in other.err


def test_kills_at_random_lose_nothing_and_count_nothing_twice(batches):
    script = Path(__file__).with_name("killing_monitor.py")
    Path("standard.trustsets").replace("model.trustsets")
    done = subprocess.run(
        [sys.executable, script, "5", *batches[2:5]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "kills" in done.stdout, done.stderr
