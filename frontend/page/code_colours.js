'use strict';
// Code in colours, by highlight.js. Its tree of scopes becomes elements: no HTML.

const MAX_COLOURED = 20_000; // characters; beyond it colours cost more than they tell

/** The code; its colours come when the library has been loaded. */
function codeWithColours(text, language) {
  const code = el('code', {}, text);
  if (!language || text.length > MAX_COLOURED) return code;
  if (window.hljs) colour(code, text, language);
  else loadLibrary('highlight.min.js').then(() => colour(code, text, language), () => {});
  return code;
}

function colour(code, text, language) {
  if (!hljs.getLanguage(language)) return;
  const painter = new CodePainter();
  hljs.highlight(text, { language, ignoreIllegals: true })._emitter.walk(painter);
  code.replaceChildren(...painter.root.childNodes);
}

/** What highlight.js walks its tree with. */
class CodePainter {
  constructor() {
    this.root = el('span');
    this.top = this.root;
  }

  addText(text) {
    this.top.append(text);
  }

  openNode({ scope }) {
    const span = el('span', { class: scope ? `code-${scope.split(/[.:]/)[0]}` : null });
    this.top.append(span);
    this.top = span;
  }

  closeNode() {
    this.top = this.top.parentNode;
  }
}
