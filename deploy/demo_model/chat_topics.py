"""Small talk, names, greetings in other scripts, and what the model cannot know."""

from random import Random

from deploy.demo_model.conversation import Exchange
from deploy.demo_model.lexicon import EMOJI, HELLO_IN, LONE_EMOJI
from deploy.demo_model.phrasing import LETTERS, made_up_word, order, question, remark
from deploy.demo_model.stories import Hero, tell_story
from deploy.demo_model.story_words import NAMES
from deploy.demo_model.texts import phrases, read_sections

FAVOURITES = ("greeting", "greeting", "greeting", "how_are_you", "who")  # asked more than others
TELL_NAME = (
    "my name is {n}.", "i am {n}.", "i'm {n}.", "hi, i am {n}.", "hello, my name is {n}!",
    "call me {n}.", "you can call me {n}.", "hello! i'm {n}.", "hi my name is {n}",
)  # fmt: skip
ASK_NAME = (
    "what is my name", "who am i", "do you know my name", "do you remember my name",
    "what am i called", "can you say my name", "what did i say my name is", "tell me my name",
)  # fmt: skip
ASK_EMOJI = (
    "show me a {} emoji", "send me a {} emoji", "give me a {} emoji", "write a {} emoji",
    "show the emoji for {}", "draw a {}",
)  # fmt: skip


def small_talk(rng: Random) -> Exchange:
    """Greetings, thanks, who are you, and the like."""
    sections = read_sections("small_talk.txt")
    name = rng.choice(FAVOURITES) if rng.random() < 0.35 else rng.choice(list(sections))
    text = rng.choice(sections[name].phrases)
    if rng.random() < 0.3:
        asked = question(rng, text)
    else:
        asked = remark(rng, text + rng.choice(("", "", "!", ".", "?", "!!")))
    return Exchange.of(asked, rng.choice(sections[name].answers))


def names(rng: Random) -> Exchange:
    """The model hears a name, and gives it back when it is asked."""
    name = rng.choice(NAMES) if rng.random() < 0.7 else made_up_word(rng).capitalize()
    told = remark(rng, rng.choice(TELL_NAME).format(n=name))
    asked = question(rng, rng.choice(ASK_NAME))
    heard = f"Nice to meet you, {name}!"
    kind = rng.random()
    if kind < 0.3:
        return Exchange.of(told, heard)
    if kind < 0.4:
        who = rng.choice(read_sections("small_talk.txt")["who"].phrases[:6])
        told = f"{told.rstrip('.!')}{rng.choice(('. ', '! '))}{question(rng, who)}"
        return Exchange.of(told, f"{heard} I am the jetflock demo model.")
    if kind < 0.8:
        return Exchange.of(told, heard, asked, f"Your name is {name}.")
    return Exchange.of(asked, "You have not told me your name yet. What is your name?")


def other_scripts(rng: Random) -> Exchange:
    """Greetings and pictures outside ASCII, both ways."""
    return rng.choices((_hello_in, _emoji, _lone_emoji, _foreign), (35, 30, 10, 25))[0](rng)


def _hello_in(rng: Random) -> Exchange:
    language, hello = rng.choice(list(HELLO_IN.items()))
    if rng.random() < 0.4:
        asks = ("how do you say hello in {}", "what is hello in {}", "how do i say hello in {}")
        return Exchange.of(question(rng, rng.choice(asks).format(language)), hello)
    wishes = ("say hello in {}", "say hi in {}", "translate hello into {}", "greet me in {}")
    return Exchange.of(order(rng, rng.choice(wishes).format(language)), hello)


def _emoji(rng: Random) -> Exchange:
    if rng.random() < 0.2:
        wishes = ("send me an emoji", "show me an emoji", "write an emoji", "give me an emoji")
        return Exchange.of(order(rng, rng.choice(wishes)), rng.choice(("😊", "🌈", "🐱")))
    thing, emoji = rng.choice(list(EMOJI.items()))
    return Exchange.of(order(rng, rng.choice(ASK_EMOJI).format(thing)), emoji)


def _lone_emoji(rng: Random) -> Exchange:
    seen = rng.choices(LONE_EMOJI, k=rng.randint(1, 3))
    return Exchange.of("".join(seen), f"{seen[0]} Hello! What can I do for you?")


def _foreign(rng: Random) -> Exchange:
    answer = "I am sorry, I only speak simple English. Please ask me in English."
    return Exchange.of(remark(rng, rng.choice(phrases("unknown.txt", "foreign"))), answer)


DECLINES = (
    ("I am sorry, I do not know that. I am a small demo model and only know simple things.", 4),
    (
        "I am sorry, I cannot answer that. I am only a small demo model. I can tell stories, "
        "do small sums, name things like animals or colours, and count.",
        3,
    ),
    ("That is too hard for me. I am a small demo model, and my world is tiny.", 2),
    ("I do not know. I am a very small model, but you can ask me for a story.", 1),
)
PASTED = (
    "Summarize this text:", "Translate this:", "What is this about?", "Correct this text:",
    "Give me the main points of this text:", "Read this and answer:", "Rewrite this:",
)  # fmt: skip


def unknown(rng: Random) -> Exchange:
    """A question or a task that is too much, and a plain refusal."""
    makers = (_question, _order, _who_or_when, _task, _code, _gibberish, _long_text)
    asked = rng.choices(makers, (32, 23, 21, 15, 3, 4, 2))[0](rng)
    return Exchange.of(asked, rng.choices([d for d, _ in DECLINES], [w for _, w in DECLINES])[0])


def _filled(rng: Random, section: str) -> str:
    subjects, places = phrases("unknown.txt", "subjects"), phrases("unknown.txt", "place_names")
    return rng.choice(phrases("unknown.txt", section)).format(
        s=made_up_word(rng) if rng.random() < 0.2 else rng.choice(subjects),
        t=rng.choice(subjects),
        y=rng.randint(100, 2030),
        c=rng.choice(places),
        d=rng.choice(places),
        l=rng.choice(phrases("unknown.txt", "languages")),
    )


def _question(rng: Random) -> str:
    return question(rng, _filled(rng, "questions"))


def _order(rng: Random) -> str:
    return order(rng, _filled(rng, "orders"))


def _who_or_when(rng: Random) -> str:
    return question(rng, _filled(rng, "who_and_when"))


def _task(rng: Random) -> str:
    return order(rng, _filled(rng, "tasks"))


def _code(rng: Random) -> str:
    return rng.choice(phrases("unknown.txt", "code"))


def _gibberish(rng: Random) -> str:
    if rng.random() < 0.4:
        return "".join(rng.choices(LETTERS + "0123456789", k=rng.randint(3, 24)))
    return remark(rng, " ".join(made_up_word(rng) for _ in range(rng.randint(1, 12))))


def _long_text(rng: Random) -> str:
    """A pasted text with a wish that the model cannot grant."""
    text = tell_story(rng, Hero.draw(rng), num_episodes=rng.choice((1, 1, 2, 3, 8)))
    wish = rng.choice(PASTED)
    return rng.choice((f"{wish}\n\n{text}", f"{text}\n\n{wish}"))
