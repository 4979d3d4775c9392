"""What the model knows about its tiny world: animals, colours, days, capitals."""

from random import Random

from deploy.demo_model.conversation import Exchange
from deploy.demo_model.lexicon import (
    ABILITIES,
    BABIES,
    CAPITALS,
    CATEGORIES,
    DIETS,
    HOMES,
    HOW_MANY,
    LEGS,
    NUMBER_WORDS,
    SIZES,
    SOUNDS,
    THING_COLOURS,
    UNKNOWN_COUNTRIES,
)
from deploy.demo_model.phrasing import capitalize, made_up_word, question, remark
from deploy.demo_model.stories import with_article

PLURALS = {"mouse": "mice", "sheep": "sheep", "wolf": "wolves", "goose": "geese"}
SILENT = ("giraffe", "fish", "snail", "butterfly", "worm", "stone")
ASK_SOUND = (
    "what sound does {a} make", "what does {a} say", "what noise does {a} make",
    "how does {a} sound", "what sound do {s} make", "what is the sound of {a}",
    "what does the {n} say", "which sound does {a} make", "how does {a} go",
)  # fmt: skip
ASK_BABY = (
    "what is a baby {a} called", "what do you call a baby {a}", "what is a young {a} called",
    "what is the name of a baby {a}", "how do you call a young {a}",
)  # fmt: skip
ASK_LEGS = (
    "how many legs does {a} have", "how many legs has {a}", "number of legs of {a}",
    "does {a} have legs", "how many legs are on {a}",
)  # fmt: skip
ASK_HOME = (
    "where does {a} live", "where do you find {a}", "what is the home of {a}",
    "where can i find {a}", "where is the home of {a}",
)  # fmt: skip
ASK_DIET = (
    "what does {a} eat", "what does {a} like to eat", "what is the food of {a}",
    "what should i feed {a}", "what food does {a} like",
)  # fmt: skip
ASK_COLOUR = (
    "what {c} is {t}", "which {c} is {t}", "what is the {c} of {t}", "what {c} does {t} have",
    "what's the {c} of {t}", "{t} is what {c}", "what {c} are {t}",
)  # fmt: skip
ASK_CAPITAL = (
    "what is the capital of {c}", "what's the capital of {c}", "capital of {c}",
    "which city is the capital of {c}", "do you know the capital of {c}",
    "what is the capital city of {c}", "what is {c}'s capital", "name the capital of {c}",
)  # fmt: skip


def animals(rng: Random) -> Exchange:
    """Sounds, young, legs, homes, food, sizes."""
    makers = (_sound, _sound, _baby, _legs, _home, _diet, _size, _ability)
    return rng.choice(makers)(rng)


def _sound(rng: Random) -> Exchange:
    if rng.random() < 0.07:
        one = with_article(rng.choice((*SILENT, made_up_word(rng))))
        asked = question(rng, rng.choice(ASK_SOUND[:3]).format(a=one))
        return Exchange.of(asked, f"I do not know what sound {one} makes.")
    animal, sound = rng.choice(list(SOUNDS.items()))
    one, several = with_article(animal), PLURALS.get(animal, f"{animal}s")
    asked = question(rng, rng.choice(ASK_SOUND).format(a=one, n=animal, s=several))
    told = Exchange.of(asked, f"{capitalize(one)} says {sound}.")
    if rng.random() < 0.85:
        return told
    other, other_sound = rng.choice(list(SOUNDS.items()))
    asks = ("and {}", "what about {}", "and what does {} say")
    asked = remark(rng, rng.choice(asks).format(with_article(other)) + rng.choice(("", "?")))
    return told.then(Exchange.of(asked, f"{capitalize(with_article(other))} says {other_sound}."))


def _baby(rng: Random) -> Exchange:
    animal, young = rng.choice(list(BABIES.items()))
    asked = question(rng, rng.choice(ASK_BABY).format(a=animal))
    return Exchange.of(asked, f"A baby {animal} is called {with_article(young)}.")


def _legs(rng: Random) -> Exchange:
    animal, legs = rng.choice(list(LEGS.items()))
    one = with_article(animal)
    number = "no" if legs == 0 else NUMBER_WORDS[legs]
    asked = question(rng, rng.choice(ASK_LEGS).format(a=one))
    return Exchange.of(asked, f"{capitalize(one)} has {number} legs.")


def _home(rng: Random) -> Exchange:
    animal, home = rng.choice(list(HOMES.items()))
    one = with_article(animal)
    asked = question(rng, rng.choice(ASK_HOME).format(a=one))
    return Exchange.of(asked, f"{capitalize(one)} lives {home}.")


