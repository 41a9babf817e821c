"""The numbers of the page are those of the library, whatever was cache or done in stages."""

import json
from dataclasses import replace

import numpy as np
import pytest

import trustsets
from trustsets import ConditionalConformal, evaluate
from trustsets.auditing import find_regions
from trustsets.errors import InputError
from trustsets.report import worst_first
from trustsets_explorer import exports, samples
from trustsets_explorer import session as sessions
from trustsets_explorer.samples import Gallery
from trustsets_explorer.session import Cache, Session, Superseded
from trustsets_explorer.state import Setting, State

TABLES = ["conf_trust", "conf_rank", "conf_frequency", "class", "groups"]
SETTINGS = [
    Setting(),
    Setting(basis="polynomial", degree=2, penalty=0.0, temperature="tuning"),
    Setting(basis="polynomial", degree=1, groups=("site",), per_class="no"),
    Setting(basis="polynomial", degree=1, statistics=("entropy",), per_class="yes"),
    Setting(basis="bins", score="softmax", temperature=2.0),
    Setting(basis="intercept", score="raps", scale="raw"),
    Setting(method="standard"),
    Setting(method="mondrian", statistics=("margin",)),
    Setting(method="groups", groups=("site",), scale="raw"),
    Setting(method="class"),
    Setting(method="clustered", scale="raw"),
]


def state_of(setting, alpha=0.12, seed=3):
    return State((setting,), alpha, seed)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda own: f"{own.method}-{own.basis}")
def test_numbers_equal_those_of_evaluate(data, session, setting, monkeypatch):
    monkeypatch.setattr(sessions, "_STAGE_SAMPLES", (70, 230))
    state = state_of(setting)
    calibration, test = data.outputs.split(0.5, seed=3)
    predictor = setting.build(data.trust).calibrate(calibration)
    sets, options = predictor.predict_set(test, 0.12), {"n_bootstrap": sessions._BOOTSTRAP}
    wanted = evaluate(sets, test.with_trust(data.trust), metrics=TABLES, **options)
    found = session.evaluation(state, 0)
    assert found.to_dict() | {"correlation": None} == wanted.to_dict() | {"correlation": None}
    shown = json.loads(sessions.answer(session, state))
    assert shown["points"][0]["size"]["value"] == wanted.sizes.mean
    assert shown["points"][0]["under"]["value"] == wanted.tables["conf_trust"].shortfall.value
    by_class = shown["tables"][setting.method]["class"]
    assert by_class["coverage"] == wanted.tables["class"].coverage.tolist()


def test_alphas_prepared_beforehand_change_no_number(data):
    setting = Setting(basis="polynomial", degree=3)
    plain, prepared = Session(data.outputs, data.trust), Session(data.outputs, data.trust)
    coming = sessions.nearest_alphas(state_of(setting))
    # The nearest alphas of the slider come first.
    away = [abs(state.alpha - state_of(setting).alpha) for state in coming]
    assert away == sorted(away) and max(away) < 0.11 and len({s.alpha for s in coming}) == 40
    for state in coming:
        sessions.answer(prepared, state)
    for alpha in (0.005, 0.11, 0.3):
        state = state_of(setting, alpha)
        assert plain.evaluation(state, 0).to_dict() == prepared.evaluation(state, 0).to_dict()


