"""Who may ask, what is refused, and that nothing a stranger sends makes the server fail."""

import io
import json
import random
import threading
import time

import pytest
from PIL import Image
from starlette.testclient import TestClient

from trustsets_explorer import server
from trustsets_explorer.samples import Gallery
from trustsets_explorer.server import make_app
from trustsets_explorer.session import Session, Superseded

TOKEN, PORT = "a-token-of-some-length", 4321
HOST = f"127.0.0.1:{PORT}"
ORIGIN = {"origin": f"http://{HOST}"}
CLIENT = "0123456789abcdef"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder with one image, and a secret beside it to which a link and a name lead."""
    top = tmp_path_factory.mktemp("top")
    folder = top / "images"
    folder.mkdir()
    image = Image.new("RGB", (900, 30), "red")
    for path in (folder / "0.png", top / "secret.png"):
        image.save(path)
    (folder / "link.png").symlink_to(top / "secret.png")
    (folder / "text.png").write_text("no image")
    Image.new("1", (20000, 10000)).save(folder / "huge.png")
    names = ["0.png", "../secret.png", "link.png", "text.png", str(top / "secret.png"), "huge.png"]
    return Gallery(None, folder, {"held_out": [*names, *["absent.png"] * 194]})


@pytest.fixture(scope="module")
def small(make_outputs):
    return make_outputs(200, 4, features=None, groups=None)


@pytest.fixture(scope="module")
def app(pictures, small):
    return make_app(Session(small), pictures, TOKEN, PORT, {})


def visitor(app, **more):
    """Someone who has the cookie; entered, all requests share one event loop."""
    return TestClient(app, f"http://{HOST}", cookies={f"trustsets-{PORT}": TOKEN}, **more)


@pytest.fixture
def client(app):
    with visitor(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def state(app):
    own = TestClient(app, base_url=f"http://{HOST}").get("/start", params={"token": TOKEN})
    return own.json()["state"]


def ask(client, action, state, generation=1, **more):
    body = {"client": CLIENT, "generation": generation, "state": state} | more
    return client.post(f"/api/{action}", json=body, headers=ORIGIN)


def test_the_page_needs_the_token_and_keeps_to_itself(app):
    stranger = TestClient(app, base_url=f"http://{HOST}")
    assert stranger.get("/").status_code == 403
    assert stranger.get("/", params={"token": TOKEN[:-1]}).status_code == 403
    assert stranger.get("/", params={"token": "ü"}).status_code == 403
    page = stranger.get("/", params={"token": TOKEN})
    assert page.status_code == 200 and "httponly" in page.headers["set-cookie"].lower()
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "http" not in policy and "unsafe" not in policy
    # The cookie alone is enough from now on.
    for name in ("explorer.js", "parameters.js", "report.css", "dark.css", "icon.svg"):
        assert stranger.get(f"/{name}").status_code == 200
    refused = stranger.get("/explorer.js", headers={"host": "example.org"})
    assert refused.status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example:4321"},
        {"host": "127.0.0.1"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": f"http://127.0.0.1:{PORT + 1}"},
        {"origin": f"http://{HOST}", "sec-fetch-site": "cross-site"},
        {},  # a request must say where it comes from
    ],
)
def test_other_hosts_and_origins_are_refused(client, state, headers):
    body = {"client": CLIENT, "generation": 1, "state": state}
    assert client.post("/api/code", json=body, headers=headers).status_code == 403


def test_large_foreign_and_broken_bodies_are_refused(client, state):
    post = lambda **own: client.post("/api/code", headers=ORIGIN | own.pop("headers", {}), **own)  # noqa: E731
    kind = {"content-type": "application/json"}
    assert post(content=b"x" * 20_000, headers=kind).status_code == 413
    assert post(content=(b"x" * 1000 for _ in range(30)), headers=kind).status_code == 413
    assert post(content=json.dumps({"state": state})).status_code == 415
    assert post(content=b"[" * 10_000, headers=kind).status_code == 400
    assert post(content=b'{"client": NaN}', headers=kind).status_code == 400
    assert post(content=b"\xff\xfe", headers=kind).status_code == 400
    assert ask(client, "absent", state).status_code == 404
    assert ask(client, "list", state, table="nothing", bin=0).status_code == 400
    assert ask(client, "sample", state, row=10**9).status_code == 400


def test_images_come_from_the_folder_only_and_are_made_anew(client):
    own = client.get("/image/held_out/0")
    assert own.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(own.content)).size == (512, 17)
    for row in ("1", "2", "3", "4", "5", "6", "9999", "-1", "0x1", "%2e%2e%2fsecret.png", "٣"):
        assert client.get(f"/image/held_out/{row}").status_code == 404
    assert client.get("/image/train/0").status_code == 404
    assert client.get("/image/held_out/../../secret.png").status_code == 404


def test_an_older_question_gives_way_to_a_newer_one(client, state):
    one = state | {"settings": state["settings"][1:]}
    assert "points" in ask(client, "answer", one, generation=50).json()
    for action in ("answer", "list", "first"):
        assert ask(client, action, one, generation=49).json() == {"superseded": True}
    assert "points" in ask(client, "first", one, generation=51).json()
    assert ask(client, "words", one, generation=50).json() == {"superseded": True}
    # A list does not stop an answer that is under way.
    assert "rows" in ask(client, "list", one, generation=60).json()
    assert "points" in ask(client, "answer", one, generation=55).json()


def test_every_action_answers(client, state):
    number = iter(range(100, 200))

    def of(action, **more):
        found = ask(client, action, state, next(number), **more)
        assert found.status_code == 200, found.text
        return found

    listed = of("list", index=1, table="class", bin=0).json()
    row = listed["rows"][0]["row"]
    assert of("sample", row=row).json()["row"] == row
    assert of("words").json()["verdict"][0][1][0].startswith("A prediction set")
    assert "regions" in of("regions").json()
    assert "calibrate" in of("code").json()["command"]
    assert len(of("predictor").content) > 1000


def _mutate(draw, value):
    """A value near a valid one, or something else altogether."""
    odd = [None, True, -1, 0, 1e308, 2**70, [], {}, [[1]]]
    odd += ["", "\x00", "../../etc/passwd", "<script>"]
    if isinstance(value, dict) and value and draw.random() < 0.8:
        name = draw.choice(list(value))
        if draw.random() < 0.15:
            return {own: item for own, item in value.items() if own != name}
        return value | {name: _mutate(draw, value[name])}
    if isinstance(value, list) and value and draw.random() < 0.8:
        place = draw.randrange(len(value))
        return [*value[:place], _mutate(draw, value[place]), *value[place + 1 :]]
    return draw.choice(odd)


def test_a_thousand_odd_requests_never_make_the_server_fail(client, state):
    draw, seen = random.Random(0), set()
    standard = state | {"settings": [state["settings"][1]]}
    actions = "answer first words list sample regions code predictor x%00".split()
    paths = ["/", "/start", "/image/held_out/0", "/image/held_out/7", "/image/x/1", "/%2e%2e/"]
    for number in range(1000):
        whole = {"client": CLIENT, "generation": number, "state": standard, "index": 0}
        whole |= {"table": "class", "bin": 1, "row": 3}
        body = json.dumps(_mutate(draw, whole)).encode()
        if draw.random() < 0.2:
            place = draw.randrange(len(body))
            body = body[:place] + bytes([draw.randrange(256)]) + body[place + draw.randrange(3) :]
        headers = dict(draw.sample([("origin", f"http://{HOST}"), ("x", "y" * 300)], k=2))
        headers |= {"content-type": draw.choice(["application/json"] * 9 + ["text/plain"])}
        if draw.random() < 0.1:
            found = client.request(draw.choice(["GET", "PUT", "HEAD"]), draw.choice(paths))
        else:
            found = client.post(f"/api/{draw.choice(actions)}", content=body, headers=headers)
        assert found.status_code < 500 and "Traceback" not in found.text, (body, found.text)
        seen.add(found.status_code)
    assert {200, 400, 403, 404, 415} <= seen


def test_the_nearest_alphas_are_prepared_while_nobody_asks(state, small, monkeypatch):
    """Their answers are in the cache after a rest; any question ends the preparation."""
    monkeypatch.setattr(server, "_IDLE", 0.0)
    session = Session(small)
    shared = server._Shared(session, Gallery(None), {})
    shared.note(server._REQUESTS, 5)
    server._prepare(shared, session.first_state, 5)
    prepared = {state.alpha for state in session.answers}
    assert len(prepared) == 40 and max(abs(alpha - 0.1) for alpha in prepared) < 0.11
    session.answers.clear()
    session._evaluations.clear()
    shared.note(server._REQUESTS, 6)
    server._prepare(shared, session.first_state, 5)
    assert not session._evaluations and not session.answers
    # A move of the page is enough: its first question is often the only one. And a question about
    # a sample neither waits for the other alphas nor is the last time that they are prepared.
    with visitor(make_app(session, Gallery(None), TOKEN, PORT, {})) as client:
        for action in ("first", "sample"):
            session.answers.clear()
            assert ask(client, action, state).status_code == 200
            end = time.monotonic() + 60.0
            while len(session.answers) < 40 and time.monotonic() < end:
                time.sleep(0.02)
            assert len(session.answers) == 40


def test_a_question_ends_the_preparation_of_alphas(state, small, monkeypatch):
    monkeypatch.setattr(server, "_IDLE", 0.0)
    session, started, asked = Session(small), threading.Event(), threading.Event()
    ended, note = [], server._Shared.note

    def slow_answer(session, state, check):
        started.set()
        assert asked.wait(60.0)
        try:
            check()
        except Superseded:
            ended.append(state.alpha)
            raise

    def slow_note(shared, lane, generation):
        note(shared, lane, generation)
        if started.is_set() and lane == server._REQUESTS:
            asked.set()

    monkeypatch.setattr(server, "answer", slow_answer)
    monkeypatch.setattr(server._Shared, "note", slow_note)
    with visitor(make_app(session, Gallery(None), TOKEN, PORT, {})) as client:
        assert ask(client, "code", state).status_code == 200
        assert started.wait(60.0)
        assert ask(client, "sample", state).status_code == 200
    assert ended == [0.1]
