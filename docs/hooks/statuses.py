"""The page of statuses, from the vocabulary itself."""

from trustsets.status import Status


def status_page() -> str:
    """Say for each status what it means and whether the threshold is infinite."""
    rows = [
        f"| {status.value} | `{status.name}` "
        f"| {status.sentence[0].upper()}{status.sentence[1:]}. | "
        f"{'infinite' if status.is_infinite else 'finite'} |"
        for status in Status
    ]
    return "\n".join(
        [
            "# Statuses",
            "",
            "`sets.status` says for each sample why its threshold is what it is. `sets.describe()` "
            "and `predictor.summary(sets)` say it in words.",
            "",
            "| value | name | meaning | threshold |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )
