"""``trustsets plan`` from the command line."""

import json


def test_plan_needs_no_files(run):
    done = run("plan", "--samples", 500, "--share", "north=0.2")
    assert done.code == 0
    assert "854" in done.out and "group north" in done.out
    numbers = json.loads(run("plan", "--json", "--within", "0.05").out)
    assert numbers["within"] == 0.05 and numbers["rows"][0]["part"] == "all samples"


def test_plan_simulates_a_model_on_its_outputs_and_draws(run, folder):
    words = ["test.npz", "--simulate", "standard.trustsets", "--repeats", 2, "-o", "plan.png"]
    done = run("plan", *words)
    assert done.code == 0, done.err
    assert "On your own samples" in done.out and "class " in done.out
    assert (folder / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_wrong_words_are_one_line(run, folder):
    for words in (
        ["--share", "north"],
        ["--within", "2"],
        ["--simulate", "standard.trustsets"],
        ["new.npz"],
        ["-o", "plan.txt"],
    ):
        done = run("plan", *words)
        assert done.code == 2 and done.err.count("\n") == 1, (words, done)
