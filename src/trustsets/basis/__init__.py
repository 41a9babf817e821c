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
    Product,
    Sum,
)
from trustsets.basis.labels import ClassClusters, Classes
from trustsets.basis.learned import FEWEST_TO_LEARN, BasisChoice, Learned, choose_basis
from trustsets.basis.partitions import Bins, CustomGroups, FittedBins, FittedGroups, Groups

__all__ = [
    "FEWEST_TO_LEARN",
    "Basis",
    "BasisChoice",
    "Bins",
    "ClassClusters",
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
    "Product",
    "Sum",
    "choose_basis",
]
