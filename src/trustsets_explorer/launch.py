"""`explore`: start the server on data, files or a demo, say where it is, open the browser."""

import asyncio
import html
import os
import secrets
import socket
import tempfile
import threading
import weakref
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from trustsets.demo import load
from trustsets.errors import InputError
from trustsets.files import open_columns, open_outputs, read_classes, read_training
from trustsets.outputs import ModelOutputs, SupportsTrust
from trustsets.trust import TrustScore
from trustsets_explorer.samples import Gallery
from trustsets_explorer.session import Session

Floats = NDArray[np.float64]
StrPath = str | os.PathLike[str]

_LOCAL = "127.0.0.1"
_PATIENCE = 30.0


@final
class Explorer:
    """A running explorer: `url` is its address, `stop` ends it.

    In a notebook it is shown as a link.
    """

    def __init__(
        self, session: Session, gallery: Gallery, port: int, names: dict[str, str]
    ) -> None:
        try:
            import uvicorn

            from trustsets_explorer import server as web
        except ImportError as error:
            raise InputError(
                f"the explorer needs {error.name}; install it with pip install "
                '"trustsets[explore]".'
            ) from error
        self._socket = _bind(port)
        self.port: int = self._socket.getsockname()[1]
        self.session, self._token = session, secrets.token_urlsafe(24)
        app = web.make_app(session, gallery, self._token, self.port, names)
        config = uvicorn.Config(
            app, http=web.LimitedProtocol, backlog=web.BACKLOG, timeout_keep_alive=5,
            log_level="critical", access_log=False, lifespan="off", ws="none", server_header=False,
            timeout_graceful_shutdown=2,
        )  # fmt: skip
        self._server = server = uvicorn.Server(config)
        self._remove_page: Callable[[], object] = lambda: None

        # Not `Thread.join`: interrupted by Ctrl-C, it takes the running thread for a stopped one.
        self._ended = threading.Event()

        async def serve() -> None:
            asyncio.get_running_loop().set_exception_handler(web.log_loop_error)
            await server.serve(sockets=[self._socket])

        def run() -> None:
            try:
                asyncio.run(serve())
            finally:
                self._ended.set()

        threading.Thread(target=run, daemon=True).start()

    @property
    def url(self) -> str:
        """Address of the page, with the token that it needs."""
        return f"http://{_LOCAL}:{self.port}/?token={self._token}"

    def open_browser(self) -> None:
        """Open the page in the browser."""
        self._remove_page()
        # Every user of the machine can read the arguments of a process, and the address has the
        # token: the browser gets a file that only its owner can read, and that leads to the page.
        handle, name = tempfile.mkstemp(prefix="trustsets-", suffix=".html")
        self._remove_page = weakref.finalize(self._server, Path(name).unlink, missing_ok=True)
        url = html.escape(self.url, quote=True)
        with os.fdopen(handle, "w", encoding="utf-8") as page:
            page.write(
                '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
                f'<meta http-equiv="refresh" content="0; url={url}">'
                f'<title>Explorer</title><p><a href="{url}">Open the explorer</a></p>\n'
            )
        webbrowser.open(Path(name).as_uri())

    def wait(self) -> None:
        """Return when the server has ended."""
        # With a limit, because a Ctrl-C that the command line sends again wakes no thread.
        while not self._ended.wait(1.0):
            pass

    def stop(self) -> None:
        """End the server, and the work under way at its next stage."""
        self.session.is_closed.set()
        self._server.should_exit = True
        self._ended.wait(_PATIENCE)
        self._socket.close()
        self._remove_page()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"Explorer({self.url})"

    def _repr_html_(self) -> str:
        url = html.escape(self.url, quote=True)
        return f'<a href="{url}" target="_blank" rel="noreferrer">Open the explorer</a>'


def explore(
    outputs: ModelOutputs,
    trust: SupportsTrust | Floats | None = None,
    *,
    train: ModelOutputs | tuple[Any, Any] | None = None,
    images: StrPath | Any = None,
    image_names: Sequence[str] | None = None,
    texts: Sequence[str] | None = None,
    train_texts: Sequence[str] | None = None,
    train_images: Any = None,
    share: float = 0.5,
    port: int = 0,
    browser: bool = False,
    names: dict[str, str] | None = None,
) -> Explorer:
    """Serve a local page on which every parameter moves coverage live; `stop()` ends it.

    Parameters
    ----------
    outputs : ModelOutputs
        Held-out samples with labels; `share` of them calibrate, and the others are tested.
    trust : TrustScore, or array of shape (n,), optional
        Fitted trust score, or its values. By default one is fitted on `train`.
    train : ModelOutputs, or features and labels, optional
        Training samples, for the trust score and to show those nearest to a sample.
    images : path, or array of shape (n, height, width) or (n, height, width, 3), optional
        Folder with the images of the samples, or the images themselves.
    image_names : sequence of str, optional
        File of each sample within the folder; by default all files in the order of their names.
    texts, train_texts : sequence of str, optional
    train_images : sequence of str or array, optional
        Files within the same folder, or arrays.
    port : int
        Where to listen, on this machine only; 0 takes a free port.
    browser : bool
        Open the page in the browser.
    names : dict, optional
        Paths of the files that the data came from (``outputs``, ``train``, ``classes``), and
        the ``groups`` that were named, for copied code.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(400, 3))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> with explore(ModelOutputs(logits=logits, labels=labels)) as explorer:
    ...     explorer.url.startswith("http://127.0.0.1:")
    True
    """
    n, points = len(outputs), _train_arrays(train)
    if trust is None and points is not None:
        trust = TrustScore().fit(*points)
    folder = Path(images) if isinstance(images, str | Path) else None
    lists: dict[str, Any] = {"texts": texts, "image_names": image_names}
    lists |= {} if folder is not None else {"images": images}
    for name, values in lists.items():
        if values is not None and len(values) != n:
            raise InputError(f"{name} must have one entry for each of the {n} samples.")
    if folder is not None:
        images = _image_files(folder, image_names, n)
    gallery = Gallery(
        points,
        folder=folder,
        images=_present(held_out=images, train=None if images is None else train_images),
        texts=_present(held_out=texts, train=train_texts),
    )
    session = Session(outputs, trust, share=share)
    explorer = Explorer(session, gallery, port, names or {})
    if browser:
        explorer.open_browser()
    return explorer


