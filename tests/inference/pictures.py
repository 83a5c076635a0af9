"""Small pictures for the tests of engines."""

from PIL import Image, ImageDraw

from uirl.images import Screenshot, screenshot


def picture(seed: int, size: tuple[int, int] = (56, 56)) -> Screenshot:
    """A coloured box somewhere on grey, different for every seed."""
    image = Image.new("RGB", size, (230, 230, 230))
    x, y = seed * 7 % (size[0] - 12), seed * 11 % (size[1] - 12)
    colour = ((seed * 53) % 256, (seed * 97) % 256, (seed * 31) % 256)
    ImageDraw.Draw(image).rectangle([x, y, x + 10, y + 10], fill=colour)
    return screenshot(image)
