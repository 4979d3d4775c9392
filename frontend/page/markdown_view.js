'use strict';
// Shows Markdown that grows: what is finished stays as it is, the last block is made anew.

class MarkdownView {
  constructor(root) {
    this.root = root;
    this.text = '';
    this.tailFrom = 0; // where the last block begins in the text
    this.numDone = 0; // elements before that of the last block
  }

  show(text) {
    if (text === this.text) return;
    if (!text.startsWith(this.text)) {
      this.tailFrom = 0;
      this.numDone = 0;
    }
    this.text = text;
    const tail = text.slice(this.tailFrom);
    const blocks = MarkdownParser.parse(tail);
    while (this.root.childNodes.length > this.numDone) this.root.lastChild.remove();
    this.root.append(...blocks.map(blockElement));
    if (blocks.length > 1) {
      this.numDone += blocks.length - 1;
      this.tailFrom += startOfLine(tail, blocks.at(-1).line);
    }
  }
}

function startOfLine(text, line) {
  let at = 0;
  for (let i = 0; i < line; i += 1) at = text.indexOf('\n', at) + 1;
  return at;
}

function blockElement(block) {
  switch (block.type) {
    case 'heading':
      // An answer stands below the page's own headings.
      return el(`h${Math.min(6, block.level + 2)}`, {}, inlineNodes(block.inline));
    case 'code':
      return codeElement(block);
    case 'quote':
      return el('blockquote', {}, block.blocks.map(blockElement));
    case 'list':
      return listElement(block);
    case 'table':
      return tableElement(block);
    case 'rule':
      return el('hr');
    default:
      return el('p', {}, inlineNodes(block.inline));
  }
}

function codeElement({ language, text }) {
  const head = el('div', { class: 'code-head' }, el('span', {}, language), copyButton(() => text));
  return el('div', { class: 'code' }, head, el('pre', { tabindex: '0' }, el('code', {}, highlighted(text, language))));
}

function listElement({ isOrdered, start, items }) {
  const list = el(isOrdered ? 'ol' : 'ul', isOrdered && start !== 1 ? { start } : {});
  for (const item of items) {
    const isTight = item.blocks.filter((block) => block.type === 'paragraph').length === 1;
    const children = item.blocks.flatMap((block) => (isTight && block.type === 'paragraph' ? inlineNodes(block.inline) : [blockElement(block)]));
    const box = item.isTask && el('input', { type: 'checkbox', disabled: true, checked: item.isDone });
    list.append(el('li', { class: item.isTask ? 'task' : null }, box, children));
  }
  return list;
}

function tableElement({ align, head, rows }) {
  const cell = (tag) => (inline, i) => el(tag, { class: `align-${align[i]}` }, inlineNodes(inline));
  const row = (tag) => (cells) => el('tr', {}, cells.map(cell(tag)));
  const table = el('table', {}, el('thead', {}, row('th')(head)), el('tbody', {}, rows.map(row('td'))));
  return el('div', { class: 'table-scroll', tabindex: '0' }, table);
}

function inlineNodes(parts) {
  return parts.map((part) => {
    if (typeof part === 'string') return document.createTextNode(part);
    if (part.type === 'break') return el('br');
    if (part.type === 'code') return el('code', {}, part.text);
    const children = inlineNodes(part.inline);
    if (part.type === 'link') return el('a', { href: part.address, target: '_blank', rel: 'noopener noreferrer nofollow' }, children);
    return el({ strong: 'strong', em: 'em', strike: 's' }[part.type], {}, children);
  });
}

const WORDS = new Set(
  ('and as assert async await bool break case catch char class const continue def default del delete do double elif else enum ' +
    'except export extends final finally float fn for from func function global if impl implements import in include instanceof int ' +
    'interface is lambda let long loop match mod move mut new not null None nil or package pass private protected pub public raise ' +
    'return self short static struct super switch this throw trait true True False false try type typeof unsafe use using var void ' +
    'where while with yield SELECT FROM WHERE INSERT UPDATE DELETE CREATE TABLE JOIN ON AND OR NOT NULL GROUP BY ORDER LIMIT echo fi then done').split(' '),
);
const HASH_COMMENTS = new Set(['python', 'py', 'sh', 'bash', 'shell', 'zsh', 'yaml', 'yml', 'toml', 'ruby', 'rb', 'makefile', 'dockerfile', 'r', 'perl']);
const PLAIN = new Set(['', 'text', 'txt', 'plain', 'plaintext', 'markdown', 'md', 'output', 'console']);
const MAX_HIGHLIGHTED = 20_000; // characters; beyond it colours cost more than they tell

/** Code with a few colours that suit most languages: comments, texts, numbers, words. */
function highlighted(text, language) {
  const name = language.toLowerCase();
  if (PLAIN.has(name) || text.length > MAX_HIGHLIGHTED) return text;
  const comment = HASH_COMMENTS.has(name) ? '#[^\\n]*' : name === 'sql' ? '--[^\\n]*' : '\\/\\/[^\\n]*|\\/\\*[^]*?(?:\\*\\/|$)';
  const string = '"""[^]*?(?:"""|$)|"(?:[^"\\\\\\n]|\\\\.)*"?|\'(?:[^\'\\\\\\n]|\\\\.)*\'?|`(?:[^`\\\\]|\\\\.)*`?';
  const pattern = new RegExp(`(${comment})|(${string})|\\b(\\d[\\w.]*)|([A-Za-z_]\\w*)`, 'g');
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(pattern)) {
    const kind = (match[1] && 'comment') || (match[2] && 'string') || (match[3] && 'number') || (WORDS.has(match[4]) && 'word');
    if (!kind) continue;
    nodes.push(text.slice(at, match.index), el('span', { class: `code-${kind}` }, match[0]));
    at = match.index + match[0].length;
  }
  return [...nodes, text.slice(at)];
}
