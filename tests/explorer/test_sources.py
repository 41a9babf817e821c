"""Explorers of files, from Python and from the command line."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys

import httpx
import numpy as np
import pytest
from PIL import Image

from trustsets import explore
from trustsets.errors import InputError
from trustsets_explorer import explore_files, launch


def ask(url, action, timeout=60, **more):
    """Put a question as the page at an address does; GET for a path."""
    home, _, token = url.partition("/?token=")
    with httpx.Client(base_url=home, params={"token": token}, timeout=60) as client:
        if action.startswith("/"):
            return client.get(action)
        state = client.get("/start").json()["state"]
        body = {"client": "0" * 8, "generation": 1, "state": state} | more
        return client.post(f"/api/{action}", json=body, headers={"origin": home}, timeout=timeout)


def test_texts_and_neighbours_come_from_the_files_or_lists(folder, data):
    files = {"train": folder / "train.npz", "text": "note", "browser": False, "groups": ("image",)}
    with explore_files(folder / "held_out.npz", **files) as explorer:
        found = ask(explorer.url, "sample", row=5, index=1).json()
        assert found["text"] == f"<u>sample {explorer.session.split(0).positions[5]}</u>"
        assert len(found["neighbours"]) == 6 and found["image"] is None
        code = ask(explorer.url, "code").json()
        assert str(folder / "train.npz") in code["python"] and "--train" in code["command"]
        assert "groups='image'" in code["python"] and "--group" in code["command"]
        assert explorer.url in explorer._repr_html_()
    with explore(data.outputs, train=[values.tolist() for values in data.train]) as explorer:
        assert len(ask(explorer.url, "sample", row=5, index=1).json()["neighbours"]) == 6


def test_images_are_found_by_the_names_in_the_file(folder):
    images = folder / "images"
    with explore_files(folder / "held_out.npz", images=images, browser=False) as explorer:
        image = ask(explorer.url, "/image/held_out/4")
        assert image.headers["content-type"] == "image/png"
        assert Image.open(io.BytesIO(image.content)).getpixel((0, 0)) == (80, 80, 80)
        assert explorer.session.trust is None


def test_images_of_the_demo_belong_to_their_samples(monkeypatch):
    """The image of a sample is nearer to the mean image of its digit than to those of others."""
    seen = {}
    monkeypatch.setattr(launch, "explore", lambda outputs, **more: seen.update(more, all=outputs))
    launch.explore_task("digits")
    codes, images = seen["all"].codes, np.asarray(seen["images"])
    means = [images[codes == digit].mean(axis=0) for digit in range(10)]
    distances = ((images[:, None] - np.array(means)) ** 2).sum(axis=(2, 3))
    assert (distances.argmin(axis=1) == codes).mean() > 0.7


def test_wrong_arguments_are_refused(folder, data):
    held_out = folder / "held_out.npz"
    for given in ({"text": "absent"}, {"images": folder / "absent"}, {"port": 99999}):
        with pytest.raises(InputError):
            explore_files(held_out, browser=False, **given)
    with pytest.raises(InputError, match="not both"):
        explore_files(held_out, text="note", images=folder, browser=False)
    with pytest.raises(InputError, match="one entry for each"):
        explore(data.outputs, texts=["a"])
    with pytest.raises(InputError, match="share"):
        explore(data.outputs, share=1.5)
    for train in ((1, 2), 5, ([[1.0]], None), ([[1.0]], [0, 1])):
        with pytest.raises(InputError, match="train must have features and labels"):
            explore(data.outputs, train=train)
    with explore(data.outputs) as first:
        for port in (first.port, "a"):
            with pytest.raises(InputError, match="port"):
                explore(data.outputs, port=port)


@pytest.mark.slow
def test_the_command_prints_the_address_and_ends_when_interrupted(folder):
    """In the middle of an answer, too, without a traceback."""
    command = [sys.executable, "-m", "trustsets.cli", "explore", "--no-browser", "--json"]
    process = subprocess.Popen(
        [*command, folder / "held_out.npz"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        url = json.loads(process.stdout.readline())["url"]
        assert "<title>Explorer</title>" in ask(url, "/").text
        with contextlib.suppress(httpx.TimeoutException):
            ask(url, "answer", timeout=0.3)
    finally:
        os.kill(process.pid, signal.SIGINT)
        errors = process.communicate(timeout=100)[1].decode()
    assert (process.returncode, "has ended" in errors) == (0, True), errors
    assert "Traceback" not in errors and "Error" not in errors, errors
