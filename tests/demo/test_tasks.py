"""Laws of the demo's data: honest splits, known probabilities, a long tail."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sklearn.neural_network import MLPClassifier

from trustsets import InputError
from trustsets.demo import digits_task, library_task, simulated_task
from trustsets.demo.library import functions_in, library_functions
from trustsets.demo.simulated import LongTail
from trustsets.demo.task import DemoTask, Network


@pytest.fixture(scope="module")
def library() -> DemoTask:
    return library_task(seed=0, train_share=0.1)


def small_simulation(seed: int = 0) -> DemoTask:
    return simulated_task(seed, n_train=200, n_pool=400, n_classes=12, n_features=5)


def rows_as_bytes(features) -> list[bytes]:
    return [row.tobytes() for row in features]


class TestEveryTask:
    @pytest.mark.parametrize("make", [lambda s: digits_task(s, n_train=60), small_simulation])
    def test_a_seed_gives_the_same_bits_and_another_seed_others(self, make):
        one, same, other = make(3), make(3), make(4)
        np.testing.assert_array_equal(one.pool.logits, same.pool.logits)
        np.testing.assert_array_equal(one.pool.codes, same.pool.codes)
        assert not np.array_equal(one.pool.logits, other.pool.logits)

    @pytest.mark.parametrize("make", [lambda: digits_task(n_train=60), small_simulation])
    def test_training_samples_and_pool_are_disjoint(self, make):
        task = make()
        seen = set(rows_as_bytes(task.train.features))
        assert not seen.intersection(rows_as_bytes(task.pool.features))

    def test_digits_uses_every_image_once_and_errs_in_earnest(self):
        task = digits_task()
        assert len(task.train) + len(task.pool) == 1797
        np.testing.assert_array_equal(task.pool.rows, np.arange(len(task.pool)))
        assert 0.80 < task.accuracy < 0.96
        assert (task.train.predicted_codes == task.train.codes).mean() == 1.0

    def test_calibration_error_is_that_of_its_definition(self):
        pool = small_simulation().pool
        error, right = 0.0, pool.predicted_codes == pool.codes
        for low in np.arange(15) / 15:
            inside = (pool.confidence >= low) & (pool.confidence < low + 1 / 15)
            inside |= (low == 14 / 15) & (pool.confidence == 1.0)
            if inside.any():
                error += inside.mean() * abs(pool.confidence[inside].mean() - right[inside].mean())
        assert small_simulation().calibration_error == pytest.approx(error, abs=1e-9)


class TestNetwork:
    def test_its_outputs_are_those_of_the_trained_model(self):
        rng = np.random.default_rng(0)
        inputs, codes = rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
        model = MLPClassifier((8,), random_state=0).partial_fit(inputs, codes, classes=[0, 1, 2])
        network = Network(tuple(model.coefs_), tuple(model.intercepts_))
        outputs = network.outputs(inputs, codes, [0, 1, 2])
        assert outputs.features.shape == (60, 8) and outputs.features.min() == 0.0
        logits = outputs.logits.astype(np.float64)
        shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(shares, model.predict_proba(inputs), atol=1e-6)

    def test_training_fits_what_can_be_fitted(self):
        rng = np.random.default_rng(0)
        codes = np.arange(80) % 4
        inputs = np.eye(4)[codes] + 0.1 * rng.normal(size=(80, 4))
        network = Network.train(inputs, codes, width=16, epochs=60, seed=0)
        assert (network.outputs(inputs, codes, range(4)).predicted_codes == codes).all()


class TestLibrary:
    def test_no_function_text_is_in_both_parts_and_the_order_is_fixed(self, library):
        texts, modules = library_functions.__wrapped__(fewest=12)
        assert len(texts) == len(modules) == len(set(texts))
        assert len(library.train) + len(library.pool) == len(texts)
        assert (texts, modules) == library_functions()

    def test_hundreds_of_modules_with_a_long_tail(self, library):
        counts = np.sort(np.bincount(library.pool.codes, minlength=library.pool.n_classes))
        assert library.pool.n_classes >= 200
        assert len(library.pool) >= 5000
        assert counts[-1] > 10 * np.median(counts)
        assert set(library.train.codes) == set(range(library.pool.n_classes))

    def test_the_network_is_overconfident_even_where_it_is_weak(self, library):
        assert library.accuracy > 20 / library.pool.n_classes
        assert library.confidence > library.accuracy + 0.05
        assert library.calibration_error > 0.05

    def test_functions_are_found_in_classes_and_branches_but_not_in_functions(self):
        body = "return alpha + beta + gamma + delta + epsilon + zeta + eta + theta"
        source = f"""
