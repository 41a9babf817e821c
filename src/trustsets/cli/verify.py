"""``trustsets verify``: check the certificate of a threshold."""

from pathlib import Path
from typing import Annotated

import typer

from trustsets.cli import console
from trustsets.cli.options import argument

__all__ = ["verify"]

NOT_VALID = 1
"""Exit code for a certificate that proves nothing."""


def verify(
    certificate: Annotated[
        Path, argument("CERTIFICATE", "Written by predictor.certificate(...).save: .json or .npz.")
    ],
) -> None:
    """Check that a certificate proves its threshold.

    The check uses nothing but the numbers in the file and NumPy: it is the
    one file trustsets/verify.py, which also runs alone. The exit code is 0
    if the certificate is valid, 1 if it is not, and 2 if it is none.

    Example:

      trustsets verify certificate.json
    """
    from trustsets.errors import InputError
    from trustsets.verify import failing_conditions, read_certificate

    try:
        numbers = read_certificate(str(certificate))
    except ValueError as error:
        raise InputError(str(error)) from error
    found = failing_conditions(numbers)
    claim = f"the threshold {numbers['threshold']:.6g} at alpha {numbers['alpha']:.6g}"
    text = f"not valid: {'; '.join(found)}" if found else f"valid: it proves {claim}"
    if console.settings.json:
        console.print_json({"valid": not found, "failing": found})
    else:
        console.print_lines([text])
    if found:
        raise typer.Exit(NOT_VALID)
