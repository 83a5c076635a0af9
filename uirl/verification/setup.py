"""A config -> its verifier."""

from __future__ import annotations

from pathlib import Path

from uirl.config import LoggingConfig, VerificationConfig
from uirl.errors import ConfigError
from uirl.verification.client import CallLimits, JudgeClient, default_key_variable, default_url
from uirl.verification.hybrid import HybridOptions, HybridVerifier
from uirl.verification.judge import Judge, JudgeOptions, ScreenLimits
from uirl.verification.memory import JudgeMemory
from uirl.verification.rules import RuleBook

MEMORY = "judge.sqlite"
"""File of the judge's memory in the folder of the runs."""


def verifier_of(settings: VerificationConfig, logging: LoggingConfig, run: str) -> HybridVerifier | None:
    """Return the verifier that `settings` describe; None: it is not enabled. `logging`, `run`: see `judge_of`.

    Raises ConfigError for rules that cannot be read, and for rules that leave open what nobody else could say.
    """
    if not settings.enabled:
        return None
    rules = RuleBook.of_environment() if settings.rules is None else RuleBook.from_file(settings.rules)
    judge = None if settings.judge is None else judge_of(settings, logging, run)
    if judge is None and (undecided := rules.undecided()):
        raise ConfigError(
            f"verification.rules: {settings.rules} holds checks whose no is 'unknown' ({', '.join(undecided)}), and "
            "there is no judge, so that an episode which they do not accept would have no score; declare no: decisive, "
            "or name a judge (verification.judge)"
        )
    options = HybridOptions(
        ask=settings.ask,
        audit=settings.audit,
        precision_limit=settings.precision_limit,
        correct_noise=settings.correct_noise,
    )
    return HybridVerifier(judge, settings.prefer_rules, rules=rules, options=options, from_config=True)


def judge_of(settings: VerificationConfig, logging: LoggingConfig, run: str) -> Judge:
    """Return the judge of the section `verification`. Raises ConfigError where it names none.

    `logging` says where its memory lies; `run`: name of the run for which calls are booked and answers compared.
    """
    if settings.judge is None:
        raise ConfigError("verification.judge names no model; set it to one that the server knows")
    url = settings.judge_url or default_url()
    client = JudgeClient(
        settings.judge,
        url,
        settings.api_key_env or default_key_variable(url),
        CallLimits(settings.timeout, settings.retries, settings.concurrent, settings.max_calls, settings.max_tokens),
        JudgeMemory(logging.at(settings.memory or str(Path(logging.runs_dir) / MEMORY))),
        budget=run,
    )
    return Judge(
        client, JudgeOptions(settings.votes, screens=ScreenLimits(settings.key_screens, size=settings.screen_size))
    )
