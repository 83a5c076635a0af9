"""What an agent said and was told, from the endpoint to the file for fine-tuning."""

from __future__ import annotations

import json
from pathlib import Path

from tests.serving.worlds import ADD, CALLS_ADD, ask, client_of, says, user, with_tools
from uirl.inference import LoadedModel
from uirl.serving import ModelEndpoint
from uirl.storage import TrajectoryStore, export_sft


async def test_an_export_holds_the_conversations_that_the_agent_had(lm: LoadedModel, tmp_path: Path) -> None:
    """System and user apart, branches apart, and nothing that the client never saw."""
    loaded = with_tools(lm)
    system = {"role": "system", "content": "be quick"}
    begin = [system, user("Q1")]
    said = ["one", "two", "three", "two again", "four", "no", CALLS_ADD]
    async with ModelEndpoint(says(loaded, *said), loaded) as endpoint:
        session = endpoint.session("branches")
        client = client_of(session)
        first = (await ask(client, begin)).message
        second, _ = [(await ask(client, [*begin, first, user(question)])).message for question in ("Q2", "Q3")]
        # the branch has ended when what it branched from goes on
        await ask(client, [*begin, first, user("Q2"), second, user("more")])
        await ask(client, [user("so far: Q1"), {"role": "assistant", "content": "ok"}, user("Q4")])
        branches = session.finish(1.0, success=True)
        session = endpoint.session("required")
        await ask(client_of(session), [user("1 + 2")], tools=[ADD, ADD], tool_choice="required")
        required = session.finish(1.0, success=True)

    def exported(each_reply: bool) -> list[list[tuple[str, str]]]:
        path = tmp_path / "x.jsonl"
        with TrajectoryStore(tmp_path / f"{each_reply}.sqlite") as store:
            store.add_many([branches, required], step=1)
            export_sft(store, path, each_reply=each_reply)
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        whole = [row.get("messages") or row["prompt"] + row["completion"] for row in rows]
        return [[(one["role"], one["content"]) for one in messages] for messages in whole]

    opening = [("system", "be quick"), ("user", "Q1"), ("assistant", "one")]
    ends = [
        [*opening, ("user", "Q3"), ("assistant", "three")],
        [*opening, ("user", "Q2"), ("assistant", "two"), ("user", "more"), ("assistant", "two again")],
        [("user", "so far: Q1"), ("assistant", "ok"), ("user", "Q4"), ("assistant", "four")],
        [("user", "1 + 2"), ("assistant", required.turns[-1].action.text)],
    ]
    assert exported(each_reply=False) == ends
    assert exported(each_reply=True) == [ends[0], opening, ends[1][:5], *ends[1:]]
