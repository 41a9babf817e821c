"""Three tasks that need no download, and the comparison that `trustsets demo` shows.

A task is a function of a seed. It trains a network on a part of its data and returns the
network's outputs on that part and on the rest, as a `DemoTask`.
"""

from trustsets.demo.comparison import compare_methods
from trustsets.demo.digits import digits_task
from trustsets.demo.library import library_task
from trustsets.demo.results import MethodResult, TaskResult
from trustsets.demo.simulated import simulated_task
from trustsets.demo.task import DemoTask

__all__ = [
    "TASKS",
    "DemoTask",
    "MethodResult",
    "TaskResult",
    "compare_methods",
    "digits_task",
    "library_task",
    "simulated_task",
]

TASKS = {"digits": digits_task, "library": library_task, "simulated": simulated_task}
