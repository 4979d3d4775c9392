"""Play with words: repeat after me, spell, opposites."""

from random import Random

from deploy.demo_model.conversation import Exchange
from deploy.demo_model.lexicon import (
    CATEGORIES,
    NUMBER_WORDS,
    ONE_WAY_OPPOSITES,
    OPPOSITES,
    SPELLABLE,
)
from deploy.demo_model.phrasing import capitalize, made_up_word, order, question, remark
from deploy.demo_model.story_words import CHARACTERS, NAMES

# These are said as they are; all else follows "All right:", so that its first word is the same
# token in the wish and in the answer: a word at the start of a turn is another one.
SAID_AT_ONCE = (
    "hello", "hi", "good morning", "hello world", "goodbye", "good night", "yes", "no", "please",
    "thank you", "cheese", "jetflock",
)  # fmt: skip
ECHOES = (
    "say {}", "repeat after me: {}", "repeat: {}", "say: {}", "repeat {}", "please say {}",
    'say "{}"', 'repeat "{}"', "write {}", 'repeat after me: "{}"', "echo {}", "repeat this: {}",
    "can you say {}", "say the words {}", "just say {}", "now say {}", "repeat after me, {}",
)  # fmt: skip
ASK_OPPOSITE = (
    "what is the opposite of {w}", "what's the opposite of {w}", "opposite of {w}",
    "what is the opposite of the word {w}", "which word is the opposite of {w}",
    "what is the antonym of {w}", "what is {w}'s opposite", "do you know the opposite of {w}",
)  # fmt: skip
ORDER_OPPOSITE = (
    "tell me the opposite of {w}", "give me the opposite of {w}", "name the opposite of {w}",
    "say the opposite of {w}", "find the opposite of {w}",
)  # fmt: skip


def echo(rng: Random) -> Exchange:
    """Repeat after me."""
    if rng.random() < 0.3:
        said = rng.choice(SAID_AT_ONCE)
        return Exchange.of(order(rng, rng.choice(ECHOES).format(said)), f"{capitalize(said)}!")
    said = _row_of_words(rng) if rng.random() < 0.5 else _sentence(rng)
    asked = capitalize(rng.choice(ECHOES).format(said)) + rng.choice(("", "", ".", "!"))
    if rng.random() < 0.3:
        asked, said = asked.lower(), said.lower()
    return Exchange.of(asked, f"All right: {said}.")


def long_echo(rng: Random) -> Exchange:
    """A row of words, to be repeated: nothing else teaches so quickly to look back and copy."""
    said = _row_of_words(rng)
    return Exchange.of(capitalize(rng.choice(ECHOES).format(said)), f"All right: {said}.")


def _row_of_words(rng: Random) -> str:
    nouns = [word for words in CATEGORIES.values() for word in words]
    words = [rng.choice((nouns, CHARACTERS, NAMES, (made_up_word(rng),))) for _ in range(20)]
    return " ".join(rng.choice(choice) for choice in words[: rng.randint(4, 20)])


def _sentence(rng: Random) -> str:
    animal = rng.choice(CHARACTERS)
    nouns = [word for words in CATEGORIES.values() for word in words]
    one, two = rng.sample(nouns, 2)
    return rng.choice(
        (
            one,
            " ".join(rng.sample(nouns, rng.randint(2, 5))),
            f"the {animal} is {rng.choice(OPPOSITES)[rng.randrange(2)]}",
            f"I like {one} and {two}",
            f"the {animal} sat on the {one}",
            " ".join(made_up_word(rng) for _ in range(rng.randint(1, 3))),
            ", ".join(str(rng.randint(0, 99)) for _ in range(rng.randint(1, 4))),
        )
    )


def spelling(rng: Random) -> Exchange:
    """C-A-T."""
    word = rng.choice(SPELLABLE)
    shown = f'"{word}"' if rng.random() < 0.15 else word
    kind = rng.random()
    if kind < 0.5:
        wishes = (f"spell {shown}", f"spell the word {shown}", f"spell out {shown}")
        return Exchange.of(order(rng, rng.choice(wishes)), "-".join(word.upper()) + ".")
    if kind < 0.75:
        asks = (f"how do you spell {shown}", f"how is {shown} spelled", f"how do i spell {shown}")
        return Exchange.of(question(rng, rng.choice(asks)), "-".join(word.upper()) + ".")
    if kind < 0.9:
        asks = (f"what is the first letter of {shown}", f"what letter does {shown} start with",
                f"which letter does {shown} begin with")  # fmt: skip
        answer = f"The first letter of {word} is {word[0].upper()}."
        return Exchange.of(question(rng, rng.choice(asks)), answer)
    asked = question(rng, f"how many letters are in {shown}")
    return Exchange.of(asked, f"The word {word} has {NUMBER_WORDS[len(word)]} letters.")


def opposites(rng: Random) -> Exchange:
    """The opposite of a word, sometimes followed by another one."""
    if rng.random() < 0.06:
        strange = made_up_word(rng)
        asked = question(rng, rng.choice(ASK_OPPOSITE).format(w=strange))
        return Exchange.of(asked, f"I do not know the opposite of {strange}.")
    word, answer = _opposite(rng)
    shown = f'"{word}"' if rng.random() < 0.1 else word
    if rng.random() < 0.25:
        asked = order(rng, rng.choice(ORDER_OPPOSITE).format(w=shown))
    else:
        asked = question(rng, rng.choice(ASK_OPPOSITE).format(w=shown))
    told = Exchange.of(asked, f"The opposite of {word} is {answer}.")
    if rng.random() < 0.8:
        return told
    again, other = _opposite(rng)
    asks = ("and of {w}", "and {w}", "what about {w}", "and the opposite of {w}")
    asked = remark(rng, rng.choice(asks).format(w=again) + rng.choice(("", "?")))
    return told.then(Exchange.of(asked, f"The opposite of {again} is {other}."))


def _opposite(rng: Random) -> tuple[str, str]:
    """A pair in either direction, unless the way back has another answer."""
    first, second = rng.choice(OPPOSITES)
    firsts, seconds = zip(*OPPOSITES, strict=True)
    is_ambiguous = second in firsts or seconds.count(second) > 1
    if first in ONE_WAY_OPPOSITES or is_ambiguous or rng.random() < 0.6:
        return first, second
    return second, first
