"""Named numbers: how many become one, how they are written down, and how sure a success rate is."""

from uirl.metrics.reduction import (
    NONFINITE,
    REDUCTION_OF_PREFIX,
    REDUCTION_OF_SUFFIX,
    Metrics,
    Reduction,
    plain_row,
    reduction_of,
)
from uirl.metrics.success_rate import (
    by_instance,
    clopper_pearson,
    clustered_interval,
    mean_pass_at_k,
    pass_at_k,
    success_interval,
)
from uirl.metrics.trackers import (
    PHASES,
    TRACKERS,
    MetricsLogger,
    MlflowTracker,
    TensorBoardTracker,
    Tracker,
    TrackioTracker,
    WandbTracker,
    read_metrics,
    tracker_package,
)

__all__ = [
    "NONFINITE",
    "PHASES",
    "REDUCTION_OF_PREFIX",
    "REDUCTION_OF_SUFFIX",
    "TRACKERS",
    "Metrics",
    "MetricsLogger",
    "MlflowTracker",
    "Reduction",
    "TensorBoardTracker",
    "Tracker",
    "TrackioTracker",
    "WandbTracker",
    "by_instance",
    "clopper_pearson",
    "clustered_interval",
    "mean_pass_at_k",
    "pass_at_k",
    "plain_row",
    "read_metrics",
    "reduction_of",
    "success_interval",
    "tracker_package",
]
