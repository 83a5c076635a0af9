"""Curriculum tags of the MiniWoB++ pages: what the hand does, what the eye or the head must do, and how hard it is."""

from __future__ import annotations

from functools import cache

HANDS = ("click", "type", "drag", "scroll", "hover")
"""What a page needs of the hand; at least one stands on every page."""
NEEDS = ("read", "look", "compute", "search", "steps", "moving")
"""What else: an instruction that says which ('read'), shapes, colours or places ('look'), numbers or an order to work
out ('compute'), something to be found by opening things ('search'), more than one action ('steps'), and a screen that
changes by itself ('moving'), whose pictures a seed does not repeat."""
LEVELS = ("easy", "medium", "hard")
"""One of them: one action; a few; many, or thought."""

_PAGES = """
ascending-numbers: click look compute steps medium
bisect-angle: click look compute hard
book-flight: click type read search steps moving hard
book-flight-nodelay: click type read search steps hard
button-delay: click steps moving easy
buy-ticket: click read compute easy
chase-circle: hover look moving medium
choose-date: click read search steps hard
choose-date-easy: click read steps medium
choose-date-medium: click read search steps medium
choose-date-nodelay: click read search steps hard
choose-list: click read scroll search steps medium
circle-center: click look medium
click-button: click read easy
click-button-sequence: click read steps medium
click-checkboxes: click read steps medium
click-checkboxes-large: click read steps hard
click-checkboxes-soft: click read compute steps hard
click-checkboxes-transfer: click read steps medium
click-collapsible: click steps medium
click-collapsible-2: click read search steps hard
click-collapsible-2-nodelay: click read search steps hard
click-collapsible-nodelay: click steps medium
click-color: click read look easy
click-dialog: click easy
click-dialog-2: click read easy
click-link: click read easy
click-menu: click hover read search steps moving hard
click-menu-2: click hover read search steps moving hard
click-option: click read steps medium
click-pie: click read steps moving medium
click-pie-nodelay: click read steps medium
click-scroll-list: click scroll read search steps hard
click-shades: click read look steps hard
click-shape: click read look medium
click-tab: click read easy
click-tab-2: click read search steps medium
click-tab-2-easy: click read search steps medium
click-tab-2-hard: click read search steps hard
click-tab-2-medium: click read search steps medium
click-test: click easy
click-test-2: click read easy
click-test-transfer: click read easy
click-widget: click read look easy
copy-paste: click type steps medium
copy-paste-2: click type read steps hard
count-shape: click read look compute medium
count-sides: click look compute medium
daily-calendar: click type drag read steps hard
drag-box: drag click look steps medium
drag-circle: drag read look medium
drag-cube: drag read look steps hard
drag-items: drag read compute steps medium
drag-items-grid: drag read compute steps medium
drag-shapes: drag look steps hard
drag-shapes-2: drag read look steps medium
drag-single-shape: drag read look medium
drag-sort-numbers: drag compute steps hard
draw-circle: drag click look steps hard
draw-line: drag click read look steps medium
email-inbox: click type read search steps hard
email-inbox-delete: click read search steps medium
email-inbox-forward: click type read search steps hard
email-inbox-forward-nl: click type read search steps hard
email-inbox-forward-nl-turk: click type read search steps hard
email-inbox-important: click read search steps medium
email-inbox-nl-turk: click type read search steps hard
email-inbox-noscroll: click type read search steps hard
email-inbox-reply: click type read search steps hard
email-inbox-star-reply: click type read search steps hard
enter-date: click type read steps medium
enter-password: click type read steps medium
enter-text: click type read steps medium
enter-text-2: click type read compute steps medium
enter-text-dynamic: click type read steps medium
enter-time: click type read steps medium
find-greatest: click look compute search steps medium
find-midpoint: click look compute hard
find-word: click type read compute steps medium
focus-text: click easy
focus-text-2: click read easy
form-sequence: click drag read compute steps hard
form-sequence-2: click type read steps hard
form-sequence-3: click read steps hard
generate-number: click compute steps medium
grid-coordinate: click read look compute easy
guess-number: click type compute search steps hard
highlight-text: drag click steps medium
highlight-text-2: drag click read steps medium
hot-cold: hover click search steps hard
hover-shape: hover look moving medium
identify-shape: click look medium
login-user: click type read steps medium
login-user-popup: click type read steps hard
moving-items: click look moving hard
multi-layouts: click type read steps hard
multi-orderings: click type read steps hard
navigate-tree: click read search steps medium
number-checkboxes: click read look steps hard
odd-or-even: click compute steps medium
order-food: click read scroll steps medium
phone-book: click read search steps hard
read-table: click type read steps medium
read-table-2: click type read steps medium
resize-textarea: drag click read compute steps hard
right-angle: click look compute steps hard
scroll-text: scroll click type read steps hard
scroll-text-2: scroll click read steps medium
search-engine: click type read search steps hard
sign-agreement: click type scroll read steps hard
simon-says: click look steps moving hard
simple-algebra: click type compute steps medium
simple-arithmetic: click type compute steps medium
social-media: click read search steps medium
social-media-all: click read search steps hard
social-media-some: click read compute search steps hard
stock-market: click read compute moving hard
terminal: type read search steps moving hard
text-editor: click drag read steps hard
text-transform: click type look steps medium
tic-tac-toe: click look compute steps hard
unicode-test: click read look easy
use-autocomplete: click type read steps moving hard
use-autocomplete-nodelay: click type read steps hard
use-colorwheel: click type read look steps hard
use-colorwheel-2: click type read look steps hard
use-slider: drag click read compute steps medium
use-slider-2: drag click read compute steps hard
use-spinner: click type read compute steps medium
visual-addition: click type look compute steps medium
"""


@cache
def page_tags() -> dict[str, tuple[str, ...]]:
    """Return page name -> its tags."""
    lines = (line.partition(": ") for line in _PAGES.strip().splitlines())
    return {name: tuple(tags.split()) for name, _, tags in lines}
