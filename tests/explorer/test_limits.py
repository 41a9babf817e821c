"""What users of the machine who do not have the token can take: no secret, no lock-out, no memory.

The server runs in a process of its own with few open files, as an owner's process does.
"""

import contextlib
import html
import os
import re
import select
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
import webbrowser
from pathlib import Path

import httpx
import pytest
from PIL import Image

from trustsets import explore
from trustsets_explorer.samples import Gallery

OPEN_FILES, STRANGERS = 256, 300
MEGAPIXELS = 24
SERVER = """
import sys
import numpy as np
from trustsets import ModelOutputs, explore
rng = np.random.default_rng(0)
logits = rng.normal(size=(60, 3))
outputs = ModelOutputs(logits=logits, labels=logits.argmax(axis=1))
explorer = explore(outputs, images=sys.argv[1], image_names=["large.png"] * 60)
print(explorer.url, flush=True)
explorer.wait()
"""
# What a stranger sends and then says no more.
UNFINISHED = {
    "nothing": b"",
    "half a line": b"GET / HT",
    "half a header": b"GET / HTTP/1.1\r\nHost: x\r\n",
    "half a body": b"POST /api/answer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
    "a request and a half": b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /",
    "no HTTP": b"\x16\x03\x01\x02\x00",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    Image.new("RGB", (6000, MEGAPIXELS * 1_000_000 // 6000)).save(folder / "large.png")
    log = folder / "log"
    limited = f'ulimit -n {OPEN_FILES}; exec "$0" "$@"'
    with log.open("w") as errors:
        process = subprocess.Popen(
            ["sh", "-c", limited, sys.executable, "-c", SERVER, str(folder)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield process, process.stdout.readline().strip(), log
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.parametrize("sent", UNFINISHED.values(), ids=UNFINISHED)
def test_unfinished_requests_do_not_lock_the_owner_out(server, sent):
    process, url, log = server
    address = ("127.0.0.1", urllib.parse.urlsplit(url).port)
    strangers = []
    try:
        for number in range(STRANGERS):
            stranger = socket.create_connection(address, timeout=30)
            strangers.append(stranger)
            stranger.sendall(sent)
            if number % 16 == 0:
                time.sleep(0.02)  # a full queue of the kernel would make the next one wait a second
        for _ in range(3):
            with urllib.request.urlopen(url, timeout=10) as page:
                assert page.status == 200
    finally:
        for stranger in strangers:
            stranger.close()
    assert process.poll() is None
    assert len(log.read_text().splitlines()) < 100


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory from /proc")
def test_requests_of_large_images_take_the_memory_of_one(server):
    process, url, _ = server
    home, _, token = url.partition("/?token=")

    def peak():
        text = Path(f"/proc/{process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) / 1000

    before, sizes = peak(), []

    def get(row):
        reply = httpx.get(f"{home}/image/held_out/{row}", params={"token": token}, timeout=100)
        sizes.append((reply.status_code, len(reply.content)))

    threads = [threading.Thread(target=get, args=(i % 3,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [status for status, _ in sizes] == [200] * 12
    assert max(length for _, length in sizes) < 1_000_000
    # Pillow's RGB has four bytes a pixel.
    assert peak() - before < 1.5 * 4 * MEGAPIXELS


@pytest.mark.parametrize("sent", list(UNFINISHED.values())[:4], ids=list(UNFINISHED)[:4])
def test_a_connection_that_waits_is_closed(data, monkeypatch, sent):
    from trustsets_explorer import server

    monkeypatch.setattr(server, "_REQUEST_SECONDS", 0.3, raising=False)
    with explore(data.outputs) as explorer:
        with socket.create_connection(("127.0.0.1", explorer.port)) as stranger:
            stranger.sendall(sent)
            assert select.select([stranger], [], [], 10)[0]
            stranger.settimeout(10)
            with contextlib.suppress(ConnectionResetError):
                while stranger.recv(4096):
                    pass


def test_no_argument_of_the_browser_tells_the_token(data, monkeypatch):
    arguments = []
    monkeypatch.setattr(webbrowser, "open", lambda *args, **more: arguments.append((args, more)))
    with explore(data.outputs, browser=True) as explorer:
        token = explorer.url.partition("token=")[2]
        assert token not in str(arguments)
        ((address,), _) = arguments[0]
        page = Path(urllib.request.url2pathname(urllib.parse.urlsplit(address).path))
        assert stat.S_IMODE(os.stat(page).st_mode) == 0o600
        target = re.search(r'content="0; url=([^"]+)"', page.read_text())[1]
        assert html.unescape(target) == explorer.url
    assert not page.exists()


def test_nothing_in_the_folder_of_images_makes_the_server_fail(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (40, 40), "red").save(folder / "good.png")
    Image.new("RGB", (40, 40), "red").save(tmp_path / "outside.png")
    links = {"loop.png": "loop.png", "one.png": "two.png", "two.png": "one.png", "ring": "ring"}
    links |= {"dangling.png": "absent.png", "outside.png": tmp_path / "outside.png"}
    for name, goal in links.items():
        (folder / name).symlink_to(goal)
    os.mkfifo(folder / "pipe.png")
    names = ["loop.png", "one.png", "ring/0.png", "dangling.png", "outside.png", "pipe.png"]
    names += ["", ".", "..", "../outside.png", "\0.png", "x" * 5000, "good.png/x", "absent.png"]
    for suffix in (".png", ".jpg", ".gif", ".bmp", ".tiff", ".ppm", ".webp"):
        Image.new("RGB", (40, 40), "red").save(folder / f"whole{suffix}")
        whole = (folder / f"whole{suffix}").read_bytes()
        for length in {0, 1, 7, len(whole) // 4, len(whole) // 2}:
            names.append(f"{length}{suffix}")
            (folder / names[-1]).write_bytes(whole[:length])
    gallery = Gallery(None, folder, {"held_out": [*names, "good.png"]})
    # Half an image may still show; nothing else does.
    for row, name in enumerate(names):
        image = gallery.image("held_out", row)
        assert image is None or name[0].isdigit(), name
    assert gallery.image("held_out", len(names)) is not None
