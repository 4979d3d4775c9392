'use strict';
// Shows Markdown that grows: what is finished stays as it is, the end is made anew.

class MarkdownView {
  static reader = null; // of all views, once its library has been loaded

  constructor(root) {
    this.root = root;
    this.#forget();
  }

  show(written) {
    const text = written.replace(/\r\n?/g, '\n');
    if (text === this.text) return;
    if (!text.startsWith(this.text)) this.#forget();
    this.text = text;
    if (MarkdownView.reader) this.#showEnd();
    else this.#showPlain();
  }

  #forget() {
    this.text = '';
    this.endFrom = 0; // where in the text what may still change begins
    this.numDone = 0; // elements before that
  }

  /** As it was written, until the library is there. */
  #showPlain() {
    this.root.replaceChildren(el('p', { class: 'plain' }, this.text));
    loadLibrary('markdown-it.min.js').then(() => {
      MarkdownView.reader ??= newMarkdownReader();
      this.#showEnd();
    }, () => {});
  }

  #showEnd() {
    const end = this.text.slice(this.endFrom);
    const tokens = MarkdownView.reader.parse(end, {});
    while (this.root.childNodes.length > this.numDone) this.root.lastChild.remove();
    this.root.append(...blockNodes(tokens));
    this.#settle(end, tokens.filter(({ level, nesting }) => level === 0 && nesting >= 0));
  }

  /** What comes may change a block that no empty line follows, and one before it: `1. a`, then `2. b`. */
  #settle(end, blocks) {
    const lines = end.split('\n');
    const begins = blocks.map(({ map }) => map[0]);
    const apart = begins.map((line, i) => i).filter((i) => begins[i] > 0 && !lines[begins[i] - 1].trim());
    const numSettled = apart.at(-2) ?? 0;
    if (!numSettled) return;
    this.numDone += numSettled;
    this.endFrom += lines.slice(0, begins[numSettled]).join('\n').length + 1;
  }
}
