'use strict';
// Light, dark, or as the system has it.

class Theme {
  static ORDER = ['auto', 'light', 'dark'];

  constructor(button, storageName) {
    this.button = button;
    this.storageName = storageName;
    this.#show(localStorage.getItem(storageName) ?? 'auto');
    button.addEventListener('click', () => this.#next());
  }

  #next() {
    const name = Theme.ORDER[(Theme.ORDER.indexOf(this.name) + 1) % Theme.ORDER.length];
    localStorage.setItem(this.storageName, name);
    this.#show(name);
  }

  #show(name) {
    this.name = Theme.ORDER.includes(name) ? name : 'auto';
    document.documentElement.dataset.theme = this.name;
    const label = `Theme: ${this.name === 'auto' ? 'as the system' : this.name}`;
    this.button.title = label;
    this.button.setAttribute('aria-label', label);
  }
}
