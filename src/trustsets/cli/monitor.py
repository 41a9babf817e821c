"""``trustsets monitor``: has coverage broken, and where."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trustsets.cli import console
from trustsets.cli.options import Groups, LabelColumn, TableOptions, argument, option, resolved

if TYPE_CHECKING:
    from trustsets.files import OutputsFile, TableColumns
    from trustsets.monitor import Monitor, Verdict
    from trustsets.predictors import Predictor

__all__ = ["ALARM", "monitor"]

ALARM = 3
"""Exit code when there is an alarm."""
_MOST_ROWS = 12


def monitor(
    context: typer.Context,
    model: Annotated[Path, argument("MODEL", "Saved by 'trustsets calibrate'.")],
    outputs: Annotated[
        Path | None, argument("OUTPUTS", "New outputs, with labels or without.")
    ] = None,
    *,
    state: Annotated[Path, option("FILE", "State of the monitor (.trustsets), made at first.")],
    labels: Annotated[
        Path | None, option("FILE", "Labels that came later: arrays 'id' and 'labels'.")
    ] = None,
    reference: Annotated[
        Path | None, option("FILE", "What MODEL was calibrated on, for a new state.")
    ] = None,
    alpha: Annotated[
        float | None, option("SHARE", "Share of sets that may miss the true class.")
    ] = None,
    false_alarm: Annotated[
        float | None, option("SHARE", "Probability of any alarm if nothing changes.")
    ] = None,
    batch: Annotated[str | None, option("NAME", "Name of the batch. Default: a digest.")] = None,
    in_order: Annotated[
        bool, option(None, "Samples are in the order in which they came.", "--in-order")
    ] = False,
    group: Groups = None,
    label_column: LabelColumn = None,
    table: TableOptions,
) -> None:
    """Watch coverage over time; exit code 3 means that there is an alarm.

    Run it for every new batch, for example from cron. New samples are
    compared with those of the calibration: by their labels, where there are
    any, and by what the model says about them. If nothing changes, the
    probability of any alarm is 5%, however often you look. A batch counts
    once: after an interruption, give the same command again.

    Example:

      trustsets monitor model.trustsets new.parquet --state watch.trustsets
    """
    from trustsets.errors import InputError
    from trustsets.files import Snapshot, check_output
    from trustsets.predictors import load
    from trustsets.resuming import locked

    record = resolved(context)
    if outputs is not None and labels is not None:
        raise InputError("give OUTPUTS or --labels, not both: each is a batch of its own.")
    inputs = [model, outputs, labels, reference]
    check_output(state, (".trustsets",), inputs)
    # The state is replaced as a whole after the batch was taken, and it remembers the batch: a run
    # that was killed is repeated by the same command.
    with locked(state.absolute().parent / f".{state.name}.lock", state):
        before = Snapshot(*inputs)
        predictor = load(model)
        files = _Files(model, predictor, list(group or ()), table.columns(label_column))
        watch = _open(state, files, reference, alpha, false_alarm)
        taken = len(watch.batches)
        if outputs is not None:
            files.observe(watch, outputs, batch, in_order)
        if labels is not None:
            files.label(watch, labels, batch, in_order)
        before.check()
        is_new = len(watch.batches) > taken
        if is_new or not state.exists():
            watch.save(state)
    verdict = watch.verdict()
    if (outputs or labels) and not is_new:
        console.say("This batch was counted before.")
    if console.settings.json:
        console.print_json(record | verdict.to_dict())
    else:
        _print(verdict)
    if verdict.alarm:
        raise typer.Exit(ALARM)


class _Files:
    """Reads batches for a model and its monitor."""

    def __init__(
        self, model: Path, predictor: "Predictor", groups: list[str], columns: "TableColumns"
    ) -> None:
        from trustsets.files import remembered_columns

        self.predictor = predictor
        self._model, self._columns = str(model), columns
        self._groups = list(dict.fromkeys([*groups, *predictor.needed_groups]))
        self._remembered = remembered_columns(model)

    def open(self, path: Path) -> "OutputsFile":
        """Outputs in a file, with the class names of the model."""
        from trustsets.files import open_outputs

        return open_outputs(
            path,
            groups=self._groups,
            classes=self.predictor.classes_,
            columns=self._columns,
            remembered=self._remembered,
        )

    def observe(self, watch: "Monitor", path: Path, batch: str | None, in_order: bool) -> None:
        """Take outputs as a batch, by default under a digest of their content."""
        from trustsets.files import content_digest, open_for_prediction

        name = batch or content_digest(path)
        if name in watch.batches:
            return
        open_for_prediction(
            self.predictor,
            path,
            name=self._model,
            columns=self._columns,
            remembered=self._remembered,
        )
        source = self.open(path)
        ids = source.ids["id"].read_names(0, len(source)).tolist() if "id" in source.ids else None
        watch.observe(source.read_all(), ids=ids, batch=name, in_order=in_order)

    def label(self, watch: "Monitor", path: Path, batch: str | None, in_order: bool) -> None:
        """Take labels that came later."""
        from trustsets.files import content_digest, read_late_labels

        ids, codes = read_late_labels(path, self.predictor.classes_, self._columns)
        watch.label(ids, codes, batch=batch or content_digest(path), in_order=in_order)


def _open(
    state: Path,
    files: _Files,
    reference: Path | None,
    alpha: float | None,
    false_alarm: float | None,
) -> "Monitor":
    """The monitor of a state, which is begun if there is none."""
    from trustsets.errors import InputError
    from trustsets.monitor import Monitor

    wanted = {"alpha": alpha, "false_alarm": false_alarm}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    if not state.exists():
        begun = None if reference is None else files.open(reference).read_all()
        options: dict[str, Any] = wanted
        return Monitor(files.predictor, reference=begun, **options)
    watch = Monitor.load(state, files.predictor)
    for name, value in wanted.items():
        begun_with = getattr(watch.verdict(), name)
        if value != begun_with:
            raise InputError(
                f"{state}: it was begun with {name}={begun_with:g}; got {value:g}. Leave it out, "
                "or begin a new state."
            )
    return watch


def _print(found: "Verdict") -> None:
    from rich.markup import escape

    headline, *rest = found.summary().splitlines()
    console.print_text(headline, "bold red" if found.alarm else "bold")
    for line in rest:
        console.print_text(line)
    if not found.parts:
        return
    first, *parts = found.parts
    lowest = sorted(parts, key=lambda row: row.upper)[:_MOST_ROWS]
    rows = [
        [
            escape(console.visible(row.part)),
            f"{row.n:,}",
            f"{row.coverage:.3f}",
            f"{row.lower:.3f} to {row.upper:.3f}",
            f"{row.size:.2f}",
        ]
        for row in (first, *lowest)
    ]
    console.print_text("")
    console.print_table(["Part", "Labelled", "Coverage", "Interval", "Size"], rows)
