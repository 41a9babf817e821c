"""`audit_file`: labelled outputs to an audit that needs no test set."""

import json
from dataclasses import dataclass, field, replace
from typing import Any, final

from trustsets._common.atomic import StrPath
from trustsets.auditing import Regions, audit, excess_risk, find_regions
from trustsets.files.calibration import Recipe, fit_trust, load_labelled, load_tuning
from trustsets.files.naming import PLAIN, TableColumns
from trustsets.files.options import OPTIONS_FACT
from trustsets.files.paths import Snapshot, check_output
from trustsets.files.source import open_outputs, read_classes
from trustsets.metrics import Evaluation
from trustsets.predictors import Predictor
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

    def calibrated(self) -> Predictor:
        """The predictor, calibrated on the samples."""
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
        return predictor.calibrate(samples.with_trust(trust), tuning=tuning)


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
    predictor = given.calibrated()
    sets, samples = predictor.leave_one_out(given.alpha), predictor.calibration_
    options: dict[str, Any] = {"level": given.level, "seed": given.recipe.seed}
    regions = find_regions(sets, samples, by=given.by, **options)
    risk = excess_risk(sets, samples, n_permutations=given.permutations, **options)
    evaluation = audit(predictor, given.alpha, sets=sets, **options)
    evaluation = replace(evaluation, more=risk.metrics)
    before.check()
    n_tuning = predictor.state_.n_tuning
    write_report(
        result,
        {given.recipe.method: evaluation},
        outputs=samples,
        sets=sets,
        trust=samples.trust,
        regions={given.recipe.method: regions},
        title=title,
        guarantee=predictor.summary(sets),
        details={
            "Outputs": str(given.outputs),
            **({"Tuning samples": f"{n_tuning:,}, not audited"} if n_tuning else {}),
            OPTIONS_FACT: json.dumps(record or {"command": "audit", "options": {}}),
        },
    )
    return evaluation, regions
