"""Runs that other frameworks drive (verl), and an agent on phones without a trainer."""
