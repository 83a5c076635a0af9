"""How many pictures stand in the training sequences of an episode."""

from __future__ import annotations


def rows_of_episode(turns: int, max_images: int | None, keep_images: int | None = None) -> list[int]:
    """Return the number of pictures in each training sequence of an episode that sees one new picture per turn. Of more
    than `max_images` the newest `keep_images` stay (None: `max_images`), and every drop begins a sequence."""
    rows: list[int] = []
    kept = 0
    for _ in range(turns):
        kept += 1
        if max_images is not None and kept > max_images:
            kept = keep_images or max_images
            rows.append(kept)
        elif rows:
            rows[-1] += 1
        else:
            rows.append(1)
    return rows


def rows_within_budget(
    turns: int, max_images: int | None, keep_images: int | None, *, budget: int, picture_tokens: int, reply_tokens: int
) -> list[int]:
    """Return the same as `rows_of_episode` where a prompt holds `budget` tokens, of which a picture takes
    `picture_tokens`, and a budget drops the oldest turns one by one. How many fit depends on the length of replies, up
    to `reply_tokens` each: of all numbers that may fit, the one with the most pictures in all sequences together."""
    min_pictures = max(1, budget // (picture_tokens + reply_tokens))
    max_pictures = max(1, budget // picture_tokens)
    cases = []
    for fitting in range(min(min_pictures, turns), min(max_pictures, turns) + 1):
        dropped_by_budget = max_images is None or fitting < max_images
        cases.append(rows_of_episode(turns, *((fitting, None) if dropped_by_budget else (max_images, keep_images))))
    return max(cases, key=sum)
