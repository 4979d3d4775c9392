'use strict';
// The panels at the sides: beside the conversation where there is room, over it where there is none.

class Drawers {
  constructor(root, store) {
    this.root = root;
    this.store = store;
    this.isNarrow = window.matchMedia('(max-width: 900px)');
    byId('sidebar-toggle').addEventListener('click', () => this.#toggle('sidebar'));
    byId('settings-toggle').addEventListener('click', () => this.#toggle('settings'));
    byId('drawer-shade').addEventListener('click', () => this.close());
    this.isNarrow.addEventListener('change', () => this.#restore());
    this.#restore();
  }

  /** Whether one lies over the conversation. */
  get isOpen() {
    return this.isNarrow.matches && ['sidebar', 'settings'].some((name) => this.#shows(name));
  }

  /** Takes away what lies over the conversation. */
  close() {
    if (!this.isNarrow.matches) return;
    this.#set('sidebar', false);
    this.#set('settings', false);
  }

  #restore() {
    const isWide = !this.isNarrow.matches;
    this.#set('sidebar', isWide && this.store.read('sidebar', true));
    this.#set('settings', isWide && this.store.read('settings-panel', window.innerWidth > 1240));
  }

  #toggle(name) {
    const isShown = !this.#shows(name);
    this.close();
    this.#set(name, isShown);
    if (!this.isNarrow.matches) this.store.write(name === 'settings' ? 'settings-panel' : name, isShown);
  }

  #shows(name) {
    return this.root.classList.contains(`with-${name}`);
  }

  #set(name, isShown) {
    this.root.classList.toggle(`with-${name}`, isShown);
    byId(`${name}-toggle`).setAttribute('aria-expanded', isShown);
  }
}
