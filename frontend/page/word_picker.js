'use strict';
// A text as it was written, of which one word is chosen.

class WordPicker {
  /** `choose(offset)`: code points before the word; `leave()`: none. */
  constructor(text, hint, { choose, leave }) {
    this.words = el('div', { class: 'words', role: 'group', 'aria-label': 'Words: arrow keys move, Enter chooses' }, this.#pieces(text, choose));
    this.element = el('div', { class: 'word-picker' }, el('p', { class: 'notice' }, hint), this.words, el('div', { class: 'dialog-buttons' }, el('button', { type: 'button', onclick: leave }, 'Cancel')));
    this.element.addEventListener('keydown', (event) => this.#onKey(event, leave));
  }

  focus() {
    this.words.firstElementChild?.focus();
  }

  #pieces(text, choose) {
    let offset = 0;
    return text.split(/(\s+)/).map((piece) => {
      const start = offset;
      offset += [...piece].length;
      if (!piece.trim()) return piece;
      const word = el('span', { class: 'word', role: 'button', tabindex: '-1', onclick: () => choose(start) }, piece);
      if (!start) word.tabIndex = 0;
      return word;
    });
  }

  #onKey(event, leave) {
    const isWord = event.target.parentElement === this.words;
    if (event.key === 'Escape') leave();
    else if (isWord && ['Enter', ' '].includes(event.key)) event.target.click();
    else if (!isWord || !moveAlong(event, this.words.children)) return;
    event.preventDefault();
    event.stopPropagation();
  }
}
