"""The process that code of the policy runs in. Everything here is imported by that process alone."""
