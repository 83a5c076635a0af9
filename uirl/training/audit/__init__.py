"""`uirl audit`: whether what a run says of itself follows from what it recorded."""

from uirl.training.audit.audit import audit
from uirl.training.audit.report import AuditReport

__all__ = ["AuditReport", "audit"]