def test_the_first_numbers_are_those_of_some_test_samples_alone(data, monkeypatch):
    """Random ones, evaluated as any; what was computed for them is not computed again."""
    monkeypatch.setattr(sessions, "_FIRST_SECONDS", -1.0)
    monkeypatch.setattr(sessions, "_FIRST_SAMPLES", 150)
    session, state = Session(data.outputs, data.trust), state_of(SETTINGS[1])
    first = json.loads(sessions.first_answer(session, state))
    split = session.split(3)
    rows = np.sort(split.order[:150])
    assert first["n"] == [600, 150, 600] and not session.answers
    assert abs(rows.mean() - 299.5) < 4 * 600 / np.sqrt(12 * 150)
    assert abs(split.test.confidence[rows].mean() - split.test.confidence.mean()) < 0.1
    sets, part = session.sets(state, 0, rows), split.test.take(rows)
    wanted = evaluate(sets, part, metrics=TABLES, n_bootstrap=sessions._BOOTSTRAP)
    assert first["points"][0]["under"]["value"] == wanted.tables["conf_trust"].shortfall.value
    asked, sets_of = [], Session.sets
    monkeypatch.setattr(
        Session, "sets", lambda self, *args: (asked.extend(args[2]), sets_of(self, *args))[1]
    )
    whole = sessions.answer(session, state)
    assert not {*asked} & {*rows} and len(asked) == 450
    assert whole == sessions.answer(Session(data.outputs, data.trust), state)
    assert sessions.first_answer(session, state) == whole


def test_parameters_that_do_not_matter_share_one_predictor(session):
    plain, other = Setting(method="standard"), Setting(method="standard", degree=2, per_class="no")
    assert session.predictor(plain, 0) is session.predictor(other, 0)
    assert session.predictor(plain, 0) is not session.predictor(replace(plain, score="raps"), 0)
    assert session.predictor(plain, 0) is not session.predictor(plain, 1)


def test_work_ends_between_stages_and_goes_on_from_there(data, monkeypatch):
    monkeypatch.setattr(sessions, "_STAGE_SAMPLES", (100, 100))
    session, calls = Session(data.outputs, data.trust), []

    def check():
        calls.append(1)
        if len(calls) == 4:
            raise Superseded

    state = state_of(Setting(method="standard"))
    with pytest.raises(Superseded):
        session.evaluation(state, 0, check)
    assert len(calls) == 4 and not session._evaluations
    plain = Session(data.outputs, data.trust).evaluation(state, 0)
    assert session.evaluation(state, 0).to_dict() == plain.to_dict()


def test_what_was_asked_before_changes_no_number(data):
    used, setting = Session(data.outputs, data.trust), Setting(method="standard")
    for alpha, seed in ((0.1, 3), (0.1, 4), (0.2, 3)):
        state = state_of(setting, alpha, seed)
        alone = sessions.answer(Session(data.outputs, data.trust), state)
        assert sessions.answer(used, state) == alone


def test_only_the_last_used_values_are_cache():
    cache = Cache(2)
    for key in "abac":
        cache.get_or_make(key, lambda key=key: key.upper())
    assert dict(cache) == {"a": "A", "c": "C"}


@pytest.mark.parametrize("setting", SETTINGS[:5])
def test_copied_code_gives_the_sets_of_the_page(folder, session, setting):
    arrays = dict(np.load(folder / "held_out.npz"))
    (folder / "names.txt").write_text("\n".join(arrays.pop("classes")))
    np.savez(folder / "bare.npz", site=arrays.pop("group_site"), **arrays)
    names = {"outputs": "bare.npz", "train": "train.npz", "classes": "names.txt"}
    names = {name: str(folder / path) for name, path in names.items()} | {"groups": "site"}
    state, scope = state_of(setting), {}
    exec(exports.as_python(session, state, 0, names), scope)
    command = exports.as_command(session, state, 0, names)
    assert f"--classes {folder}/names.txt" in command
    assert ("--group site" in command) == ("site" in scope["predictor"].needed_groups)
    shown = session.evaluation(state, 0)
    assert np.array_equal(scope["sets"].sizes, shown.set_sizes)
    assert np.array_equal(scope["sets"].covers(scope["test"].labels), shown.covered)


