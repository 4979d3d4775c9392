"""Sums, counting and comparing, all with small numbers."""

from random import Random

from deploy.demo_model.conversation import Exchange
from deploy.demo_model.lexicon import ITEMS, NUMBER_WORDS
from deploy.demo_model.phrasing import order, question, remark
from deploy.demo_model.story_words import NAMES

MAX_OPERAND = 20
MAX_FACTOR = 10
ASKS = {
    "+": (
        "what is {a} + {b}", "what is {a} plus {b}", "how much is {a} + {b}", "{a}+{b}",
        "{a} + {b}", "{a} plus {b}", "what is the sum of {a} and {b}", "what does {a} + {b} equal",
        "how much is {a} plus {b}", "what is {a}+{b}", "{a} + {b} =", "{a}+{b}=",
        "what do you get if you add {a} and {b}", "what is {a} and {b}", "{a} + {b} = ?",
        "what is the result of {a} + {b}", "what is {a}+{b} equal to",
    ),
    "-": (
        "what is {a} - {b}", "what is {a} minus {b}", "how much is {a} - {b}", "{a}-{b}",
        "{a} - {b}", "{a} minus {b}", "how much is {a} minus {b}", "what is {a}-{b}", "{a} - {b} =",
        "{a}-{b}=", "what is the difference between {a} and {b}", "what is {a} take away {b}",
        "what does {a} - {b} equal", "{a} - {b} = ?", "what is {a} less {b}",
        "what is the result of {a} - {b}",
    ),
    "x": (
        "what is {a} x {b}", "what is {a} times {b}", "how much is {a} * {b}", "{a}*{b}",
        "{a} times {b}", "what is {a} multiplied by {b}", "what is {a} * {b}", "{a} x {b}",
        "what is the product of {a} and {b}", "what is {a}*{b}", "how much is {a} times {b}",
        "{a} * {b} =", "what is {a}x{b}",
    ),
}  # fmt: skip
ORDERS = {
    "+": (
        "add {a} and {b}", "calculate {a} + {b}", "compute {a} + {b}", "solve {a} + {b}",
        "add {b} to {a}", "tell me what {a} + {b} is", "tell me the sum of {a} and {b}",
        "calculate {a}+{b}", "work out {a} plus {b}",
    ),
    "-": (
        "subtract {b} from {a}", "calculate {a} - {b}", "compute {a} - {b}", "solve {a} - {b}",
        "take {b} away from {a}", "tell me what {a} - {b} is", "take {b} from {a}",
    ),
    "x": (
        "multiply {a} and {b}", "calculate {a} * {b}", "multiply {a} by {b}", "compute {a} x {b}",
    ),
}  # fmt: skip
COUNT_UP = (
    "count to {n}", "count from 1 to {n}", "count up to {n}", "count until {n}",
    "list the numbers from 1 to {n}", "count from one to {n}", "say the numbers from 1 to {n}",
    "write the numbers 1 to {n}", "count for me to {n}", "count slowly to {n}",
)  # fmt: skip
COUNT_DOWN = (
    "count down from {n}", "count backwards from {n}", "count from {n} to 1",
    "count down from {n} to 1", "count from {n} down to 1",
)  # fmt: skip


def sums(rng: Random) -> Exchange:
    """Two numbers, added, taken away or multiplied."""
    sign = rng.choices("+-x", (10, 9, 4))[0]
    a, b = _operands(rng, sign)
    told = Exchange.of(_asked(rng, a, b, sign), f"{a} {sign} {b} = {_result(a, b, sign)}.")
    if rng.random() < 0.85:
        return told
    sign = rng.choices("+-x", (10, 9, 4))[0]
    a, b = _operands(rng, sign)
    asks = (f"and {a} {sign} {b}?", f"what about {a} {sign} {b}?", f"and {a}{sign}{b}?")
    more = f"{a} {sign} {b} = {_result(a, b, sign)}."
    return told.then(Exchange.of(remark(rng, rng.choice(asks)), more))


def _operands(rng: Random, sign: str) -> tuple[int, int]:
    largest = MAX_FACTOR if sign == "x" or rng.random() < 0.3 else MAX_OPERAND
    a, b = rng.randint(0, largest), rng.randint(0, largest)
    if sign == "-" and a < b and rng.random() < 0.7:
        return b, a
    return a, b


def _result(a: int, b: int, sign: str) -> int:
    return {"+": a + b, "-": a - b, "x": a * b}[sign]


def _asked(rng: Random, a: int, b: int, sign: str) -> str:
    as_word = rng.random() < 0.15
    first, second = _spoken(a, as_word), _spoken(b, as_word)
    if rng.random() < 0.75:
        return question(rng, rng.choice(ASKS[sign]).format(a=first, b=second))
    return order(rng, rng.choice(ORDERS[sign]).format(a=first, b=second))


def _spoken(number: int, as_word: bool) -> str:
    return NUMBER_WORDS[number] if as_word else str(number)


