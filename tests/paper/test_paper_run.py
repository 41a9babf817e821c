"""The command line from outputs, and from images, to tables."""

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from small_runs import CLASSES, draw, write_extracted

from trustsets import TrustScore
from trustsets.errors import InputError
from trustsets_paper.authors import authors_halves, read_released_trust
from trustsets_paper.sources import PAPER_DATASETS as DATASETS
from trustsets_paper.sources import read_extracted

QUICK = ["--seeds", "1-2", "--scores", "APS", "--degrees", "1,2", "--degree", "2", "--no-figures"]


def tables(text):
    return {table["number"]: table for table in json.loads(text)["tables"]}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A pool and training points as two .npz files, with a group column."""
    folder = tmp_path_factory.mktemp("files")
    features, logits, labels, rng = draw(240, 0)
    site = rng.choice(["north", "south"], size=240)
    pool = {"features": features, "logits": logits, "labels": labels.astype(np.int16)}
    np.savez(folder / "mine_pool.npz", site=site, **pool)
    features, _, labels, _ = draw(300, 1)
    np.savez(folder / "mine_train.npz", features=features, labels=labels.astype(np.int16))
    return folder


@pytest.mark.parametrize("dataset", DATASETS)
def test_extracted_outputs_become_tables(dataset, cli, tmp_path):
    write_extracted(tmp_path / dataset, dataset, fixed=dataset.endswith("-lt"))
    places = ["--data", tmp_path / dataset, "-o", tmp_path / "out"]
    out = cli("paper", "run", dataset, *places, *QUICK, "--json").out
    results = json.loads(out)
    assert results["classes"] == CLASSES
    assert results["seeds"] == ([1] if dataset.endswith("-lt") else [1, 2])
    assert results["options"]["bins"] == "code"
    found = tables(out)
    assert (2 in found) == (dataset == "fitzpatrick17k")
    printed = {(item["table"], item["method"]) for item in results["comparison"]}
    if dataset == "fitzpatrick17k":
        assert printed == {(2, name) for name in ("STANDARD", "GROUPWISE", "CONDITIONAL")}
    else:
        assert {table for table, _ in printed} == {1, 4, 5}
    assert (tmp_path / "out" / "README.md").is_file()
    done = cli("paper", "run", "other", *places, code=2)
    assert f"holds the outputs of {dataset}" in done.err


def test_pairs_of_files_are_found_and_stages_reused(files, cli, tmp_path):
    command = ["paper", "run", "mine", "--data", files, "--group", "site", *QUICK]
    command += ["--cache", tmp_path / "cache", "-o"]
    done = cli(*command, tmp_path / "one")
    assert "Seed 2 is done; sets so far: 18 made, 0 reused" in done.err
    assert "Table 2: methods by group" in done.out
    assert "sets so far: 0 made, 18 reused" in cli(*command, tmp_path / "two").err
    texts = [(tmp_path / name / "results.json").read_text() for name in ("one", "two")]
    assert texts[0] == texts[1]


def test_a_single_file_without_training_points(files, cli, tmp_path):
    words = ["paper", "run", "x", "--data", files / "mine_pool.npz", "-o", tmp_path, "--json"]
    out = cli(*words, *QUICK).out
    assert list(tables(out)) == [4, 5]
    assert json.loads(out)["training_points"] == 0
    out = cli(*words, *QUICK, "--train", files / "mine_train.npz").out
    assert list(tables(out)) == [1, 4, 5, None]


def test_a_killed_run_continues_to_the_same_results(files, cli, tmp_path):
    """SIGKILL at whatever moment: a second run reuses what is whole, and ends the same."""
    command = ["paper", "run", "mine", "--data", str(files), *QUICK]
    places = ["--cache", str(tmp_path / "cache"), "-o", str(tmp_path / "again")]
    program = [sys.executable, "-m", "trustsets.cli", *command, *places]
    killed = subprocess.Popen(program, stderr=subprocess.PIPE)
    kept = tmp_path / "cache" / "sets"
    deadline = time.monotonic() + 120.0
    while time.monotonic() < deadline and killed.poll() is None:
        if kept.is_dir() and len(list(kept.glob("*.safetensors"))) >= 2:
            killed.send_signal(signal.SIGKILL)
            break
        time.sleep(0.005)
    killed.communicate()
    before = len(list(kept.glob("*.safetensors")))
    assert 2 <= before <= 12
    done = cli(*command, *places)
    assert f"Seed 2 is done; sets so far: {14 - before} made, {before} reused" in done.err
    cli(*command, "-o", tmp_path / "fresh")
    texts = [(tmp_path / name / "results.json").read_text() for name in ("again", "fresh")]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nowhere"], "no such file"),
        (["--degrees", "0"], "--degrees must be a list"),
        (["--scores", "SAPS"], "none of softmax, APS, RAPS"),
        (["--alpha", "1.5"], "alpha must lie"),
        (["--group", "colour"], "no group column 'colour'"),
        (["--rank-edges", "1,x"], "--rank-edges must be quantiles, or a list"),
        (["--rank-edges", "0,3,2"], "increasing numbers"),
        (["--compare-trust", "."], "no trust scores of mine"),
    ],
)
def test_bad_input_ends_with_one_line(files, cli, tmp_path, arguments, message):
    places = ["--data", files, "-o", tmp_path / "out"]
    err = cli("paper", "run", "mine", *places, *arguments, code=2).err
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_the_page_states_the_command_in_full(files, cli, tmp_path, monkeypatch):
    """What the page says was typed makes the same page again."""
    monkeypatch.chdir(files)
    command = ["paper", "run", "mine", "--data", ".", "--group", "site", *QUICK]
    command += ["--splits", "authors", "--bins", "code", "--rank-edges", "0,1,2,9"]
    command += ["--trust", "text", "--output", str(tmp_path / "one")]
    monkeypatch.setattr(sys, "argv", ["/bin/trustsets", *command])
    cli(*command)
    page = (tmp_path / "one" / "README.md").read_text()
    stated = page.split("Made by `")[1].split("`")[0]
    assert stated.startswith("trustsets paper run mine --data .")
    again = shlex.split(stated)[1:]
    again[again.index("--output") + 1] = str(tmp_path / "two")
    cli(*again)
    texts = [(tmp_path / name / "results.json").read_text() for name in ("one", "two")]
    assert texts[0] == texts[1]


def test_one_command_judges_the_claims_and_joins_the_tables(files, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "other"):
        for part in ("pool", "train"):
            shutil.copy(files / f"mine_{part}.npz", tmp_path / f"{name}_{part}.npz")
    cli("paper", "run", "mine", "--data", ".", "--group", "site", *QUICK)
    command = ["paper", "overview", "mine", "other", "--data", ".", "--group", "mine:site", *QUICK]
    tables = json.loads(cli(*command, "--figures", "-o", "all", "--json").out)["tables"]
    ablation, numbered = "What is conditioned on", [f"Table {i}" for i in (1, 2, 3, 4, 5)]
    assert [title.split(":")[0] for title in tables] == ["Claims", ablation, *numbered]
    assert tables[ablation].count(" only ") == 8

    def standard(text):
        lines = [line for line in text.splitlines() if "| STANDARD" in line]
        return [[cell.strip() for cell in line.split("|")] for line in lines]

    joined = standard(tables["Table 1: methods, APS score"])
    alone = standard((tmp_path / "results/mine/tables/table1.md").read_text())
    assert [row[1] for row in joined] == ["mine", "other"]
    assert joined[0][3:] == alone[0][3:]
    made = {path.name for path in (tmp_path / "all").rglob("*") if path.is_file()}
    assert {"README.md", "claims.md", "ablation.md", "table5.md", "table2-mine.md"} <= made
    assert {f"figure{i}.png" for i in range(1, 8)} <= made
    page = (tmp_path / "all" / "README.md").read_text()
    assert "The paper's five datasets were not run" in page
    done = cli("paper", "overview", "mine", "mine", "--data", ".", code=2)
    assert "different datasets" in done.err


def pickled(folder, name, values):
    """A file as the authors wrote it: NumPy pickles an array of Python numbers."""
    np.save(folder / name, np.array(values.tolist(), dtype=object), allow_pickle=True)


def test_trust_scores_are_compared_with_released_ones(cli, tmp_path):
    """Files as the authors name them, in the order of their halves; one of them is wrong."""
    write_extracted(tmp_path / "data", "places365", fixed=False)
    source = read_extracted(tmp_path / "data")
    pool = source.parts["pool"]
    trust = TrustScore(neighbour=2, squared=True).fit(*source.train)
    values = trust.score(pool.features, pool.predicted)
    (tmp_path / "released").mkdir()
    for seed in (1, 2):
        halves = dict(zip(("val", "test"), authors_halves(pool.codes, seed), strict=True))
        for part, rows in halves.items():
            wrong = 1.5 if (part, seed) == ("test", 2) else 1.0
            name = f"{part}_places_trust_seed{seed}.npy"
            pickled(tmp_path / "released", name, wrong * values[rows])
    np.save(tmp_path / "released" / "val_imagenet_trust_seed1.npy", values)
    command = ["paper", "run", "places365", "--data", tmp_path / "data", "-o", tmp_path / "out"]
    command += [*QUICK, "--compare-trust", tmp_path / "released", "--json"]
    compared = {item["file"]: item for item in json.loads(cli(*command).out)["released_trust"]}
    assert len(compared) == 4
    for name, item in compared.items():
        assert item["spearman"] == pytest.approx(1.0) and item["samples"] == 60
        expected = 1.0 / 3.0 if name == "test_places_trust_seed2.npy" else 0.0
        assert item["largest_difference"] == pytest.approx(expected, abs=1e-9)
    assert "Trust scores next to the authors'" in (tmp_path / "out" / "README.md").read_text()
    pickled(tmp_path / "released", "val_places_trust_seed1.npy", values[:9])
    assert "has 9 trust scores, and there are 60 samples" in cli(*command, code=2).err


def test_released_files_run_no_code(tmp_path):
    class Harm:
        def __reduce__(self):
            return (open, (str(tmp_path / "harm"), "w"))

    path = tmp_path / "val_places_trust_seed1.npy"
    np.save(path, np.array([Harm()], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"not the authors' trust scores"):
        read_released_trust(path)
    assert not (tmp_path / "harm").exists()