class Outer:
    def method(self, alpha):
        {body}
    class Inner:
        async def deeper(self, alpha):
            {body}
if True:
    def branch(alpha):
        def within(alpha):
            {body}
        {body}
def tiny(): pass
"""
        found = [text.split("(")[0] for text in functions_in(source)]
        assert found == ["def method", "async def deeper", "def branch"]

    def test_files_are_read_never_run_and_broken_ones_are_passed_over(self, tmp_path):
        body = " + ".join(f"name_{i}" for i in range(12))
        (tmp_path / "good.py").write_text(
            "raise SystemExit('imported')\n"
            + "".join(f"def function_{i}():\n    return {body}\n" for i in range(3))
        )
        (tmp_path / "copy.py").write_text(f"def function_1():\n    return {body}\n")
        (tmp_path / "broken.py").write_text("def (:\n")
        (tmp_path / "latin.py").write_bytes(b"name = '\xff'\n")
        (tmp_path / "test").mkdir()
        (tmp_path / "test" / "skipped.py").write_text(f"def other():\n    return {body}\n")
        texts, modules = library_functions(fewest=1, root=tmp_path)
        # The function that is in two files counts for the first of them.
        assert Counter(modules) == {"copy": 1, "good": 2}
        assert all(text.startswith("def function_") for text in texts)

    def test_a_python_without_sources_is_told_so(self, tmp_path):
        with pytest.raises(InputError, match="standard library"):
            library_functions(fewest=12, root=Path(tmp_path))


class TestSimulated:
    def test_probabilities_sum_to_one_and_are_bayes_rule(self):
        law = LongTail.make(np.random.default_rng(0), 6, 3, 1.0, 1.0)
        features, _ = law.draw(np.random.default_rng(1), 50)
        density = np.array(
            [stats.multivariate_normal(centre).pdf(features) for centre in law.centres]
        )
        joint = law.prior[:, None] * density
        found = law.label_probabilities(features)
        np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)
        np.testing.assert_allclose(found, (joint / joint.sum(axis=0)).T, rtol=1e-9, atol=1e-300)

    def test_labels_follow_the_stated_probabilities(self):
        """A chi-square test over bands of P(y | x): labels occur as often as they say."""
        law = LongTail.make(np.random.default_rng(0), 8, 3, 1.0, 0.8)
        features, labels = law.draw(np.random.default_rng(1), 20000)
        stated = law.label_probabilities(features)
        hit = np.eye(8)[labels]
        for code in range(8):
            p = stated[:, code]
            band = np.searchsorted(np.quantile(p, np.arange(1, 10) / 10), p)
            expected = np.bincount(band, weights=p)
            spread = np.bincount(band, weights=p * (1.0 - p))
            seen = np.bincount(band, weights=hit[:, code])
            statistic = ((seen - expected) ** 2 / spread)[expected > 5.0]
            assert stats.chi2.sf(statistic.sum(), statistic.size) > 1e-4

    def test_wrong_probabilities_would_be_noticed(self):
        """The test above has power: probabilities of a flat prior fail it."""
        law = LongTail.make(np.random.default_rng(0), 8, 3, 1.0, 0.8)
        features, labels = law.draw(np.random.default_rng(1), 20000)
        flat = LongTail(np.full(8, 1 / 8), law.centres).label_probabilities(features)[:, 0]
        statistic = (np.sum(labels == 0) - flat.sum()) ** 2 / np.sum(flat * (1.0 - flat))
        assert stats.chi2.sf(statistic, 1) < 1e-6

    def test_classes_thin_out_and_all_are_trained_on(self):
        task = simulated_task(n_train=500, n_pool=4000, n_classes=40, n_features=6)
        counts = np.bincount(task.pool.codes, minlength=40)
        assert counts[0] > 5 * max(counts[20:].max(), 1)
        assert set(task.train.codes) == set(range(40))

    def test_the_pools_rows_find_their_probabilities(self):
        task = small_simulation()
        _, test = task.pool.split(0.5, seed=1)
        truth = task.label_probabilities[test.rows]
        # The true class has far more mass than a class picked blindly.
        assert truth[np.arange(len(test)), test.codes].mean() > 3 / 12
