'use strict';
// Light, dark, or as the system has it.

class Theme {
  static ORDER = ['auto', 'light', 'dark'];

  constructor(button, store) {
    this.button = button;
    this.store = store;
    this.#show(store.read('theme', 'auto'));
    button.addEventListener('click', () => this.#next());
  }

  #next() {
    const name = Theme.ORDER[(Theme.ORDER.indexOf(this.name) + 1) % Theme.ORDER.length];
    this.store.write('theme', name);
    this.#show(name);
    toast(this.button.getAttribute('aria-label'));
  }

  #show(name) {
    this.name = Theme.ORDER.includes(name) ? name : 'auto';
    document.documentElement.dataset.theme = this.name;
    const label = `Theme: ${this.name === 'auto' ? 'as the system' : this.name}`;
    this.button.setAttribute('aria-label', label);
  }
}
