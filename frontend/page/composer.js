'use strict';
// Where the user writes: Enter sends and Shift-Enter is a line end; where fingers type, Enter is one too.

const MAX_COMPOSER_HEIGHT = 260; // px

class Composer {
  /** `actions`: send(text, pictures), stop(), editLast(). `zone`: where pictures may be dropped. */
  constructor(zone, actions) {
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
    this.tray = new PictureTray(zone, () => this.#fit());
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

  get isEmpty() {
    return !this.input.value.trim() && !this.tray.pictures.length;
  }

  focus() {
    if (!this.isTouch) this.input.focus(); // a keyboard that comes up by itself covers the answer
  }

  #submit() {
    if (this.isEmpty || this.busy || !this.actions.send(this.input.value.trim(), this.tray.pictures)) return;
    this.input.value = '';
    this.tray.clear();
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
    this.send.disabled = this.isEmpty;
    this.input.style.height = 'auto';
    this.input.style.height = `${Math.min(this.input.scrollHeight + 2, MAX_COMPOSER_HEIGHT)}px`;
  }
}
