'use strict';
// JSON in the browser's storage, under names of this page's own.

class Store {
  /** `onFull` is called when the browser takes no more. */
  constructor(path, onFull) {
    this.prefix = `jetflock:${path}:`;
    this.onFull = onFull;
  }

  read(name, fallback = null) {
    try {
      return JSON.parse(localStorage.getItem(this.prefix + name)) ?? fallback;
    } catch {
      return fallback; // not ours, or of another version
    }
  }

  write(name, value) {
    try {
      localStorage.setItem(this.prefix + name, JSON.stringify(value));
    } catch (error) {
      this.onFull(error);
    }
  }

  remove(name) {
    localStorage.removeItem(this.prefix + name);
  }

  /** The name of a key of the browser's storage; null: it is not ours. */
  nameOf(key) {
    return key?.startsWith(this.prefix) ? key.slice(this.prefix.length) : null;
  }

  /** Names that begin with `start`. */
  names(start) {
    return Object.keys(localStorage)
      .filter((key) => key.startsWith(this.prefix + start))
      .map((key) => key.slice(this.prefix.length));
  }
}
