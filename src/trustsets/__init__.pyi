# The public names. `__init__.py` reads this file and imports each name when it is first used.
from .auditing import audit as audit
from .basis import Basis as Basis
from .basis import Bins as Bins
from .basis import Classes as Classes
from .basis import Custom as Custom
from .basis import Groups as Groups
from .basis import Intercept as Intercept
from .basis import Polynomial as Polynomial
from .basis import PrincipalComponents as PrincipalComponents
from .errors import TrustSetsError as TrustSetsError
from .learned import Learned as Learned
from .metrics import Evaluation as Evaluation
from .metrics import compare as compare
from .metrics import evaluate as evaluate
from .monitor import Monitor as Monitor
from .outputs import ModelOutputs as ModelOutputs
from .planning import plan as plan
from .predictors import ClusteredConformal as ClusteredConformal
from .predictors import ConditionalConformal as ConditionalConformal
from .predictors import MondrianConformal as MondrianConformal
from .predictors import Predictor as Predictor
from .predictors import StandardConformal as StandardConformal
from .predictors import load as load
from .recalibration import ClassBias as ClassBias
from .recalibration import TemperatureScaling as TemperatureScaling
from .report import explore as explore
from .report import write_report as write_report
from .scores import APS as APS
from .scores import RAPS as RAPS
from .scores import SAPS as SAPS
from .scores import Score as Score
from .scores import Softmax as Softmax
from .sets import PredictionSets as PredictionSets
from .sklearn import TrustSetClassifier as TrustSetClassifier
from .statistics import Confidence as Confidence
from .statistics import Entropy as Entropy
from .statistics import Margin as Margin
from .statistics import Trust as Trust
from .status import Status as Status
from .trust import TrustScore as TrustScore

__version__: str
__all__: list[str]
