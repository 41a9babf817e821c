"""Function classes: what coverage is conditioned on."""

from trustsets.basis.base import (
    Basis,
    Custom,
    FittedBasis,
    FittedPartition,
    FittedSum,
    Intercept,
    Partition,
    Polynomial,
    PrincipalComponents,
    Sum,
)
from trustsets.basis.learned import FEWEST_TO_LEARN, BasisChoice, Learned, choose_basis
from trustsets.basis.partitions import Bins, Classes, CustomGroups, FittedBins, FittedGroups, Groups

__all__ = [
    "FEWEST_TO_LEARN",
    "Basis",
    "BasisChoice",
    "Bins",
    "Classes",
    "Custom",
    "CustomGroups",
    "FittedBasis",
    "FittedBins",
    "FittedGroups",
    "FittedPartition",
    "FittedSum",
    "Groups",
    "Intercept",
    "Learned",
    "Partition",
    "Polynomial",
    "PrincipalComponents",
    "Sum",
    "choose_basis",
]
