"""For anyone with a classifier and data kept aside: prediction sets in five lines."""

from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from trustsets import TrustSetClassifier

X, y = load_digits(return_X_y=True)
X_fit, X_test, y_fit, y_test = train_test_split(X / 16, y, test_size=0.3, random_state=0)
X_train, X_kept, y_train, y_kept = train_test_split(X_fit, y_fit, test_size=0.5, random_state=0)

model = LogisticRegression().fit(X_train, y_train)
wrapped = TrustSetClassifier(model, prefit=True).calibrate(X_kept, y_kept)
sets = wrapped.predict_set(X_test, alpha=0.1)

print(f"{sets.covers(y_test).mean():.1%} of the sets hold the true digit (asked for: 90% or more).")
print(f"A set has {sets.sizes.mean():.2f} digits on average; the first is {sets[0].tolist()}.")
