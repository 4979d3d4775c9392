'use strict';
// Markdown as chat models write it: markdown-it without HTML, with formulas.

const LINK_PROTOCOLS = ['http:', 'https:', 'mailto:'];
const MAX_FORMULA_SEARCH = 4_000; // characters behind a sign that may begin a formula
const MAX_FORMULA_LINES = 100;
const FORMULA_SIGNS = [
  { open: '$$', close: '$$', isDisplay: true },
  { open: '\\[', close: '\\]', isDisplay: true },
  { open: '\\(', close: '\\)', isDisplay: false },
  { open: '$', close: '$', isDisplay: false },
];

/** A reader of Markdown; markdown-it.min.js has been loaded. */
function newMarkdownReader() {
  const reader = window.markdownit({ html: false, linkify: true, breaks: true });
  reader.disable('reference'); // so that the end of a text changes nothing far above it
  reader.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
  reader.validateLink = isSafeAddress;
  reader.inline.ruler.before('escape', 'formula', readFormula);
  reader.block.ruler.before('fence', 'formula', readFormulaBlock, { alt: ['paragraph', 'blockquote', 'list'] });
  return reader;
}

/** Whether a click may open it. */
function isSafeAddress(address) {
  try {
    return LINK_PROTOCOLS.includes(new URL(address).protocol);
  } catch {
    return false;
  }
}

/** `$a$`, `\(a\)`, `$$a$$` and `\[a\]` among words. */
function readFormula(state, isSilent) {
  const { src, pos } = state;
  const sign = FORMULA_SIGNS.find(({ open }) => src.startsWith(open, pos));
  if (!sign) return false;
  const start = pos + sign.open.length;
  const tex = formulaBefore(sign.close, src.slice(start, start + MAX_FORMULA_SEARCH));
  if (tex === null) return false;
  const end = start + tex.length + sign.close.length;
  if (sign.open === '$' && !isBetweenDollars(src[pos - 1], tex, src[end])) return false;
  if (!isSilent) pushFormula(state, tex, sign);
  state.pos = end;
  return true;
}

/** What stands before the closing sign; null: nothing does, or there is none. */
function formulaBefore(close, text) {
  let end = text.indexOf(close);
  while (close === '$' && text[end - 1] === '\\') end = text.indexOf(close, end + 1);
  return end > 0 && text.slice(0, end).trim() ? text.slice(0, end) : null;
}

/** And not between two sums of money: $5 and $10, or 5$ and 10$. */
function isBetweenDollars(before, tex, behind) {
  return !/\w/.test(before ?? '') && !/^\s|\s$/.test(tex) && !/\d/.test(behind ?? '');
}

/** A formula with lines of its own; none of them is empty. */
function readFormulaBlock(state, startLine, endLine, isSilent) {
  if (state.sCount[startLine] - state.blkIndent >= 4) return false;
  const sign = FORMULA_SIGNS.find(({ open, isDisplay }) => isDisplay && lineOf(state, startLine).startsWith(open));
  if (!sign) return false;
  const lines = [];
  const lastLine = Math.min(endLine, startLine + MAX_FORMULA_LINES);
  for (let line = startLine; line < lastLine && !state.isEmpty(line) && state.sCount[line] >= state.blkIndent; line += 1) {
    lines.push(line === startLine ? lineOf(state, line).slice(sign.open.length) : lineOf(state, line));
    const end = lines.at(-1).indexOf(sign.close);
    if (end === -1) continue;
    const rest = lines.at(-1).slice(end + sign.close.length);
    lines.push(lines.pop().slice(0, end));
    const tex = lines.join('\n').trim();
    if (rest.trim() || !tex) return false; // it stands among words
    if (!isSilent) {
      pushFormula(state, tex, sign).map = [startLine, line + 1];
      state.line = line + 1;
    }
    return true;
  }
  return false;
}

function lineOf(state, line) {
  return state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]);
}

function pushFormula(state, tex, { isDisplay }) {
  const token = state.push('formula', 'span', 0);
  token.content = tex;
  token.meta = { isDisplay };
  return token;
}
