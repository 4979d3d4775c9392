'use strict';
// Tokens side by side, coloured by how likely each was, and what else might have been there.

// Below each probability a stronger colour; what is likelier than all has none.
const SURPRISES = [0.9, 0.6, 0.3, 0.1, 0.02];

class TokenStrip {
  /** `replace(index, token)`: the user wants `token` in place of the one at `index`; `fork(index)`: whatever comes there
   * with another seed.
   */
  constructor(root, { replace, fork }) {
    this.root = root;
    this.replace = replace;
    this.fork = fork;
    this.card = byId('token-card');
    this.clear();
    root.addEventListener('pointerover', (event) => this.#look(event.target));
    root.addEventListener('pointerleave', (event) => {
      if (!this.card.contains(event.relatedTarget) && !root.contains(document.activeElement)) this.#close();
    });
    root.addEventListener('focusin', (event) => this.#look(event.target));
    root.addEventListener('keydown', (event) => this.#onKey(event));
    this.card.addEventListener('pointerleave', () => this.#close());
    this.card.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') this.#leaveCard(event);
    });
    document.addEventListener('pointerdown', (event) => {
      if (!this.card.contains(event.target) && !root.contains(event.target)) this.#close();
    });
  }

  clear() {
    this.tokens = [];
    this.numGiven = 0; // of the prompt, where it is echoed: nobody drew them
    this.text = ''; // of the prompt, where it is echoed, and the output
    this.root.replaceChildren();
    this.#close();
  }

  /** What comes before a token: places are counted in code points. */
  textBefore(index) {
    return [...this.text].slice(0, this.tokens[index].offset).join('');
  }

  /** What an event tells: its text, and of its tokens OpenAI's `logprobs` of a completion, if there are any. */
  add(text, logprobs) {
    this.text += text;
    logprobs?.tokens.forEach((token, i) => this.#addToken(token, logprobs, i));
  }

  /** The text is complete: what is in it as a token and not as text (an end of turn) looks different. */
  end() {
    const points = [...this.text];
    this.tokens.forEach(({ text, offset }, i) => {
      const isText = points.slice(offset, offset + [...text].length).join('') === text;
      this.root.children[i].classList.toggle('is-special', !isText );
    });
  }

  #addToken(text, { token_logprobs: logprobs, top_logprobs: tops, text_offset: offsets }, i) {
    const logprob = logprobs[i];
    const alternatives = Object.entries(tops?.[i] ?? {}).sort((a, b) => b[1] - a[1]);
    const index = this.tokens.push({ text, logprob, alternatives, offset: offsets[i] }) - 1;
    const label = `${visible(text)}, ${logprob === null ? 'the first token' : percent(logprob)}`;
    this.root.append(
      el('span', { class: `token ${surpriseOf(logprob)}`, 'data-index': index, tabindex: index ? '-1' : '0', role: 'button', 'aria-label': label }, isPiece(text) ? visible(text) : text),
    );
  }

  #look(target) {
    const span = target.closest?.('.token');
    if (!span || span === this.open) return;
    this.open?.classList.remove('is-open');
    this.open = span;
    span.classList.add('is-open');
    this.#fillCard(Number(span.dataset.index));
    this.#place(span);
  }

  #fillCard(index) {
    const { text, logprob, alternatives } = this.tokens[index];
    const head = el('div', { class: 'token-card-head' }, el('code', {}, visible(text)), el('span', {}, logprob === null ? 'the first token: nothing before it' : `${percent(logprob)} · logprob ${logprob.toFixed(3)}`));
    const rows = alternatives.map(([other, its]) => {
      const meter = el('meter', { min: 0, max: 1, value: Math.exp(its) });
      const button = el('button', { type: 'button', disabled: isPiece(other), 'aria-current': other === text ? 'true' : null }, el('code', {}, visible(other)), meter, el('span', {}, percent(its)));
      button.addEventListener('click', () => {
        this.#close();
        this.replace(index, other);
      });
      return el('li', {}, button);
    });
    const hint = el('p', { class: 'token-card-hint' }, 'Choose one, and the text continues from there.');
    const fork = el('button', { type: 'button', class: 'token-card-fork' }, icon('fork'), 'Fork here, with another seed');
    fork.addEventListener('click', () => {
      this.#close();
      this.fork(index);
    });
    this.card.replaceChildren(head, el('ul', {}, rows), ...(rows.length ? [hint] : []), ...(index < this.numGiven ? [] : [fork]));
    this.card.hidden = false;
  }

  /** Below the token, or above it where there is no room. */
  #place(span) {
    const [box, room] = [span.getBoundingClientRect(), this.card.getBoundingClientRect()];
    const left = Math.max(8, Math.min(box.left, window.innerWidth - room.width - 8));
    const isBelow = box.bottom + room.height + 8 < window.innerHeight;
    this.card.style.left = `${left}px`;
    this.card.style.top = `${Math.max(8, isBelow ? box.bottom + 2 : box.top - room.height - 2)}px`;
  }

  #close() {
    this.open?.classList.remove('is-open');
    this.open = null;
    this.card.hidden = true;
  }

  #leaveCard(event) {
    this.open?.focus(); // which would open it again
    this.#close();
    event.stopPropagation();
  }

  #onKey(event) {
    if (moveAlong(event, this.root.children)) {
      // and that is all
    } else if (['Enter', ' ', 'ArrowDown'].includes(event.key)) {
      this.card.querySelector('button')?.focus();
    } else if (event.key === 'Escape' && !this.card.hidden) {
      this.#close();
      event.stopPropagation();
    } else {
      return;
    }
    event.preventDefault();
  }
}

function surpriseOf(logprob) {
  if (logprob === null) return '';
  const level = SURPRISES.filter((limit) => Math.exp(logprob) < limit).length;
  return level ? `surprise-${level}` : '';
}

function percent(logprob) {
  const value = 100 * Math.exp(logprob);
  return `${value < 0.1 ? '<0.1' : value.toFixed(1)} %`;
}

/** Bytes of a character that other tokens complete; they are told as bytes:\xf0\x9f. */
function isPiece(text) {
  return text.startsWith('bytes:\\x');
}

/** A token with what is invisible in it made visible. */
function visible(text) {
  if (isPiece(text)) return `⟨${text.slice('bytes:\\x'.length).replaceAll('\\x', ' ')}⟩`;
  return text.replaceAll(' ', '␣').replaceAll('\n', '↵').replaceAll('\t', '⇥') || '(empty)';
}