def _bind(port: int) -> socket.socket:
    if not isinstance(port, int | np.integer) or not 0 <= port < 1 << 16:
        raise InputError(f"port must be a whole number between 0 and 65535; got {port!r:.60}.")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_LOCAL, port))
        # From now on a browser waits for the server's thread, instead of being refused.
        listener.listen()
    except OSError as error:
        listener.close()
        raise InputError(
            f"port {port} cannot be used ({error.strerror}); choose another, or 0 for any."
        ) from error
    return listener


def _train_arrays(train: ModelOutputs | tuple[Any, Any] | None) -> tuple[Any, Any] | None:
    if train is None:
        return None
    pair: Any = (train.features, train.labels) if isinstance(train, ModelOutputs) else train
    try:
        features, labels = (np.asarray(values) for values in pair)
        if len(features) == len(labels):
            return features, labels
    except (TypeError, ValueError):  # numbers, None, or other than two
        pass
    raise InputError("train must have features and labels, one of each for every sample.")


def _present(**parts: Any) -> dict[str, Any]:
    return {part: values for part, values in parts.items() if values is not None}


def _image_files(folder: Path, names: Sequence[str] | None, n: int) -> Sequence[str]:
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder of images.")
    if names is None:
        names = sorted(path.name for path in folder.iterdir() if path.is_file())
        if len(names) != n:
            raise InputError(
                f"{folder} has {len(names)} files for {n} samples; say which belongs to which "
                "(image_names, or an array 'image' in the file of outputs)."
            )
    return names


# Columns that may name the image file of each sample.
_IMAGE_COLUMNS = ("image", "path", "file", "id")


def explore_files(
    outputs: StrPath,
    *,
    train: StrPath | None = None,
    classes: StrPath | None = None,
    groups: tuple[str, ...] = (),
    images: StrPath | None = None,
    text: str | None = None,
    port: int = 0,
    browser: bool = True,
) -> Explorer:
    """Explore a file of labelled outputs; the parameters are those of ``trustsets explore``."""
    if images is not None and text is not None:
        raise InputError("samples have images or texts; give --images or --text, not both.")
    names = None if classes is None else read_classes(classes)
    source = open_outputs(outputs, groups=groups, classes=names)
    held_out = source.read_labelled("the explorer")
    copied = _present(
        outputs=outputs, train=train, classes=classes, groups=",".join(groups) or None
    )
    options: dict[str, Any] = {"names": {name: str(text) for name, text in copied.items()}}
    if train is not None:
        columns = source.feature_names
        options["train"] = read_training(train, held_out.classes, feature_names=columns)
        options["trust"] = TrustScore().fit(*options["train"])
    if text is not None:
        options["texts"] = _texts(outputs, text)
        if train is not None and text in open_columns(train):
            options["train_texts"] = _texts(train, text)
    if images is not None:
        options |= {"images": Path(images), "image_names": _image_names(outputs)}
        options |= {} if train is None else {"train_images": _image_names(train)}
    return explore(held_out, port=port, browser=browser, **options)


def explore_task(name: str, *, seed: int = 0, port: int = 0, browser: bool = True) -> Explorer:
    """Explore a task of the demo."""
    task = load(name, seed)
    outputs = ModelOutputs.concat([task.calibration, task.test])
    images = None if task.images is None else task.images[outputs.rows]
    shown: dict[str, Any] = {"images": images, "train_images": task.train_images}
    return explore(outputs, train=task.train, **shown, port=port, browser=browser)


def _texts(path: StrPath, name: str) -> list[str]:
    columns = open_columns(path)
    if name not in columns:
        raise InputError(
            f"{path}: there is no array {name!r} of texts; there are {', '.join(sorted(columns))}."
        )
    column = columns[name]
    if len(column.shape) != 1:
        raise InputError(f"{path}: array {name!r} must hold one text for each sample.")
    return [str(text) for text in column.read_names(0, column.shape[0]).tolist()]


def _image_names(path: StrPath) -> list[str] | None:
    columns = open_columns(path)
    name = next((name for name in _IMAGE_COLUMNS if name in columns), None)
    return None if name is None else _texts(path, name)
