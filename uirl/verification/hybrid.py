"""Rules and judge together: who decides, where they disagree, and what that says of the judge."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from uirl.errors import JudgeFailure, is_round
from uirl.runtime.event_loop import EventLoopThread
from uirl.runtime.limits import shown
from uirl.types import Trajectory, Verdict
from uirl.verification.client import (
    BUDGET,
    CallLimits,
    JudgeClient,
    cause_of,
    default_key_variable,
    default_url,
    judge_failure,
)
from uirl.verification.evidence import Evidence, Pictures
from uirl.verification.judge import Judge, JudgeOptions, JudgeVerdict, digest
from uirl.verification.memory import JudgeMemory
from uirl.verification.outcome import Finding, Outcome
from uirl.verification.quality import ENOUGH, MIN_GAP, Channel, Heard, JudgeQuality, answers_that_matter
from uirl.verification.rules import RuleBook

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

RULE, JUDGE, ASKED, SAVED, NO_ANSWER, NOBODY, PROCESS = (
    f"verification/{name}" for name in ("rule", "judge", "asked", "saved", "no_answer", "nobody", "process")
)
"""Numbers of an episode (`Trajectory.metrics`): what the rules and the judge said (1 passed, 0 failed, absent:
nothing), whether the judge was asked (1), that was saved (1) or it gave no answer (1), whether it is unsolved because
nobody said yes or no (1), and how well the agent went about it, as the judge says."""


TRIES = 3
"""So often the judge is asked about an episode that it does not answer, while it answers about others: one of several
answers may be lost by chance."""


@dataclass(frozen=True, slots=True)
class HybridOptions:
    """Who is asked, and who is believed."""

    ask: Literal["undecided", "always"] = "undecided"
    """When the judge is asked: where the rules say 'unknown', or always."""
    audit: float = 0.1
    """Share of the episodes that rules decide of which the judge is asked too, to know how good it is."""
    precision_limit: float | None = None
    """See `JudgeQuality.limit`."""
    window: int = 200
    """See `JudgeQuality.window`."""
    correct_noise: bool = False
    """What the judge alone says is corrected for its error rates (`Channel`). Until they are known, and where they say
    that its word says nothing, it gives no answer."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found of one episode."""

    score: float
    """1 or 0; of a corrected judge any number."""
    passed: bool
    reason: str
    by: Literal["rules", "judge"]
    rule: Outcome
    judge: JudgeVerdict | None
    """None: it was not asked, or gave no answer."""
    failure: str = ""
    """The cause for which it gave no answer; empty: it did, or was not asked."""

    @property
    def verdict(self) -> Verdict:
        """The same as the record of an episode has it."""
        return Verdict(self.score, self.passed, self.reason, self.by)


