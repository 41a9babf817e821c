"""What the command line says about classes: their order, their shares, those without samples."""

import numpy as np

NAMES = np.array(["eel", "ant", "dog"])


def write(path, n=600, seed=0, **more):
    rng = np.random.default_rng(seed)
    logits = 3.0 * rng.normal(size=(n, 3))
    codes = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    np.savez(path, logits=logits, labels=NAMES[codes], **more)


def test_a_guessed_order_of_the_columns_is_doubted(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("guessed.npz")
    done = run("calibrate", "guessed.npz", "--method", "standard", "-o", "m.trustsets")
    assert done.code == 0
    assert "Warning: The most likely class is right for" in done.err
    assert "in another order of the columns: the columns must be 'ant', 'dog' and 'eel'" in done.err
    write("named.npz", classes=NAMES)
    done = run("calibrate", "named.npz", "--method", "standard", "-o", "m.trustsets")
    assert done.code == 0 and "Warning" not in done.err
    assert "in order: 'eel', 'ant' and 'dog'." in done.err
