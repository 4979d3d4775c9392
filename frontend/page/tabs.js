'use strict';
// The views of the page, one at a time; the fragment of the address names it.

class Tabs {
  /** `views`: by name, each with show() and hide(). */
  constructor(views) {
    this.views = views;
    this.names = Object.keys(views);
    this.current = null;
    for (const name of this.names) {
      const tab = byId(`tab-${name}`);
      tab.addEventListener('click', () => (window.location.hash = name));
      tab.addEventListener('keydown', (event) => this.#onKey(event, name));
    }
    window.addEventListener('hashchange', () => this.open(this.#named()));
    this.open(this.#named());
  }

  open(name) {
    if (name === this.current) return;
    if (this.current) this.views[this.current].hide();
    this.current = name;
    for (const each of this.names) {
      const isOpen = each === name;
      const tab = byId(`tab-${each}`);
      tab.setAttribute('aria-selected', isOpen);
      tab.tabIndex = isOpen ? 0 : -1;
      byId(`panel-${each}`).hidden = !isOpen;
    }
    this.views[name].show();
  }

  #named() {
    const name = window.location.hash.slice(1);
    return this.names.includes(name) ? name : (this.current ?? this.names[0]);
  }

  #onKey(event, name) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = this.names[(this.names.indexOf(name) + step + this.names.length) % this.names.length];
    window.location.hash = next;
    byId(`tab-${next}`).focus();
    event.preventDefault();
  }
}