class HybridVerifier:
    """Judges episodes by rules and a multimodal judge; give it to a trainer as its `reward_fn`.

    Where the preferred one of the two does not know, the other decides. Where neither does, the episode is not solved:
    what it shows, and so whether it can be judged, is the policy's doing. JudgeFailure is raised where the judge is
    needed and answers nobody: what the world alone can cause is no score.
    """

    def __init__(
        self,
        judge_model: str | Judge | None = None,
        prefer_rule_verification: bool = True,
        *,
        rules: RuleBook | str | os.PathLike[str] | None = None,
        options: HybridOptions | None = None,
        from_config: bool = False,
    ) -> None:
        """Set up; nobody is asked yet.

        Args:
            judge_model: Name of a model on the server in `UIRL_LLM_BASE_URL` (not set: OpenAI's, with the key in
                `OPENAI_API_KEY`), or a `Judge`; None: rules alone.
            prefer_rule_verification: Rules decide where they know; false: the judge does.
            rules: Rules or their file; None: the environment's own word on success.
            options: None: the defaults.
            from_config: It is the one that a config describes, so that other processes can make their own.
        """
        self.from_config = from_config
        self.options = options or HybridOptions()
        self.judge = judge_named(judge_model) if isinstance(judge_model, str) else judge_model
        self.prefer_rules = prefer_rule_verification
        if rules is None:
            self.rules = RuleBook.of_environment()
        else:
            self.rules = rules if isinstance(rules, RuleBook) else RuleBook.from_file(rules)
        self.counts: Counter[str] = Counter()
        """'rules', 'judge': who decided; 'asked', 'saved': calls of the judge for an episode; 'agreed', 'disagreed';
        'no answer'."""
        self._believed = True
        self._loop: EventLoopThread | None = None

    # -- of one episode ----------------------------------------------------------------------------------------

    def verify(self, task_name: str, task_goal: str, trajectory: Trajectory) -> tuple[float, str]:
        """Return (score, reason) of an episode of the task. Raises JudgeFailure where the judge answers nobody."""
        task = replace(trajectory.task, id=task_name, goal=task_goal)
        found = self._run(self.verify_evidence(Evidence(replace(trajectory, task=task))))
        return found.score, found.reason

    async def judge_episode(
        self, trajectory: Trajectory, environment: Any = None, pictures: Pictures | None = None
    ) -> Verdict:
        """Return the verdict on an episode that has just ended, and note in its `metrics` who said what.

        `pictures` finds those that it names. Raises JudgeFailure where the judge answers nobody.
        """
        return (await self.verify_evidence(Evidence(trajectory, environment, pictures))).verdict

    def __call__(self, trajectory: Trajectory, environment: Any = None) -> float:
        """Return the score, as a plain reward function does; the verdict stands in the trajectory then. Raises
        JudgeFailure where the judge answers nobody."""
        trajectory.verdict = self._run(self.judge_episode(trajectory, environment))
        return trajectory.verdict.score

    async def verify_evidence(self, evidence: Evidence, *, worth_asking: bool = True) -> Verification:
        """Return what is found of an episode. `worth_asking` False: the judge's answer could change nothing, so the
        rules alone speak. Raises JudgeFailure where the judge answers nobody, and where it would have to be asked."""
        record = evidence.trajectory
        rule = self.rules.ask(evidence)
        if rule.outcome.passed is not None:
            record.metrics[RULE] = float(rule.outcome.passed)
        said, failure = await self._ask(evidence, rule, worth_asking)
        if said is not None:
            if said.votes.asked:
                record.metrics[PROCESS] = said.process
            if said.outcome.passed is not None:
                record.metrics[JUDGE] = float(said.outcome.passed)
                self._compare(record, rule, said)
        if rule.outcome is Outcome.UNKNOWN and self.judge is not None and not worth_asking:
            raise judge_failure(
                "not asked", f"the rules do not know ({rule.reason}), and an answer could change nothing"
            )
        return self._decide(record, rule, said, failure)

    async def verify_group(self, group: Sequence[Evidence]) -> list[Verification | JudgeFailure]:
        """Return what is found of the episodes of one group, or why nothing is, in their order. The judge is asked only
        where its answer can change an advantage within the group (`answers_that_matter`); of members that are the same
        one is judged, and the others are what it is."""
        rules = [self.rules.ask(evidence).outcome.passed for evidence in group]
        digests = [digest(evidence.trajectory) for evidence in group]
        matter = set(answers_that_matter([None if r is None else float(r) for r in rules], digests))
        found: dict[str, Verification | JudgeFailure] = {}
        results: list[Verification | JudgeFailure] = []
        for i, evidence in enumerate(group):
            if rules[i] is None and i not in matter and digests[i] in found:
                self._save(evidence.trajectory)
                results.append(found[digests[i]])
                continue
            try:
                result: Verification | JudgeFailure = await self.verify_evidence(evidence, worth_asking=i in matter)
            except JudgeFailure as error:
                result = error
            found[digests[i]] = result
            results.append(result)
        return results

    def quality(self) -> JudgeQuality:
        """Return how good the judge is, by the newest episodes of which rules knew the truth."""
        window, heard = self.options.window, []
        if self.judge is not None:
            heard = self.judge.client.memory.heard(self._judge_in_run, window)
        return JudgeQuality(window, self.options.precision_limit, heard)

    async def close(self) -> None:
        """Close the connections to the judge's server, and its memory."""
        if self.judge is not None:
            await self.judge.close()

    # -- parts of it -------------------------------------------------------------------------------------------

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            self._loop = EventLoopThread("uirl-verifier")
        return self._loop.run(coroutine)

    @property
    def _judge_in_run(self) -> str:
        """Under which name is remembered what the judge said: episodes and groups of other runs have the same ids, and
        of other tasks the judge may know more or less."""
        assert self.judge is not None
        return f"{self.judge.name} in {self.judge.client.budget}"

    async def _ask(
        self, evidence: Evidence, rule: Finding, worth_asking: bool
    ) -> tuple[JudgeVerdict | None, JudgeFailure | None]:
        """Return what the judge says, or why it gave no answer; (None, None): it was not asked. Where its answer is
        needed and it answers about others alone, it abstains: that is the doing of this episode."""
        if self.judge is None:
            return None, None
        record, decided = evidence.trajectory, rule.outcome is not Outcome.UNKNOWN
        useful = self._is_believed() and (not decided or not self.prefer_rules)
        wanted = useful or self.options.ask == "always" or self._learns_rates()
        if not worth_asking or not (wanted or (decided and _drawn(record.id, self.options.audit))):
            self._save(record)
            return None, None
        self.counts["asked"] += 1
        record.metrics[ASKED] = 1.0
        needed = useful and not decided
        for _ in range(TRIES):
            try:
                return await self.judge.judge(evidence), None
            except JudgeFailure as error:
                failure = error
            if not needed or cause_of(str(failure)) == BUDGET or not await self.judge.answers_about_beginning(evidence):
                self._note_no_answer(record, failure)
                return None, failure
        self._note_no_answer(record, failure)
        return JudgeVerdict.abstaining(f"the judge answers about others and not about this episode: {failure}"), None

    def _note_no_answer(self, record: Trajectory, failure: JudgeFailure) -> None:
        record.metrics[NO_ANSWER] = 1.0
        self.counts["no answer"] += 1
        self.counts[f"no answer: {cause_of(str(failure))}"] += 1

    def _learns_rates(self) -> bool:
        """Return whether the judge is asked of all that rules decide, since its error rates are not known yet."""
        if not self.options.correct_noise:
            return False
        newest = self.quality().newest
        return min(newest.solved, newest.unsolved) < ENOUGH

    def _save(self, record: Trajectory) -> None:
        self.counts["saved"] += 1
        record.metrics[SAVED] = 1.0

    def _compare(self, record: Trajectory, rule: Finding, said: JudgeVerdict) -> None:
        """Remember what both said of one episode."""
        truth, passed = rule.outcome.passed, said.outcome.passed
        if truth is None or passed is None:
            return
        assert self.judge is not None
        heard = Heard(record.task.id, truth, passed, record.group_id or record.id)
        self.judge.client.memory.hear(self._judge_in_run, record.id, heard)
        self.counts["agreed" if truth == passed else "disagreed"] += 1
        if truth != passed and is_round(self.counts["disagreed"]):
            _LOG.warning(
                "rules and judge disagree (time %d) on %s of task %s: the rules say %s (%s), the judge %s (%s)",
                *(self.counts["disagreed"], shown(record.id), shown(record.task.id)),
                *(rule.outcome.value, shown(rule.reason, 200), said.outcome.value, shown(said.reason, 200)),
            )

    def _decide(
        self, record: Trajectory, rule: Finding, said: JudgeVerdict | None, failure: JudgeFailure | None
    ) -> Verification:
        by_rule = rule.outcome.passed
        by_judge = None if said is None else said.outcome.passed
        why = "" if failure is None else cause_of(str(failure))
        if by_rule is not None and (self.prefer_rules or by_judge is None or not self._is_believed()):
            self.counts["rules"] += 1
            return Verification(float(by_rule), by_rule, rule.reason, "rules", rule.outcome, said, why)
        if failure is not None and self._is_believed():
            raise failure
        if by_judge is None or said is None or not self._is_believed():
            return replace(self._unsolved(record, rule, said), failure=why)
        score = self._corrected(float(by_judge), record.group_id or record.id)
        self.counts["judge"] += 1
        return Verification(score, score > 0.5, said.reason, "judge", rule.outcome, said)

    def _unsolved(self, record: Trajectory, rule: Finding, said: JudgeVerdict | None) -> Verification:
        """Return that an episode is not solved, of which neither rules nor a judge that is believed say yes or no."""
        believed, score = self._is_believed(), 0.0
        if not believed:
            limit = f"verification.precision_limit {self.options.precision_limit}"
            why = f"the judge is not believed alone: {_precision(self.quality())} ({limit})"
        elif said is None:
            why = "nobody else was asked"
        else:
            group = record.group_id or record.id  # saying nothing earns what the worse word does, whichever that is
            why, score = said.reason, min(self._corrected(word, group) for word in (0.0, 1.0))
        reason = f"not solved as far as anybody can say: the rules do not know ({rule.reason}), and {why}"
        record.metrics[NOBODY] = 1.0
        self.counts["nobody"] += 1
        if is_round(self.counts["nobody"]):
            _LOG.warning("an episode counts as not solved (time %d): %s", self.counts["nobody"], shown(reason, 400))
        by: Literal["rules", "judge"] = "judge" if believed and said is not None else "rules"
        return Verification(score, False, reason, by, rule.outcome, said)

    def _is_believed(self) -> bool:
        if self.options.precision_limit is None:
            return True
        quality = self.quality()
        if quality.believed != self._believed:
            self._believed = quality.believed
            _LOG.warning(
                "the judge %s believed alone: %s; the limit is %g",
                "is" if self._believed else "is no longer",
                _precision(quality),
                self.options.precision_limit,
            )
        return self._believed

    def _corrected(self, score: float, group: str) -> float:
        """Return the score, corrected by the same rates in the whole group. Raises JudgeFailure where the judge's word
        cannot be corrected: it is not taken for that of a judge which never errs."""
        if not self.options.correct_noise:
            return score
        assert self.judge is not None
        newest = self.quality().newest
        known = Channel.of(newest)
        rates = None if known is None else (known.true_accept_rate, known.false_accept_rate)
        settled = self.judge.client.memory.settle(self._judge_in_run, group, rates)
        if settled is None:
            raise judge_failure(
                "uncorrected",
                f"its error rates are not known: rules know the truth of {newest.solved} solved and {newest.unsolved} "
                f"unsolved episodes that it spoke of, expected {ENOUGH} of each and accept rates that differ by "
                f"{MIN_GAP:g}; let rules decide more, or set verification.correct_noise=false",
            )
        return Channel(*settled).corrected(score)


def judge_named(model: str) -> Judge:
    """Return the judge of this name on the server in `UIRL_LLM_BASE_URL`, else on OpenAI's."""
    url = default_url()
    client = JudgeClient(model, url, default_key_variable(url), CallLimits(), JudgeMemory())
    return Judge(client, JudgeOptions())


def _drawn(id: str, share: float) -> bool:
    """Return whether an episode is drawn: by its id, so that it is the same whoever asks."""
    return int.from_bytes(hashlib.blake2b(id.encode(), digest_size=7).digest(), "big") < share * 2**56


def _precision(quality: JudgeQuality) -> str:
    newest = quality.newest
    if newest.precision is None or newest.precision_interval is None:
        return "nothing is known of its precision"
    low, high = newest.precision_interval
    instances = sum(one.accepts > 0 for one in newest.by_instance)
    counted = f"{newest.accepts} accepted episodes of {instances} instances"
    return f"precision {newest.precision:.2f} [{low:.2f}, {high:.2f}] of {counted}"