def _diet(rng: Random) -> Exchange:
    animal, food = rng.choice(list(DIETS.items()))
    one = with_article(animal)
    asked = question(rng, rng.choice(ASK_DIET).format(a=one))
    return Exchange.of(asked, f"{capitalize(one)} eats {food}.")


def _size(rng: Random) -> Exchange:
    i, j = sorted(rng.sample(range(len(SIZES)), 2))
    small, big = with_article(SIZES[i]), with_article(SIZES[j])
    one, two = rng.sample((small, big), 2)
    if rng.random() < 0.5:
        asks = (f"which is bigger, {one} or {two}", f"what is bigger, {one} or {two}",
                f"is {big} bigger than {small}")  # fmt: skip
        return Exchange.of(
            question(rng, rng.choice(asks)), f"{capitalize(big)} is bigger than {small}."
        )
    asks = (f"which is smaller, {one} or {two}", f"what is smaller, {one} or {two}",
            f"is {small} smaller than {big}")  # fmt: skip
    return Exchange.of(
        question(rng, rng.choice(asks)), f"{capitalize(small)} is smaller than {big}."
    )


def _ability(rng: Random) -> Exchange:
    verb = rng.choice(list(ABILITIES))
    can = rng.random() < 0.5
    one = with_article(rng.choice(ABILITIES[verb][0 if can else 1]))
    answer = f"Yes, {one} can {verb}." if can else f"No, {one} cannot {verb}."
    return Exchange.of(question(rng, f"can {one} {verb}"), answer)


def colours(rng: Random) -> Exchange:
    """What colour a thing has."""
    thing, colour = rng.choice(list(THING_COLOURS.items()))
    if rng.random() < 0.15:
        other = colour if rng.random() < 0.5 else rng.choice(list(THING_COLOURS.values()))
        yes = "Yes" if other == colour else "No"
        return Exchange.of(question(rng, f"is {thing} {other}"), f"{yes}, {thing} is {colour}.")
    word = rng.choice(("colour", "color"))
    asked = question(rng, rng.choice(ASK_COLOUR).format(c=word, t=thing))
    return Exchange.of(asked, f"{capitalize(thing)} is {colour}.")


def calendar(rng: Random) -> Exchange:
    """Days, months, hours: what follows, and how many."""
    if rng.random() < 0.35:
        asked, answer = rng.choice(list(HOW_MANY.items()))
        return Exchange.of(question(rng, f"how many {asked}"), answer)
    name, one = rng.choice(
        (("days of the week", "day"), ("months", "month"), ("seasons", "season"))
    )
    members = next(words for names, words in CATEGORIES.items() if names[0] == name)
    i = rng.randrange(len(members))
    this, following, former = members[i], members[(i + 1) % len(members)], members[i - 1]
    kind = rng.random()
    if kind < 0.55:
        asks: tuple[str, ...] = (f"what {one} comes after {this}", f"what comes after {this}",
                f"which {one} follows {this}", f"what {one} is after {this}",
                f"what is the {one} after {this}")  # fmt: skip
        return Exchange.of(question(rng, rng.choice(asks)), f"After {this} comes {following}.")
    if kind < 0.85:
        asks = (f"what {one} comes before {this}", f"what comes before {this}",
                f"which {one} is before {this}", f"what {one} was before {this}")  # fmt: skip
        return Exchange.of(question(rng, rng.choice(asks)), f"Before {this} comes {former}.")
    whole = "week" if one == "day" else "year"
    end, member = rng.choice((("first", members[0]), ("last", members[-1])))
    asks = (f"what is the {end} {one} of the {whole}", f"which {one} is the {end} of the {whole}")
    answer = f"The {end} {one} of the {whole} is {member}."
    return Exchange.of(question(rng, rng.choice(asks)), answer)


def capitals(rng: Random) -> Exchange:
    """A few capitals are known; about the others the model says that it does not know."""
    if rng.random() < 0.25:
        strange = rng.random() < 0.3
        country = capitalize(made_up_word(rng)) if strange else rng.choice(UNKNOWN_COUNTRIES)
        asked = question(rng, rng.choice(ASK_CAPITAL).format(c=country))
        return Exchange.of(asked, f"I am sorry, I do not know the capital of {country}.")
    country, city = rng.choice(list(CAPITALS.items()))
    asked = question(rng, rng.choice(ASK_CAPITAL).format(c=country))
    told = Exchange.of(asked, f"The capital of {country} is {city}.")
    if rng.random() < 0.85:
        return told
    other, other_city = rng.choice(list(CAPITALS.items()))
    asks = ("and of {}?", "and {}?", "what about {}?", "and the capital of {}?")
    asked = remark(rng, rng.choice(asks).format(other))
    return told.then(Exchange.of(asked, f"The capital of {other} is {other_city}."))
