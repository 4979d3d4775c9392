"""The many ways in which people write the same request."""

from collections.abc import Sequence
from random import Random

IMPERATIVES = (
    ("{X}.", 14), ("{X}", 7), ("{X}!", 2), ("Please {x}.", 5), ("{X}, please.", 3),
    ("{X} please", 3), ("Can you {x}?", 6), ("Could you {x}?", 3), ("Could you please {x}?", 3),
    ("Can you please {x}?", 2), ("I want you to {x}.", 2), ("I would like you to {x}.", 1),
    ("I'd like you to {x}.", 1), ("Now {x}.", 2), ("Ok, {x}.", 1), ("Okay, now {x}.", 1),
    ("Hey, {x}.", 1), ("{X} for me.", 1), ("Would you {x}?", 1), ("Will you {x}?", 1),
    ("Hi, {x}.", 1), ("Hi! Can you {x}?", 1), ("Hello, could you {x}?", 1), ("Then {x}.", 1),
    ("Go ahead and {x}.", 1), ("I need you to {x}.", 1), ("Let's see. {X}.", 1),
    ("Are you able to {x}?", 1), ("Try to {x}.", 1), ("Hello! {X}.", 1), ("{X}. Thank you!", 1),
)  # fmt: skip
QUESTIONS = (
    ("{X}?", 30), ("{X}", 7), ("Hey, {x}?", 1), ("Tell me, {x}?", 2), ("Please tell me, {x}?", 1),
    ("So {x}?", 1), ("And {x}?", 2), ("Quick question: {x}?", 1), ("{X}, please?", 1),
    ("Hi! {X}?", 1), ("Hello, {x}?", 1), ("Ok, {x}?", 1), ("I wonder, {x}?", 1), ("Now, {x}?", 1),
    ("Can you tell me: {x}?", 1), ("Do you know: {x}?", 1), ("I have a question. {X}?", 1),
    ("Question: {x}?", 1), ("{X}??", 1), ("Hello! {X}?", 1), ("{X}? Thanks!", 1),
)  # fmt: skip
# Wishes that start with one of these are no orders: nobody says "please a story".
NOT_ORDERS = frozenset(
    ("i", "i'd", "a", "an", "another", "story", "can", "do", "joke", "any", "one", "once", "again",
     "more", "the", "please", "it")
)  # fmt: skip
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def capitalize(text: str) -> str:
    """Only the first letter changes."""
    return text[:1].upper() + text[1:]


def order(rng: Random, wish: str) -> str:
    """`tell me a story` as somebody would write it."""
    if wish.split(" ", 1)[0].lower() in NOT_ORDERS:
        return remark(rng, wish + rng.choice(("", ".", ", please.", " please", "!", "?")))
    return _roughen(rng, _pick(rng, IMPERATIVES).format(x=wish, X=capitalize(wish)))


def question(rng: Random, asked: str) -> str:
    """`what is a cat` as somebody would write it."""
    if rng.random() < 0.3:
        asked = asked.replace("what is", "what's").replace("What is", "What's")
    return _roughen(rng, _pick(rng, QUESTIONS).format(x=asked, X=capitalize(asked)))


def remark(rng: Random, text: str) -> str:
    """A text as it stands, but for case, points and slips of the finger."""
    return _roughen(rng, capitalize(text))


def made_up_word(rng: Random) -> str:
    """A word that nobody knows: `zorbel`."""
    onsets = ("b", "d", "f", "gr", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "bl", "tr",
              "sh", "ch", "kl", "sn", "w", "j", "h", "st", "qu", "th")  # fmt: skip
    rimes = ("a", "e", "i", "o", "u", "ar", "el", "in", "om", "ub", "ax", "ig", "or", "une", "ean",
             "ex", "ook", "imp", "ation", "on", "us", "ity")  # fmt: skip
    return "".join(rng.choice(onsets) + rng.choice(rimes) for _ in range(rng.randint(2, 3)))


def _pick(rng: Random, weighted: Sequence[tuple[str, int]]) -> str:
    return rng.choices([text for text, _ in weighted], [weight for _, weight in weighted])[0]


def _roughen(rng: Random, text: str) -> str:
    if rng.random() < 0.25:
        text = text.rstrip(".?!")
    case = rng.random()
    if case < 0.3:
        text = text.lower()
    elif case < 0.32:
        text = text.upper()
    if rng.random() < 0.04:
        text = _mistype(rng, text)
    return text.strip()


def _mistype(rng: Random, text: str) -> str:
    """One letter is missing, doubled, wrong or swapped with the next; digits stay."""
    places = [i for i, char in enumerate(text) if char.lower() in LETTERS]
    if len(places) < 6:
        return text
    i = rng.choice(places[1:-1])
    return rng.choice(
        (
            text[:i] + text[i + 1 :],
            text[:i] + text[i] + text[i:],
            text[:i] + rng.choice(LETTERS) + text[i + 1 :],
            text[:i] + text[i + 1] + text[i] + text[i + 2 :],
        )
    )
