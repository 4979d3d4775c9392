'use strict';
// Where the user writes: Enter sends and Shift-Enter is a line end; where fingers type, Enter is one too.

const MAX_COMPOSER_HEIGHT = 260; // px

class Composer {
  /** `actions`: send(text), stop(), editLast(). */
  constructor(actions) {
    this.actions = actions;
    this.form = byId('composer');
    this.input = byId('composer-input');
    this.send = byId('send-button');
    this.stop = byId('stop-button');
    this.isTouch = window.matchMedia('(pointer: coarse)').matches;
    this.input.enterKeyHint = this.isTouch ? 'enter' : 'send';
    this.input.addEventListener('input', () => this.#fit());
    this.input.addEventListener('keydown', (event) => this.#onKey(event));
    this.stop.addEventListener('click', () => actions.stop());
    this.form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#fit();
  }

  /** While an answer is being made there is a stop button in place of the other. */
  set isBusy(isBusy) {
    const hadFocus = [this.send, this.stop].includes(document.activeElement);
    this.busy = isBusy;
    this.send.hidden = isBusy;
    this.stop.hidden = !isBusy;
    if (hadFocus) (isBusy ? this.stop : this.input).focus();
  }

  focus() {
    if (!this.isTouch) this.input.focus(); // a keyboard that comes up by itself covers the answer
  }

  #submit() {
    const text = this.input.value.trim();
    if (!text || this.busy || !this.actions.send(text)) return;
    this.input.value = '';
    this.#fit();
  }

  #onKey(event) {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing && !this.isTouch) {
      event.preventDefault();
      this.#submit();
    } else if (event.key === 'ArrowUp' && !this.input.value) {
      event.preventDefault();
      this.actions.editLast();
    }
  }

  #fit() {
    this.send.disabled = !this.input.value.trim();
    this.input.style.height = 'auto';
    this.input.style.height = `${Math.min(this.input.scrollHeight + 2, MAX_COMPOSER_HEIGHT)}px`;
  }
}
