"""The policy that learns, one update, checkpoints."""

from uirl.learner.batch import Batch, collate, micro_batches
from uirl.learner.policy import Policy, PolicyValueModel, TokenScores
from uirl.learner.update import Learner
from uirl.learner.view import ResponseView, response_view
