"""Watch the coverage of a calibrated predictor over time.

Samples are measured (`samples`), ranked among those before them (`ranks`) and bet on (`evidence`);
what was counted so far is a stored state (`state`), and `verdict` says it in words. `runs` does
all this for files, with a history and a page.
"""

from trustsets.monitor.verdict import Verdict
from trustsets.monitor.watch import Monitor

__all__ = ["Monitor", "Verdict"]