def sums_in_words(rng: Random) -> Exchange:
    """Apples that somebody gets or gives away."""
    item, name = rng.choice(ITEMS), rng.choice(("I", *NAMES))
    a, b = rng.randint(1, 10), rng.randint(1, 10)
    if rng.random() < 0.5:
        event, total, sign = (
            rng.choice((f"get {b} more", f"buy {b} more", f"find {b} more")),
            a + b,
            "+",
        )
    else:
        a, b = max(a, b), min(a, b)
        event, total, sign = rng.choice((f"give away {b}", f"lose {b}", f"eat {b}")), a - b, "-"
    if name == "I":
        asked = f"I have {a} {item} and {event}. How many {item} do I have now"
        return Exchange.of(
            question(rng, asked), f"{a} {sign} {b} = {total}. So you have {total} {item}."
        )
    verb, rest = event.split(" ", 1)
    asked = f"{name} has {a} {item} and {verb}s {rest}. How many {item} does {name} have now"
    return Exchange.of(
        question(rng, asked), f"{a} {sign} {b} = {total}. So {name} has {total} {item}."
    )


def too_big(rng: Random) -> Exchange:
    """Sums that lie outside what the model has learnt."""
    a, b = rng.randint(21, 9999), rng.randint(0, 999)
    if rng.random() < 0.5:
        a, b = rng.randint(21, 99), rng.randint(2, 99)
    if rng.random() < 0.3:
        a, b = b, a
    c, d = rng.randint(1, 20), rng.randint(1, 20)
    asks = (
        f"what is {a} + {b}", f"what is {a} - {b}", f"what is {a} * {b}", f"{a} + {b}", f"{a}*{b}",
        f"what is {a} times {b}", f"how much is {a} plus {b}", f"what is {c} divided by {d}",
        f"{c} / {d}", f"what is {c} + {d} + {c}", f"what is {c}.5 + {d}", f"what is {d} squared",
        f"what is {a} / {d}", f"what is {a} minus {b}", f"what is {c}% of {a}", f"{a}+{b}",
        f"{a}-{b}", f"calculate {a} + {b}", f"add {a} and {b}", f"{c} + {d} - {c}",
    )  # fmt: skip
    answer = "That is too hard for me. I can only add and subtract numbers up to 20."
    return Exchange.of(question(rng, rng.choice(asks)), answer)


def counting(rng: Random) -> Exchange:
    """Up, down, or between two numbers."""
    return rng.choices((_count_up, _count_down, _count_between, _count_on), (55, 20, 15, 10))[0](
        rng
    )


def _count_up(rng: Random) -> Exchange:
    last = rng.choice((5, 10, 3, 20, rng.randint(2, 20)))
    wish = rng.choice(COUNT_UP).format(n=_spoken(last, rng.random() < 0.4))
    return Exchange.of(order(rng, wish), _listed(range(1, last + 1)))


def _count_down(rng: Random) -> Exchange:
    first = rng.choice((5, 10, 3, 20, rng.randint(2, 20)))
    wish = rng.choice(COUNT_DOWN).format(n=_spoken(first, rng.random() < 0.4))
    return Exchange.of(order(rng, wish), _listed(range(first, 0, -1)))


def _count_between(rng: Random) -> Exchange:
    first = rng.randint(1, 15)
    last = rng.randint(first + 1, 20)
    as_word = rng.random() < 0.4
    start, end = _spoken(first, as_word), _spoken(last, as_word)
    wish = rng.choice((f"count from {start} to {end}", f"list the numbers from {start} to {end}"))
    return Exchange.of(order(rng, wish), _listed(range(first, last + 1)))


def _count_on(rng: Random) -> Exchange:
    """Without an end, or to one that is too far away."""
    if rng.random() < 0.4:
        wishes = ("count", "count something", "start counting", "count for me", "count the numbers")
        return Exchange.of(order(rng, rng.choice(wishes)), _listed(range(1, 11)))
    far = rng.choice(
        (25, 30, 50, 100, 1000, 500, 10000, "a million", rng.randint(21, 99), "hundred")
    )
    return Exchange.of(order(rng, f"count to {far}"), "That is too far for me. I can count to 20.")


def _listed(numbers: range) -> str:
    return ", ".join(str(number) for number in numbers) + "."


def number_facts(rng: Random) -> Exchange:
    """Which is bigger, what comes next, even or odd."""
    return rng.choice((_bigger, _smaller, _next, _even))(rng)


def _bigger(rng: Random) -> Exchange:
    a, b = rng.sample(range(21), 2)
    asks = (f"which is bigger, {a} or {b}", f"what is bigger, {a} or {b}",
            f"which number is larger, {a} or {b}", f"which is more, {a} or {b}")  # fmt: skip
    return Exchange.of(question(rng, rng.choice(asks)), f"{max(a, b)} is bigger than {min(a, b)}.")


def _smaller(rng: Random) -> Exchange:
    a, b = rng.sample(range(21), 2)
    asks = (f"which is smaller, {a} or {b}", f"what is less, {a} or {b}",
            f"which number is smaller, {a} or {b}")  # fmt: skip
    return Exchange.of(question(rng, rng.choice(asks)), f"{min(a, b)} is smaller than {max(a, b)}.")


def _next(rng: Random) -> Exchange:
    a = rng.randint(0, 20)
    asks = (f"what comes after {a}", f"what number comes after {a}", f"which number follows {a}",
            f"what is the next number after {a}")  # fmt: skip
    return Exchange.of(question(rng, rng.choice(asks)), f"After {a} comes {a + 1}.")


def _even(rng: Random) -> Exchange:
    a = rng.randint(0, 20)
    asks = (f"is {a} even or odd", f"is {a} odd or even", f"is the number {a} even or odd")
    return Exchange.of(question(rng, rng.choice(asks)), f"{a} is {'odd' if a % 2 else 'even'}.")
