"""Who says whether a task was solved: rules, a multimodal judge, or both."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from uirl.config.section import Address, Count, Fraction, Index, PathText, Positive, Section, Variable


class VerificationConfig(Section):
    """The reward of an episode is 1 where it solved its task and 0 where it did not. Where nobody can say, the episode
    is a failure of the kind "judge": it is in no advantage and no success rate."""

    key: ClassVar[str] = "verification"

    enabled: bool = False
    """false: the environment's rewards."""
    rules: PathText | None = None
    """YAML or JSON file of rules (docs/verification.md). None: the environment's own word on success."""
    judge: Address | None = None
    """Model that judges by screenshots, on an OpenAI-compatible server. None: rules alone."""
    judge_url: Address | None = None
    """Address of that server. None: the environment variable UIRL_LLM_BASE_URL, else https://api.openai.com/v1."""
    api_key_env: Variable | None = None
    """Environment variable with the server's key. None: UIRL_LLM_API_KEY; for OpenAI's own server, where that is not
    set, OPENAI_API_KEY."""
    prefer_rules: bool = True
    """Rules decide where they know; false: the judge does, and the rules where it does not."""
    ask: Literal["undecided", "always"] = "undecided"
    """When the judge is asked: where rules do not know (its answer could change nothing else), or always."""
    audit: Fraction = 0.1
    """Share of the episodes that rules decide of which the judge is asked too: that tells how good it is."""
    votes: Count = 1
    """Verdicts of the judge on one episode, of which the majority counts; a tie is an abstention."""
    key_screens: Count = 6
    """Screenshots that the judge sees with the verdict; of more, it chooses them first."""
    screen_size: Annotated[int, Field(ge=32)] = 1280
    """Longest side of these screenshots, in pixels; larger ones are shrunk."""
    timeout: Positive = 60.0
    """Time limit of a request to the judge, in seconds."""
    retries: Index = 2
    """How often a request is sent again, with growing pauses, after a lost connection, a 429 or a 5xx."""
    concurrent: Count = 8
    """Requests to the judge at the same time, of one process."""
    max_calls: Count | None = None
    """Requests to the judge in a run, also over its continuations; those beyond it are failures. None: no limit."""
    max_tokens: Count | None = None
    """Tokens of all these requests and answers, as the server counts them. None: no limit."""
    precision_limit: Fraction | None = 0.5
    """A judge is not believed where it alone speaks once the interval of its precision, over the newest 200 episodes of
    which rules knew the truth, lies below this. None: it always is."""
    correct_noise: bool = False
    """What the judge alone says is corrected for its error rates as rules found them; the reward can then lie outside
    of [0, 1]. Until rules know 10 solved and 10 unsolved episodes that the judge spoke of (it is asked of all that they
    decide), and where its two accept rates differ by less than 0.1, it gives no answer."""
    memory: PathText | None = None
    """SQLite file with the judge's answers by content and, of each run, what was spent and what it said where rules
    knew the truth. None: judge.sqlite in logging.runs_dir."""
