"""Records scikit-learn's values of metrics on seeded predictions, of two classes, of several and of numbers.

    python bench/oracle/record_metrics.py crates/manyhands/src/metrics/sklearn.json

Probabilities are rounded to two digits, so that there are ties. One class of the three is never right in `absent`.
"""

import json
import sys

import numpy as np
import sklearn
from sklearn import metrics

random = np.random.default_rng(20260102)


def classes(n, width, n_right):
    right = random.integers(0, n_right, n)
    scores = random.random((n, width)) + 0.5 * np.eye(width)[right]
    probabilities = (scores / scores.sum(axis=1, keepdims=True)).round(2).astype(np.float32)
    if width == 2:
        probabilities = np.stack([1 - probabilities[:, 1], probabilities[:, 1]], axis=1)
    return right, probabilities


def averages(right, found, averages):
    values = {}
    for name, average in averages:
        settings = {"average": average, "zero_division": 0}
        values["precision" + name] = metrics.precision_score(right, found, **settings)
        values["recall" + name] = metrics.recall_score(right, found, **settings)
        values["f1" + name] = metrics.f1_score(right, found, **settings)
    return values


def case(right, probabilities, predictions, auc, named):
    found = probabilities.argmax(axis=1)
    values = averages(right, found, named)
    values["accuracy"] = metrics.accuracy_score(right, found)
    n = probabilities.shape[1]
    values["log_loss"] = metrics.log_loss(right, probabilities, labels=list(range(n)))
    if auc is not None:
        values["auc"] = auc
    matrix = metrics.confusion_matrix(right, found, labels=list(range(n)))
    return {
        "predictions": [float(p) for p in predictions.ravel()],
        "width": int(predictions.size // len(right)),
        "right": right.tolist(),
        "values": values,
        "confusion": matrix.tolist(),
    }


ALL = [("", "macro"), (" macro", "macro"), (" micro", "micro"), (" weighted", "weighted")]
right, two = classes(60, 2, 2)
auc = metrics.roc_auc_score(right, two[:, 1])
binary = [("", "binary"), (" macro", "macro"), (" micro", "micro"), (" weighted", "weighted")]
recorded = {"scikit-learn": sklearn.__version__, "cases": {}}
recorded["cases"]["one probability"] = case(right, two, two[:, 1], auc, binary)
recorded["cases"]["two classes"] = case(right, two, two, auc, binary)
right, four = classes(80, 4, 4)
# The mean over classes of each against the rest, on probabilities that need not sum to 1 exactly.
auc = float(np.mean([metrics.roc_auc_score(right == c, four[:, c]) for c in range(4)]))
recorded["cases"]["four classes"] = case(right, four, four, auc, ALL)
right, three = classes(30, 3, 2)
recorded["cases"]["absent"] = case(right, three, three, None, ALL)

right = (random.random(40) * 20 - 3).astype(np.float32)
found = (right + random.normal(0, 2, 40)).astype(np.float32)
wide = (right.astype(np.float64), found.astype(np.float64))
recorded["cases"]["numbers"] = {
    "predictions": [float(p) for p in found],
    "right": [float(t) for t in right],
    "values": {
        "rmse": metrics.root_mean_squared_error(*wide),
        "mae": metrics.mean_absolute_error(*wide),
        "r2": metrics.r2_score(*wide),
    },
}

with open(sys.argv[1], "w") as file:
    json.dump(recorded, file)
    file.write("\n")
