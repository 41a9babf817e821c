"""Two tasks that need no download, and the comparison that `trustsets demo` shows."""

from trustsets.demo.comparison import Cell, Comparison, Method, compare_methods
from trustsets.demo.tasks import TASKS, DemoTask, load

__all__ = ["TASKS", "Cell", "Comparison", "DemoTask", "Method", "compare_methods", "load"]
