"""``trustsets plan`` from the command line."""

import json


def test_plan_needs_no_files(run):
    done = run("plan", "--samples", 500)
    assert done.code == 0
    assert "854" in done.out
    numbers = json.loads(run("plan", "--json", "--within", "0.05").out)
    assert numbers["within"] == 0.05 and numbers["rows"][0]["part"] == "all samples"


def test_plan_reads_the_shares_of_outputs(run, folder):
    done = run("plan", "test.npz")
    assert done.code == 0, done.err
    assert "You have " in done.out and "class " in done.out


def test_wrong_words_are_one_line(run, folder):
    for words in (
        ["--within", "2"],
        ["--samples", "9" * 40],
        ["--within", "1e-300"],
        ["--alpha", "1e-300"],
        ["new.npz"],
    ):
        done = run("plan", *words)
        assert done.code == 2 and done.err.count("\n") == 1, (words, done)
