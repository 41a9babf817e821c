"""One row makes a metric: what follows from the tables of `trustsets.metrics.catalogue`."""

from trustsets import Groups, compare, evaluate, write_report
from trustsets.auditing import excess_risk
from trustsets.metrics import METRICS, NUMBERS, Metric, number_of, title

FAST = {"n_bootstrap": 20}


def test_every_number_has_a_row(make_case, trust):
    sets, outputs = make_case()
    found = evaluate(sets, outputs.with_trust(trust), **FAST).metrics
    found |= excess_risk(sets, outputs, n_permutations=0).metrics
    rows = {name: number_of(name) for name in (*found, "alpha")}  # alpha: of `compare`
    assert set(map(id, rows.values())) == set(map(id, NUMBERS.values()))
    titles = [title(name) for name in found]
    assert len(set(titles)) == len(titles)


def test_a_row_is_enough_for_a_metric_by_bins(make_case, monkeypatch, tmp_path):
    row = Metric("Toy x Toy", Groups("sex"), needs="groups")
    monkeypatch.setitem(METRICS, "toy", row)
    sets, outputs = make_case()
    result = evaluate(sets, outputs, metrics=["toy", "groups"])
    assert list(result.tables) == ["group:sex", "group:site", "toy"]
    same = result.tables["group:sex"]
    assert result.metrics["toy.gap"] == same.gap
    assert "| Toy x Toy CovGap" in result.to_markdown()
    assert compare({"a": result}, columns=["toy.worst"]).entries[0][0].best
    page = write_report(tmp_path / "page.html", result).read_text(encoding="utf-8")
    assert "2 bins of Toy × Toy" in page and "By Toy × Toy" in page
