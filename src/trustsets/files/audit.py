"""`audit_file`: labelled outputs to an audit that needs no test set."""

import json
from dataclasses import dataclass, field
from typing import Any, final

from trustsets._common.atomic import StrPath
from trustsets.auditing import LeftOut, Regions, leave_out
from trustsets.files.calibration import Recipe, fit_trust, load_labelled, load_tuning
from trustsets.files.naming import PLAIN, TableColumns
from trustsets.files.options import OPTIONS_FACT
from trustsets.files.paths import Snapshot, check_output
from trustsets.files.source import open_outputs, read_classes
from trustsets.metrics import Evaluation
from trustsets.report import write_report

__all__ = ["AuditFiles", "audit_file"]


@final
@dataclass(frozen=True)
class AuditFiles:
    """What is audited, and how.

    Attributes
    ----------
    outputs : path
        Labelled outputs; all of it is read into memory.
    recipe : Recipe
        Which predictor.
    alpha, level : float
        Allowed miscoverage, and confidence level of the intervals.
    train, tuning, classes, neighbour
        As in `calibrate_file`. Training samples also give Trust to methods that do not use it.
    by : tuple of str, optional
        What regions may be about; see `find_regions`.
    permutations : int
        Permuted outcomes behind the noise floor of the excess risk.
    columns : TableColumns
        Which columns of tables hold what.
    """

    outputs: StrPath
    recipe: Recipe = field(default_factory=Recipe)
    alpha: float = 0.1
    level: float = 0.95
    train: StrPath | None = None
    tuning: StrPath | None = None
    classes: StrPath | None = None
    neighbour: int = 1
    by: tuple[str, ...] | None = None
    permutations: int = 19
    columns: TableColumns = PLAIN

    @property
    def files(self) -> list[StrPath | None]:
        """Files that are read."""
        return [self.outputs, self.train, self.tuning, self.classes]

    def leave_out(self) -> LeftOut:
        """Calibrate, and leave out each sample once."""
        names = None if self.classes is None else read_classes(self.classes)
        groups, columns = self.recipe.groups, self.columns
        source = open_outputs(self.outputs, groups=groups, classes=names, columns=columns)
        samples = load_labelled(source, "an audit")
        trust = None
        if self.recipe.uses_trust or self.train is not None:
            trust = fit_trust(source, self.train, samples, self.neighbour, columns)
        tuning = None
        if self.tuning is not None:
            tuning = load_tuning(self.tuning, groups, names, samples, columns)
        predictor = self.recipe.build(trust)
        return leave_out(predictor, samples, self.alpha, tuning=tuning, trust=trust)


def audit_file(
    given: AuditFiles,
    result: StrPath,
    *,
    title: str = "Audit",
    record: dict[str, Any] | None = None,
) -> tuple[Evaluation, Regions]:
    """Audit a predictor on the file that calibrates it, and write a page about it.

    Parameters
    ----------
    given : AuditFiles
        What is audited.
    result : path
        Where the page goes, an ``.html`` file.
    title : str
        Title of the page.
    record : dict, optional
        Options to store with the page.
    """
    check_output(result, (".html",), given.files)
    before = Snapshot(*given.files)
    left = given.leave_out()
    options = {"level": given.level, "seed": given.recipe.seed}
    regions = left.regions(by=given.by, **options)
    evaluation = left.evaluate(left.risk(n_permutations=given.permutations, **options), **options)
    before.check()
    n_tuning = left.predictor.state_.n_tuning
    write_report(
        result,
        {given.recipe.method: evaluation},
        predictors=left.predictor,
        outputs=left.outputs.with_trust(left.trust),
        sets=left.sets,
        regions=regions,
        title=title,
        details={
            "Outputs": str(given.outputs),
            **({"Tuning samples": f"{n_tuning:,}, not audited"} if n_tuning else {}),
            OPTIONS_FACT: json.dumps(record or {"command": "audit", "options": {}}),
        },
    )
    return evaluation, regions
