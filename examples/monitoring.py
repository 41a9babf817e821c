"""Is coverage still what it was, next month?

Each day a job like one of cron predicts new samples, whose labels come a day later, and continues
a monitor from its file. After an alarm the model is calibrated again on the latest labels. The same
steps on the command line: ``trustsets monitor model.trustsets day.npz --state watch.trustsets``.
"""

from pathlib import Path

import numpy as np

from trustsets import ConditionalConformal, ModelOutputs, Monitor, Polynomial, load
from trustsets.statistics import Confidence

STATE, MODEL = Path("watch.trustsets"), Path("model.trustsets")
rng = np.random.default_rng(0)


def new_samples(n: int, day: int = 0) -> ModelOutputs:
    """Outputs of a classifier of five classes that gets worse on day 6."""
    logits = 2.0 * rng.normal(size=(n, 5))
    noise = rng.gumbel(size=logits.shape) * (2.0 if day >= 6 else 1.0)
    return ModelOutputs(logits=logits, labels=(logits + noise).argmax(axis=1))


def begin(calibration: ModelOutputs) -> None:
    """Calibrate, save the model, and begin to watch it."""
    basis = Polynomial(degree=2, of=(Confidence(),))
    predictor = ConditionalConformal(basis=basis).calibrate(calibration)
    predictor.save(MODEL)
    Monitor(predictor, alpha=0.1, reference=calibration, false_alarm=0.01).save(STATE)


def daily_job(day: int, outputs: ModelOutputs, earlier: ModelOutputs | None) -> bool:
    """Predict today's samples, label yesterday's; whether there is an alarm."""
    monitor = Monitor.load(STATE, load(MODEL))
    if earlier is not None:
        ids = [f"{day - 1}-{row}" for row in range(len(earlier))]
        monitor.label(ids, earlier.labels, batch=f"labels of day {day - 1}")
    unlabelled = ModelOutputs(logits=outputs.logits)
    ids = [f"{day}-{row}" for row in range(len(outputs))]
    # Given again after a crash, a batch of this name counts once.
    monitor.observe(unlabelled, ids=ids, batch=f"day {day}").save(STATE)
    alarm = monitor.verdict().alarm
    print(f"day {day:2}: {'ALARM' if alarm else 'no alarm'}")
    return alarm


begin(new_samples(2000))
yesterday = None
for today in range(1, 13):
    outputs = new_samples(400, today)
    if daily_job(today, outputs, yesterday) and yesterday is not None:
        print(Monitor.load(STATE, load(MODEL)).verdict().summary())
        print("Calibrate on the latest labelled samples, and begin a new monitor.")
        begin(yesterday)
    yesterday = outputs