def test_listed_samples_are_the_worst_of_their_cell(session):
    state = state_of(Setting(method="standard"))
    found = session.evaluation(state, 0)
    table = found.tables["conf_trust"]
    cell = int(np.argmax(table.count))
    listed = samples.list_cell(session, state, 0, "conf_trust", cell, lambda: None)
    test = session.split(3).test
    likely = test.probabilities[np.arange(len(test)), test.codes]
    order = worst_first(found, likely)
    wanted = [int(row) for row in order if table.cells[row] == cell][:20]
    assert [own["row"] for own in listed["rows"]] == wanted
    assert [own["covered"] for own in listed["rows"]] == found.covered[wanted].tolist()
    assert listed["count"] == table.count[cell] and listed["title"] == table.labels[cell]


def test_regions_are_those_of_the_audit_with_their_surest_misses(session):
    state = state_of(Setting(method="standard"), alpha=0.3)
    covered, test = session.evaluation(state, 0).covered, session.split(3).test
    wanted = find_regions(covered, test, alpha=0.3).regions
    shown = samples.regions(session, state, 0, lambda: None)["regions"]
    assert [item["sentence"] for item in shown] == [region.sentence for region in wanted]
    rows = [[row for row in region.members.tolist() if not covered[row]] for region in wanted]
    surest = [sorted(missed, key=lambda row: -test.confidence[row])[:8] for missed in rows]
    assert [item["rows"] for item in shown] == surest and len(surest) > 0


@pytest.mark.parametrize("setting", [SETTINGS[1], SETTINGS[3], SETTINGS[6], SETTINGS[10]])
def test_a_sample_has_its_set_reasons_and_neighbours(data, session, setting):
    state, gallery = state_of(setting), Gallery(data.train)
    row = 17
    found = samples.describe(session, gallery, state, 0, row)
    sample = session.split(3).test.take([row])
    sets = session.sets(state, 0, np.array([row]))
    assert set(found["set"]) == {str(name) for name in sets[0]}
    assert "because" in found["why"] or setting.method == "clustered"
    own, other, name = data.trust.distances(sample.features, sample.predicted)
    near = {part: [n for n in found["neighbours"] if n["kind"].startswith(part)] for part in "po"}
    assert near["p"][0]["distance"] == pytest.approx(own[0], rel=1e-6)
    assert near["o"][0]["distance"] == pytest.approx(other[0], rel=1e-6)
    assert near["o"][0]["label"] == name[0] and near["p"][0]["label"] == sample.predicted[0]
    assert samples._pixels(np.array([-0.4, 0.5, 1.7, np.nan])).tolist() == [0, 128, 255, 0]


def test_states_outside_the_rules_are_refused(session):
    good = session.first_state.to_dict()
    assert State.read(good, session.parameters) == session.first_state
    assert session.first_state.names == ("A: conditional", "B: standard")
    inner = [
        ("method", "paper"), ("degree", 9), ("penalty", -1), ("statistics", []), ("groups", ["x"]),
        ("statistics", ["trust", "trust"]), ("temperature", 0),
        ("temperature", "hot"), ("method", []), ("per_class", None), ("basis", {}),
    ]  # fmt: skip
    wrong = [
        ("alpha", 0.0), ("alpha", "0.1"), ("alpha", True), ("alpha", 10**400), ("seed", -1),
        ("seed", 1.5), ("settings", []), ("settings", good["settings"] * 2), ("more", 1),
        *(("settings", [good["settings"][0] | {name: value}]) for name, value in inner),
    ]  # fmt: skip
    for name, value in wrong:
        with pytest.raises(InputError):
            State.read(good | {name: value}, session.parameters)


def test_data_without_trust_and_groups_leave_out_what_needs_them(data):
    plain = trustsets.ModelOutputs(logits=data.outputs.logits, labels=data.outputs.codes)
    session = Session(plain)
    choices = session.parameters
    assert "trust" not in choices.statistics and "groups" not in choices.methods
    shown = json.loads(sessions.answer(session, session.first_state))
    assert shown["points"][0]["table"] == "conf_rank"
    assert isinstance(session.predictor(session.first_state.settings[0], 0), ConditionalConformal)
